"""What each query must give: plain Python over all events at once, with nothing of MillWheel in it.

Query 12 depends on when a bid was processed; its answer takes bids with the wall time of that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Row = dict[str, Any]
Events = Mapping[Any, list[Row]]
"""By kind (persons, auctions, bids), in any order."""

_SECOND = 1_000_000


def _q0(events: Events) -> list[Row]:
    return list(events["bids"])


def _q1(events: Events) -> list[Row]:
    return [{**bid, "price": bid["price"] * 0.908} for bid in events["bids"]]


def _q2(events: Events) -> list[Row]:
    return [
        {"auction": bid["auction"], "price": bid["price"]}
        for bid in events["bids"]
        if bid["auction"] % 123 == 0
    ]


def _q3(events: Events) -> list[Row]:
    persons = {person["id"]: person for person in events["persons"]}
    found = []
    for auction in events["auctions"]:
        person = persons.get(auction["seller"])
        if person is None or auction["category"] != 10 or person["state"] not in ("OR", "ID", "CA"):
            continue
        if person["dateTime"] <= auction["dateTime"] + 600 * _SECOND:
            found.append({**{name: person[name] for name in ("name", "city", "state")}, "id": auction["id"]})
    return found


def _winning_bids(events: Events) -> list[Row]:
    """Auctions with their final price, in the order in which they closed."""
    auctions = {auction["id"]: auction for auction in events["auctions"]}
    final: dict[int, int] = {}
    for bid in events["bids"]:
        auction = auctions.get(bid["auction"])
        if auction is not None and auction["dateTime"] <= bid["dateTime"] <= auction["expires"]:
            final[auction["id"]] = max(final.get(auction["id"], 0), bid["price"])
    winning = [{**auctions[id], "final": price} for id, price in final.items()]
    return sorted(winning, key=lambda sale: (sale["expires"], sale["id"]))


def _q4(events: Events) -> list[Row]:
    prices: dict[int, list[int]] = defaultdict(list)
    averages: dict[tuple[int, int], float] = {}
    for sale in _winning_bids(events):
        mine = prices[sale["category"]]
        mine.append(sale["final"])
        averages[sale["category"], sale["expires"]] = sum(mine) / len(mine)
    return [{"category": c, "time": time, "average": average} for (c, time), average in averages.items()]


def _q5(events: Events) -> list[Row]:
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for bid in events["bids"]:
        first = bid["dateTime"] // (2 * _SECOND) + 1
        for end in range(first, first + 5):
            counts[end * 2 * _SECOND][bid["auction"]] += 1
    return [
        {"window": window, "auction": auction, "count": count}
        for window, auctions in counts.items()
        for auction, count in auctions.items()
        if count == max(auctions.values())
    ]


def _q6(events: Events) -> list[Row]:
    prices: dict[int, list[int]] = defaultdict(list)
    found = []
    for sale in _winning_bids(events):
        mine = prices[sale["seller"]]
        mine.append(sale["final"])
        last = mine[-10:]
        found.append({"seller": sale["seller"], "auction": sale["id"], "average": sum(last) / len(last)})
    return found


def _q7(events: Events) -> list[Row]:
    windows: dict[int, list[Row]] = defaultdict(list)
    for bid in events["bids"]:
        windows[(bid["dateTime"] // (10 * _SECOND) + 1) * 10 * _SECOND].append(bid)
    found = []
    for window, bids in windows.items():
        most = max(bid["price"] for bid in bids)
        for bid in bids:
            if bid["price"] == most:
                found.append(
                    {"window": window, **{name: bid[name] for name in ("auction", "bidder", "price")}}
                )
    return found


def _q8(events: Events) -> list[Row]:
    def window(row: Row) -> int:
        time: int = row["dateTime"]
        return time // (10 * _SECOND) * 10 * _SECOND

    sold = {(auction["seller"], window(auction)) for auction in events["auctions"]}
    return [
        {"id": person["id"], "name": person["name"], "window": window(person)}
        for person in events["persons"]
        if (person["id"], window(person)) in sold
    ]


def _q11(events: Events) -> list[Row]:
    times: dict[int, list[int]] = defaultdict(list)
    for bid in events["bids"]:
        times[bid["bidder"]].append(bid["dateTime"])
    found = []
    for bidder, mine in times.items():
        session: list[int] = []
        for time in [*sorted(mine), None]:
            if session and (time is None or time - session[-1] >= 10 * _SECOND):
                end = session[-1] + 10 * _SECOND
                found.append({"bidder": bidder, "start": session[0], "end": end, "count": len(session)})
                session = []
            if time is not None:
                session.append(time)
    return found


def q12(processed: Iterable[tuple[int, Row]]) -> list[Row]:
    """Of bids with the wall time at which each was processed."""
    counts = Counter((bid["bidder"], time // (10 * _SECOND) * 10 * _SECOND) for time, bid in processed)
    return [{"bidder": bidder, "start": start, "count": n} for (bidder, start), n in counts.items()]


def _q13(events: Events) -> list[Row]:
    return [
        {**_bid(bid), "value": f"value of {bid['auction'] % 10_000}"}
        for bid in events["bids"]
        if bid["auction"] % 2 == 0
    ]


def _bid(bid: Row) -> Row:
    return {name: bid[name] for name in ("auction", "bidder", "price", "dateTime")}


def _q14(events: Events) -> list[Row]:
    return [
        {
            **bid,
            "price": bid["price"] * 0.908,
            "bidTimeType": "nightTime",  # the house opens at midnight
            "c_counts": sum(letter == "c" for letter in bid["extra"]),
        }
        for bid in events["bids"]
        if 1_000_000 < bid["price"] * 0.908 < 50_000_000
    ]


def _by_auction(events: Events) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for bid in events["bids"]:
        found[bid["auction"]].append(bid)
    return found


def _q17(events: Events) -> list[Row]:
    found = []
    for auction, bids in _by_auction(events).items():
        prices = [bid["price"] for bid in bids]
        ranks = Counter("small" if p < 10_000 else "middling" if p < 1_000_000 else "large" for p in prices)
        found.append(
            {
                "auction": auction,
                "day": bids[0]["dateTime"] // (86_400 * _SECOND) * 86_400 * _SECOND,
                "bids": len(bids),
                "rank1": ranks["small"],
                "rank2": ranks["middling"],
                "rank3": ranks["large"],
                "least": min(prices),
                "most": max(prices),
                "average": sum(prices) / len(prices),
                "total": sum(prices),
            }
        )
    return found


def _q18(events: Events) -> list[Row]:
    last: dict[tuple[int, int], Row] = {}
    for bid in sorted(events["bids"], key=lambda bid: bid["dateTime"]):
        last[bid["bidder"], bid["auction"]] = _bid(bid)
    return list(last.values())


def _q19(events: Events) -> list[Row]:
    return [
        {**_bid(bid), "n": n}
        for bids in _by_auction(events).values()
        for n, bid in enumerate(sorted(bids, key=lambda b: (-b["price"], b["dateTime"]))[:10], 1)
    ]


def _q20(events: Events) -> list[Row]:
    auctions = {a["id"]: a for a in events["auctions"] if a["category"] == 10}
    return [
        {**_bid(bid), **{name: auction[name] for name in ("itemName", "seller", "expires")}}
        for bid in events["bids"]
        if (auction := auctions.get(bid["auction"])) is not None
        and auction["dateTime"] <= bid["dateTime"] + 600 * _SECOND
    ]


ANSWERS: Mapping[str, Callable[[Events], list[Row]]] = {
    "q0": _q0, "q1": _q1, "q2": _q2, "q3": _q3, "q4": _q4, "q5": _q5,
    "q6": _q6, "q7": _q7, "q8": _q8, "q11": _q11, "q13": _q13, "q14": _q14,
    "q17": _q17, "q18": _q18, "q19": _q19, "q20": _q20,
}  # fmt: skip
"""By query: its answer, from all events."""


def same(query: str, rows: Iterable[Row], events: Events) -> bool:
    """Whether rows, in any order, are a query's answer. Of query 12: whether each bid is in a window."""
    if query == "q12":
        found: Counter[int] = Counter()
        for row in rows:
            found[row["bidder"]] += row["count"]
        return found == Counter(bid["bidder"] for bid in events["bids"])
    return _bag(rows) == _bag(ANSWERS[query](events))


def _bag(rows: Iterable[Row]) -> Counter[Any]:
    return Counter(tuple(sorted(row.items())) for row in rows)
