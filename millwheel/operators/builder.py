"""The pipeline that users build: the model's, with operators on its streams."""

from __future__ import annotations

from millwheel.model.injector import Injector
from millwheel.model.pipeline import Pipeline as ModelPipeline
from millwheel.operators.arguments import operator
from millwheel.operators.checks import checked_name
from millwheel.operators.stream import Stream


class Pipeline(ModelPipeline):
    """A graph of computations, injectors and sinks, joined by the names of streams.

    >>> import millwheel as mw
    >>> p = Pipeline("counting")
    >>> queries = p.inject("queries", mw.injectors.Records([]))
    >>> queries.key_by("query").window(mw.windows.tumbling(mw.MINUTE)).count("counts")
    Stream('counts')
    >>> p
    Pipeline('counting': 1 injector, 1 computation, 0 sinks)
    """

    @operator()
    def inject(self, stream: str, injector: Injector) -> Stream:
        """Feeds a stream from outside; returns it, for operators."""
        super().inject(stream, injector)
        return Stream(self, stream)

    @operator()
    def stream(self, name: str) -> Stream:
        """A stream by its name; its writer may be added later."""
        checked_name("Pipeline.stream", name)
        return Stream(self, name)
