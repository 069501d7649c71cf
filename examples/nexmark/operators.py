"""The queries in operators: a few lines each, the SQL above them.

Windows are of event time, so query 12, whose windows are of processing time, is a computation of its own
behind `process`; so are the running averages of queries 4 and 6, which are about the order of all sales.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import millwheel as mw
from examples.nexmark.events import Kind
from examples.nexmark.queries import q1, q2, q3, q4, q6, q8, q12

FOR_GOOD = 36_500 * mw.DAY
LONGEST = 3 * mw.MINUTE
"""No auction is open for longer, in houses with 20 or more events in a second."""


def whole(value: Any) -> Any:
    """A field that is all of a value."""
    return value


def _q0(p: mw.Pipeline) -> None:
    """SELECT auction, bidder, price, dateTime, extra FROM bid"""
    p.stream("bids").named("results")


def _q1(p: mw.Pipeline) -> None:
    """SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid"""
    bids = p.stream("bids")
    bids.map(lambda bid: {**bid, "price": bid["price"] * q1.EUROS_PER_DOLLAR}).named("results")


def _q2(p: mw.Pipeline) -> None:
    """SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0"""
    wanted = p.stream("bids").filter(lambda bid: bid["auction"] % q2.EVERY == 0)
    wanted.map(lambda bid: {"auction": bid["auction"], "price": bid["price"]}).named("results")


def _q3(p: mw.Pipeline) -> None:
    """SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
    WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')"""
    persons = p.stream("persons").filter(lambda person: person["state"] in q3.STATES)
    auctions = p.stream("auctions").filter(lambda auction: auction["category"] == q3.CATEGORY)
    auctions.key_by("seller").join(
        persons.key_by("id"), within=(FOR_GOOD, q3.PATIENCE), name="local items"
    ).map(
        lambda pair: {
            **{name: pair["right"][name] for name in ("name", "city", "state")},
            "id": pair["left"]["id"],
        }
    ).named("results")


def winning_bids(p: mw.Pipeline) -> mw.Stream:
    """SELECT A.id, A.category, A.seller, A.expires, MAX(B.price) AS final
    FROM auction A JOIN bid B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
    GROUP BY A.id, A.category, A.seller, A.expires"""
    bids = p.stream("bids").key_by("auction").map(lambda bid: [bid["price"], bid["dateTime"]])
    return (
        p.stream("auctions")
        .key_by("id")
        .map(lambda auction: {name: auction[name] for name in ("id", "category", "seller", "expires")})
        .join(bids, within=(0, LONGEST), name="auctions and bids")
        .filter(lambda pair: pair["right"][1] <= pair["left"]["expires"])
        .map(lambda pair: {**pair["left"], "price": pair["right"][0]})
        .key_by("id")
        .window(mw.windows.session(LONGEST))
        .aggregate("winning", auction=mw.agg.first(whole), final=mw.agg.max("price"))
        .map(lambda sale: {**sale["auction"], "auction": sale["auction"]["id"], "final": sale["final"]})
    )


class CategoryAverage(q4.CategoryAverage):
    """Takes sales by the time at which the auction closed, once all that closed then are there."""

    def process_record(self, record: mw.Record) -> None:
        expires = record.value["expires"]
        self.state["closed"].setdefault(expires, []).append(record.value["final"])
        self.set_timer(str(expires), expires + LONGEST)


def _q4(p: mw.Pipeline) -> None:
    """SELECT category, AVG(final) FROM (winning bids) GROUP BY category"""
    winning_bids(p).key_by("category").process(CategoryAverage(), outputs=["results"])


def _q5(p: mw.Pipeline) -> None:
    """SELECT window_end, auction, num FROM (
    SELECT auction, COUNT(*) AS num, window_end FROM HOP(bid, 2 seconds, 10 seconds)
    GROUP BY auction, window_end) WHERE num = MAX(num) OVER (PARTITION BY window_end)"""
    counts = (
        p.stream("bids")
        .key_by("auction")
        .window(mw.windows.sliding(10 * mw.SECOND, 2 * mw.SECOND))
        .count("counts")
    )
    counts.key_by("end").map(lambda v: [v["count"], [int(v["key"])]]).window(
        mw.windows.tumbling(2 * mw.SECOND)  # one of the sliding windows ends in each
    ).reduce("hottest", larger).flat_map(
        lambda window: [
            {"window": window["end"], "auction": auction, "count": window["value"][0]}
            for auction in window["value"][1]
        ]
    ).named("results")


def larger(a: list[Any], b: list[Any]) -> list[Any]:
    """Of two [number, what has it], the larger; of equal ones, what has it of both."""
    if a[0] == b[0]:
        return [a[0], a[1] + b[1]]
    return max(a, b, key=lambda pair: pair[0])


class SellerAverage(q6.SellerAverage):
    """Takes sales by the time at which the auction closed, once all that closed then are there."""

    def process_record(self, record: mw.Record) -> None:
        sale = record.value
        self.state["closed"].setdefault(sale["expires"], []).append([sale["auction"], sale["final"]])
        self.set_timer(str(sale["expires"]), sale["expires"] + LONGEST)


def _q6(p: mw.Pipeline) -> None:
    """SELECT seller, AVG(final) OVER (PARTITION BY seller ORDER BY expires, auction
    ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) FROM (winning bids)"""
    winning_bids(p).key_by("seller").process(SellerAverage(), outputs=["results"])


def _q7(p: mw.Pipeline) -> None:
    """SELECT auction, bidder, price, window_end FROM TUMBLE(bid, 10 seconds)
    WHERE price = MAX(price) OVER (PARTITION BY window_end)"""
    bids = p.stream("bids").map(lambda bid: [bid["price"], [[bid["auction"], bid["bidder"]]]])
    bids.key_by(lambda bid: "all").window(mw.windows.tumbling(10 * mw.SECOND)).reduce(
        "highest", larger
    ).flat_map(
        lambda window: [
            {"window": window["end"], "auction": auction, "bidder": bidder, "price": window["value"][0]}
            for auction, bidder in window["value"][1]
        ]
    ).named("results")


def _q8(p: mw.Pipeline) -> None:
    """SELECT P.id, P.name, P.window_start FROM TUMBLE(person, 10 seconds) P
    JOIN (SELECT DISTINCT seller, window_start FROM TUMBLE(auction, 10 seconds)) A
    ON P.id = A.seller AND P.window_start = A.window_start"""
    window = mw.windows.tumbling(q8.WINDOW)
    persons = p.stream("persons").key_by("id").window(window).aggregate("new", name=mw.agg.first("name"))
    sellers = p.stream("auctions").key_by("seller").window(window).count("sellers")
    persons.key_by("key").join(sellers.key_by("key"), within=0, name="new sellers").map(
        lambda pair: {
            "id": int(pair["left"]["key"]),
            "name": pair["left"]["name"],
            "window": pair["left"]["start"],
        }
    ).named("results")


def _q11(p: mw.Pipeline) -> None:
    """SELECT bidder, COUNT(*), window_start, window_end FROM SESSION(bid, bidder, 10 seconds)
    GROUP BY bidder, window_start, window_end"""
    sessions = p.stream("bids").key_by("bidder").window(mw.windows.session(10 * mw.SECOND)).count("sessions")
    sessions.map(
        lambda v: {"bidder": int(v["key"]), "start": v["start"], "end": v["end"], "count": v["count"]}
    ).named("results")


def _q12(p: mw.Pipeline) -> None:
    """SELECT bidder, COUNT(*), window_start, window_end FROM TUMBLE(bid, PROCTIME(), 10 seconds)
    GROUP BY bidder, window_start, window_end"""
    bids = p.stream("bids").key_by("bidder")
    bids.process(q12.BidsPerMoment(), outputs=["results"], combine=mw.combiners.Count(None))


SIDE_INPUT = [{"key": key, "value": f"value of {key}"} for key in range(0, 10_000, 2)]
"""A table that does not change: by the last four digits of an auction."""


def _q13(p: mw.Pipeline) -> None:
    """SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
    FROM bid B JOIN side_input S ON MOD(B.auction, 10000) = S.key"""
    bids = p.stream("bids").map(lambda bid: {**_without_extra(bid), "key": bid["auction"] % 10_000})
    bids.lookup(SIDE_INPUT, on="key", missing="drop", columns=["value"]).map(
        lambda bid: {name: value for name, value in bid.items() if name != "key"}
    ).named("results")


def _without_extra(bid: dict[str, Any]) -> dict[str, Any]:
    return {name: bid[name] for name in ("auction", "bidder", "price", "dateTime")}


def _q14(p: mw.Pipeline) -> None:
    """SELECT auction, bidder, 0.908 * price AS price, CASE WHEN HOUR(dateTime) BETWEEN 8 AND 18
    THEN 'dayTime' WHEN HOUR(dateTime) <= 6 OR HOUR(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END
    AS bidTimeType, dateTime, extra, COUNT_CHAR(extra, 'c') AS c_counts
    FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000"""
    euros = p.stream("bids").map(lambda bid: {**bid, "price": bid["price"] * q1.EUROS_PER_DOLLAR})
    euros.filter(lambda bid: 1_000_000 < bid["price"] < 50_000_000).map(
        lambda bid: {**bid, "bidTimeType": time_of_day(bid["dateTime"]), "c_counts": bid["extra"].count("c")}
    ).named("results")


def time_of_day(moment: int) -> str:
    """A word for the hour of a time."""
    hour = time.gmtime(moment // mw.SECOND).tm_hour
    return "dayTime" if 8 <= hour <= 18 else "nightTime" if hour <= 6 or hour >= 20 else "otherTime"


def _q17(p: mw.Pipeline) -> None:
    """SELECT auction, day, COUNT(*), COUNT(*) FILTER (WHERE price < 10000), ... (< 1000000), ... (the rest),
    MIN(price), MAX(price), AVG(price), SUM(price) FROM bid GROUP BY auction, day"""
    bids = p.stream("bids").map(lambda bid: {**_without_extra(bid), f"rank{rank(bid['price'])}": True})
    bids.key_by("auction").window(mw.windows.tumbling(mw.DAY)).aggregate(
        "statistics",
        bids=mw.agg.count(),
        **{f"rank{number}": mw.agg.count(f"rank{number}") for number in (1, 2, 3)},
        least=mw.agg.min("price"),
        most=mw.agg.max("price"),
        average=mw.agg.mean("price"),
        total=mw.agg.sum("price"),
    ).map(lambda v: {"auction": int(v.pop("key")), "day": v.pop("start"), **_without_end(v)}).named("results")


def rank(price: int) -> int:
    """Small, middling and large prices: 1, 2, 3."""
    return 1 if price < 10_000 else 2 if price < 1_000_000 else 3


def _without_end(window: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in window.items() if name != "end"}


def _q18(p: mw.Pipeline) -> None:
    """SELECT auction, bidder, price, dateTime FROM (SELECT *, ROW_NUMBER() OVER
    (PARTITION BY bidder, auction, day ORDER BY dateTime DESC) AS n FROM bid) WHERE n = 1"""
    bids = p.stream("bids").map(_without_extra).key_by("bidder", "auction")
    last = bids.window(mw.windows.tumbling(mw.DAY)).aggregate("last bids", bid=mw.agg.last(whole))
    last.map(lambda window: window["bid"]).named("results")


def _q19(p: mw.Pipeline) -> None:
    """SELECT * FROM (SELECT auction, bidder, price, dateTime, ROW_NUMBER() OVER
    (PARTITION BY auction, day ORDER BY price DESC, dateTime) AS n FROM bid) WHERE n <= 10"""
    bids = p.stream("bids").key_by("auction")
    bids.window(mw.windows.tumbling(mw.DAY)).aggregate(
        "best bids", best=mw.agg.top(lambda bid: [bid["price"], -bid["dateTime"], bid["bidder"]], 10)
    ).flat_map(
        lambda window: [
            {"auction": int(window["key"]), "bidder": bidder, "price": price, "dateTime": -before, "n": n}
            for n, (price, before, bidder) in enumerate(window["best"], 1)
        ]
    ).named("results")


def _q20(p: mw.Pipeline) -> None:
    """SELECT B.auction, B.bidder, B.price, B.dateTime, A.itemName, A.seller, A.expires
    FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10"""
    auctions = p.stream("auctions").filter(lambda auction: auction["category"] == q3.CATEGORY)
    bids = p.stream("bids").map(_without_extra)
    bids.key_by("auction").join(
        auctions.map(lambda a: {name: a[name] for name in ("id", "itemName", "seller", "expires")}).key_by(
            "id"
        ),
        within=(FOR_GOOD, q3.PATIENCE),
        name="bids with auctions",
    ).map(
        lambda pair: {
            **pair["left"],
            **{name: pair["right"][name] for name in ("itemName", "seller", "expires")},
        }
    ).named("results")


@dataclass(frozen=True)
class Written:
    """A query in operators, as `examples.nexmark.queries` has those that are written by hand."""

    add: Callable[[mw.Pipeline], None]
    STREAMS: tuple[Kind, ...] = ("bids",)


_BOTH: tuple[Kind, ...] = ("auctions", "bids")
_SELLERS: tuple[Kind, ...] = ("persons", "auctions")

OPERATORS = {
    "q0": Written(_q0), "q1": Written(_q1), "q2": Written(_q2), "q3": Written(_q3, _SELLERS),
    "q4": Written(_q4, _BOTH), "q5": Written(_q5), "q6": Written(_q6, _BOTH), "q7": Written(_q7),
    "q8": Written(_q8, _SELLERS), "q11": Written(_q11), "q12": Written(_q12), "q13": Written(_q13),
    "q14": Written(_q14), "q17": Written(_q17), "q18": Written(_q18), "q19": Written(_q19),
    "q20": Written(_q20, _BOTH),
}  # fmt: skip
"""By name: each query in operators; those from q13 on are not written by hand."""
