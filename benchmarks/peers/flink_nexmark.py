"""Flink SQL: NEXMark queries, no Python in their path. Runs in Flink's own environment.

    python flink_nexmark.py QUERY SOURCE OUT CHECKPOINTS PARALLELISM

``SOURCE`` has a folder for each kind of event with a file for each reader, in the order of time: Flink's file
source reads several files in no order, which event time does not survive. Queries 4 and 6 are not here: their
averages are updates, which a sink of files does not take.
"""

from __future__ import annotations

import sys
from pathlib import Path

_TIME = """,
  moment AS TO_TIMESTAMP_LTZ(`dateTime` / 1000, 3),
  WATERMARK FOR moment AS moment - INTERVAL '{slack}' SECOND
"""
TABLES = {
    "persons": "id BIGINT, name STRING, city STRING, state STRING, `dateTime` BIGINT",
    "auctions": "id BIGINT, seller BIGINT, category BIGINT, `dateTime` BIGINT",
    "bids": "auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` BIGINT, extra STRING",
}
_SLACK = "0.2"  # seconds: events are out of order by less
_FILES = "WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'json')"

QUERIES = {
    "q0": (
        "auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` BIGINT, extra STRING",
        """
SELECT auction, bidder, price, `dateTime`, extra
FROM bids
""",
    ),
    "q1": (
        "auction BIGINT, bidder BIGINT, price DOUBLE, `dateTime` BIGINT, extra STRING",
        """
SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price, `dateTime`, extra
FROM bids
""",
    ),
    "q2": (
        "auction BIGINT, price BIGINT",
        """
SELECT auction, price
FROM bids
WHERE MOD(auction, 123) = 0
""",
    ),
    "q3": (
        "name STRING, city STRING, state STRING, id BIGINT",
        """
SELECT P.name, P.city, P.state, A.id
FROM auctions A JOIN persons P ON A.seller = P.id
WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')
""",
    ),
    "q5": (
        "`window` BIGINT, auction BIGINT, `count` BIGINT",
        """
WITH counts AS (
  SELECT window_start, window_end, auction, COUNT(*) AS num
  FROM HOP(TABLE bids, DESCRIPTOR(moment), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
  GROUP BY window_start, window_end, auction
), most AS (
  SELECT window_start, window_end, MAX(num) AS num
  FROM counts
  GROUP BY window_start, window_end
)
SELECT UNIX_TIMESTAMP(CAST(C.window_end AS STRING)) * 1000000, C.auction, C.num
FROM counts C JOIN most M
ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num = M.num
""",
    ),
    "q7": (
        "`window` BIGINT, auction BIGINT, bidder BIGINT, price BIGINT",
        """
WITH windowed AS (
  SELECT * FROM TUMBLE(TABLE bids, DESCRIPTOR(moment), INTERVAL '10' SECOND)
), most AS (
  SELECT window_start, window_end, MAX(price) AS price
  FROM windowed
  GROUP BY window_start, window_end
)
SELECT UNIX_TIMESTAMP(CAST(B.window_end AS STRING)) * 1000000, B.auction, B.bidder, B.price
FROM windowed B JOIN most M
ON B.window_start = M.window_start AND B.window_end = M.window_end AND B.price = M.price
""",
    ),
    "q8": (
        "id BIGINT, name STRING, `window` BIGINT",
        """
SELECT P.id, P.name, UNIX_TIMESTAMP(CAST(P.window_start AS STRING)) * 1000000
FROM (
  SELECT id, name, window_start, window_end
  FROM TUMBLE(TABLE persons, DESCRIPTOR(moment), INTERVAL '10' SECOND)
  GROUP BY id, name, window_start, window_end
) P JOIN (
  SELECT seller, window_start, window_end
  FROM TUMBLE(TABLE auctions, DESCRIPTOR(moment), INTERVAL '10' SECOND)
  GROUP BY seller, window_start, window_end
) A
ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end
""",
    ),
}
"""By query: the columns of its results, and the SQL."""


def main(query: str, source: Path, out: Path, checkpoints: Path, parallelism: int) -> None:
    """Runs a query to the end of its input."""
    from benchmarks.peers.flink_sql import environment  # here: it needs Flink, and the queries do not

    table = environment(checkpoints, parallelism)
    for kind, columns in TABLES.items():
        files = _FILES.format(path=(source / kind).resolve().as_uri())
        table.execute_sql(f"CREATE TABLE {kind} ({columns}{_TIME.format(slack=_SLACK)}) {files}")
    columns, sql = QUERIES[query]
    table.execute_sql(f"CREATE TABLE results ({columns}) {_FILES.format(path=out.resolve().as_uri())}")
    table.execute_sql(f"INSERT INTO results {sql}").wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
