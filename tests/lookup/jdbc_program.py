"""A lookup in a table of a database by Spark's JDBC reader: ``python -m tests.lookup.jdbc_program CONFIG``.

It prints the version of the table whenever that changes, and ends when its input is closed.
"""

from __future__ import annotations

import json
import sys
import threading

import millwheel as mw
from millwheel.spark.session import local_session


def main() -> None:
    """Looks users up until its input is closed."""
    config = json.loads(sys.argv[1])
    folder = config["folder"]
    spark = local_session("local[2,4]")
    users = spark.read.format("jdbc").options(driver="org.postgresql.Driver", **config["jdbc"]).load()
    p = mw.Pipeline("jdbc")
    clicks = p.inject("clicks", mw.injectors.Files(f"{folder}/in/*.jsonl", timestamp="at"))
    named = clicks.lookup(users, on={"user": "id"}, refresh=100 * mw.MILLISECOND)
    named.sink(mw.sinks.JsonLines(f"{folder}/out"))
    ended, before = threading.Event(), 0
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with mw.start(p, store=f"{folder}/store", spark=spark, progress=False) as job:
        while not ended.is_set():
            found = job.status().lookups.get("clicks.lookup")  # not before the first epoch
            version = before if found is None else found.version
            if version != before:
                print(version, flush=True)
            before = version
            job.wait(0.02)  # raises the job's error


if __name__ == "__main__":
    main()
