"""The syncs of an epoch are those that strace reports, by file."""

from __future__ import annotations

from benchmarks.syncs import summary

_TRACE = """\
7 openat(AT_FDCWD</w>, "/w/journal/data.mdb", O_RDWR|O_CREAT) = 4</w/journal/data.mdb> <0.000013>
7 openat(AT_FDCWD</w>, "/w/journal/data.mdb", O_WRONLY|O_DSYNC) = 5</w/journal/data.mdb> <0.000012>
7 fdatasync(4</w/journal/data.mdb>) = 0 <0.009000>
7 openat(AT_FDCWD</w>, "/w/.begin", O_WRONLY|O_CREAT, 0666) = 6</w/.begin> <0.000013>
7 close(6</w/.begin>) = 0 <0.000002>
7 pwrite64(4</w/journal/data.mdb>, "\\2\\0"..., 4096, 8192) = 4096 <0.000015>
7 fdatasync(4</w/journal/data.mdb>) = 0 <0.001000>
7 pwrite64(5</w/journal/data.mdb>, "\\0\\0"..., 120, 32) = 120 <0.002000>
7 fdatasync(4</w/journal/data.mdb>) = 0 <0.003000>
7 pwrite64(5</w/journal/data.mdb>, "\\0\\0"..., 120, 32) = 120 <0.002000>
7 openat(AT_FDCWD</w>, "out/part-1-0.data", O_CREAT) = 6</w/out/part-1-0.data> <0.000013>
7 write(6</w/out/part-1-0.data>, "[]", 2) = 2 <0.000010>
8 fsync(6</w/out/part-1-0.data> <unfinished ...>
7 fsync(6</w/out/part-1-0.data>) = 0 <0.000500>
7 +++ exited with 0 +++
"""


def test_a_sync_is_a_call_for_it_or_a_write_through_a_file_that_was_opened_for_it() -> None:
    journal = {"file": "journal", "an_epoch": 1.0, "median_ms": 2.0}
    assert summary(_TRACE, epochs=2) == [
        {**journal, "call": "fdatasync", "p99_ms": 3.0},
        {**journal, "call": "pwrite64, O_DSYNC", "p99_ms": 2.0},
        {"file": "output of the sink", "call": "fsync", "an_epoch": 0.5, "median_ms": 0.5, "p99_ms": 0.5},
    ]
