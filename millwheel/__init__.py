"""MillWheel on Spark: fault-tolerant stream processing in Python."""

from millwheel import injectors, lookups, sinks, testing
from millwheel.errors import (
    CodecError,
    EngineError,
    FencedError,
    InputError,
    MillWheelError,
    PipelineError,
    StoreError,
    UserCodeError,
)
from millwheel.launch import Job, run, start
from millwheel.master.status import Report
from millwheel.model import codec as codecs
from millwheel.model import combiners
from millwheel.model.codec import register
from millwheel.model.computation import Computation
from millwheel.model.injector import Injector, RecordBatch
from millwheel.model.keys import SKIP, by, by_key
from millwheel.model.record import Record
from millwheel.model.sink import Sink
from millwheel.model.time import DAY, HOUR, MAX_TIME, MILLISECOND, MIN_TIME, MINUTE, SECOND, WALL, WATERMARK
from millwheel.model.timer import Timer
from millwheel.operators import aggregates as agg
from millwheel.operators import windows
from millwheel.operators.builder import Pipeline
from millwheel.operators.stream import KeyedStream, Stream
from millwheel.tables import read_store
from millwheel.version import VERSION as __version__

__all__ = [
    "DAY",
    "HOUR",
    "MAX_TIME",
    "MILLISECOND",
    "MINUTE",
    "MIN_TIME",
    "SECOND",
    "SKIP",
    "WALL",
    "WATERMARK",
    "CodecError",
    "Computation",
    "EngineError",
    "FencedError",
    "Injector",
    "InputError",
    "Job",
    "KeyedStream",
    "MillWheelError",
    "Pipeline",
    "PipelineError",
    "Record",
    "RecordBatch",
    "Report",
    "Sink",
    "StoreError",
    "Stream",
    "Timer",
    "UserCodeError",
    "__version__",
    "agg",
    "by",
    "by_key",
    "codecs",
    "combiners",
    "injectors",
    "lookups",
    "read_store",
    "register",
    "run",
    "sinks",
    "start",
    "testing",
    "windows",
]
