"""An alert on the error rate: services with more than a tenth of failures in five minutes."""

from __future__ import annotations

import millwheel as mw


def query(p: mw.Pipeline) -> mw.Stream:
    requests = p.stream("requests").map(lambda v: {**v, "failed": int(v["status"] >= 500)})
    rates = requests.key_by("service").window(mw.windows.tumbling(5 * mw.MINUTE))
    found = rates.aggregate("error rates", requests=mw.agg.count(), rate=mw.agg.mean("failed"))
    return found.filter(lambda v: v["requests"] >= 10 and v["rate"] > 0.1)


INPUT = {
    "requests": [(n, {"service": "a", "status": 500 if n % 5 == 0 else 200}) for n in range(20)]
    + [(n, {"service": "b", "status": 200}) for n in range(20)]
    + [(n, {"service": "c", "status": 503}) for n in range(3)]
}

RESULT = [
    {"key": "a", "start": 0, "end": 300000000, "requests": 20, "rate": 0.2},
]
