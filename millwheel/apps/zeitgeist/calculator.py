"""The Model Calculator (Fig. 1): the traffic to expect of a key."""

from __future__ import annotations

from millwheel.apps.zeitgeist.counts import CountModel
from millwheel.apps.zeitgeist.leaning import records_missed
from millwheel.apps.zeitgeist.packed import Packed
from millwheel.apps.zeitgeist.settings import Settings
from millwheel.model.computation import Computation
from millwheel.model.record import Record


class ModelCalculator(Computation):
    """Keeps the model of a key; produces what it expects after each complete bucket.

    ``models`` gets [bucket, *forecast, patience]: after ``patience`` silent buckets the key is missed; 0 if
    it is too young or too rare to be missed at all.
    """

    codec = Packed(CountModel)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def initial_state(self) -> CountModel:
        return CountModel()

    def process_record(self, record: Record) -> None:
        bucket, count = record.value
        model: CountModel = self.state
        model.update(self.settings, bucket, count)
        forecast = model.forecast(self.settings, bucket + 1)
        patience = 0
        if forecast.regular:
            doubt = forecast.mean / forecast.low if forecast.low else 1.0
            patience = model.patience(self.settings, doubt * records_missed(self.settings, forecast))
        self.produce("models", [bucket, *forecast, patience])
