"""A process whose wall clock is wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.servers.processes import Unavailable

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += AHEAD;
    return failed;
}
"""


def ahead(seconds: int, folder: Path) -> dict[str, str]:
    """What a process has in its environment to be ahead; `Unavailable` says why there is none."""
    if (compiler := shutil.which("gcc") or shutil.which("cc")) is None:
        raise Unavailable("a clock that is wrong needs a C compiler, which is not installed")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_SOURCE)
    command = [compiler, "-shared", "-fPIC", f"-DAHEAD={seconds}", "-o", library, source, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"a clock that is wrong could not be compiled: {done.stderr.strip()[-300:]}")
    return {"LD_PRELOAD": str(library)}
