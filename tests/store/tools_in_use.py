"""The commands that touch a store, and what each may answer while a pipeline is made, run and killed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millwheel.cli import main

_ROOT = Path(__file__).parents[2]
_NEVER = ("is damaged", "Traceback", "WRONG", "wrong checksum")  # whatever a tool says
_POLLS = 10  # of one page

ABSENT = (
    "there is no store at PATH$",
    "the store PATH is not finished: a pipeline that starts is making it now, or was interrupted doing so",
    "the store has no pipeline in it yet(: there is nothing to change; run it)?$",
)
"""How every command is refused until the first run has made the store."""
_HOLDERS = "the pipeline|millwheel store (copy|compact|forget), process N|another driver"
IN_USE = (f"the store PATH is in use by ({_HOLDERS}): one driver runs a pipeline at a time",)
"""How a command that needs the store for itself is refused; another driver has not given its name yet."""
NOT_RUNNING = (
    "no pipeline runs on this store: start it first$",
    "no pipeline has begun to run on this store yet: ask again in a moment$",
    "the pipeline ended without an answer: see its log$",
    "the pipeline has ended$",
)
"""How a command that asks the pipeline is refused when there is none, or it ends or is killed meanwhile."""


@dataclass(frozen=True)
class Tool:
    """A command, and the messages with which it may be refused: otherwise its status is 0."""

    name: str
    arguments: tuple[str, ...]
    refusals: tuple[str, ...] = ABSENT
    always: bool = False
    """Whether it must be refused."""


@dataclass
class Found:
    """What one process has found: by command, how often each status was there, and what was wrong."""

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def note(self, tool: Tool, status: int, text: str, path: str, done: int = 0) -> None:
        """Notes an answer; ``done`` is the status of success."""
        self.statuses.setdefault(tool.name, Counter())[status] += 1
        if reason := _wrong(tool, status, text, path, done):
            self.wrong.append(f"{tool.name}: {reason}: status {status}: {text}")


def call(arguments: list[str]) -> tuple[int, str]:
    """A command in this process: its status, and all that it says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status = main(arguments)
        except BaseException:
            status = 2
            traceback.print_exc()
    return status, said.getvalue()


def _wrong(tool: Tool, status: int, text: str, path: str, done: int) -> str | None:
    if any(word in text for word in _NEVER):
        return "it says what it must never say"
    if status == done:
        return "it was not refused" if tool.always else None
    if status != 1 or not is_refused(text, tool.refusals, path):
        return "that is no answer"
    return None


def is_refused(text: str, refusals: tuple[str, ...], path: str) -> bool:
    """Whether the last line of a command is one of its refusals."""
    *_, last = text.strip().splitlines() or [""]
    last = re.sub("process [0-9]+", "process N", last.replace(path, "PATH"))
    return any(re.match(f"millwheel: {refusal}", last) for refusal in refusals)


def tools(path: str, factory: str, scratch: Path, turn: int) -> Iterator[Tool]:
    """Those that look, each once, and one of the others."""
    store = ("--store", path)
    yield Tool("status", ("status", *store))
    yield Tool("top", ("top", "--count", "2", "--every", "0.01", *store))
    yield Tool("explain", ("explain", "Sums", *store))
    yield Tool("inspect", ("inspect", "Sums", "user 3", *store))
    yield Tool("apply --dry-run", ("apply", factory, "--dry-run", *store))
    yield Tool("store check", ("store", "check", path))
    copied, exported = (str(scratch / f"{what}-{os.getpid()}") for what in ("copy", "export"))
    slots, asked = str(1 + turn // 6 % 2), (*ABSENT, *NOT_RUNNING)
    others = (
        Tool("apply", ("apply", factory, *store), asked),
        Tool("rescale", ("rescale", slots, *store), asked),
        Tool("store compact", ("store", "compact", path), (*ABSENT, *IN_USE)),
        Tool("store copy", ("store", "copy", path, copied), (*ABSENT, *IN_USE)),
        Tool(
            "store forget",
            ("store", "forget", "Nobody", *store),
            (*ABSENT, "the store has no computation 'Nobody': it has (Sums|Sums, Seen|none)$"),
            always=True,
        ),
        Tool("store export", ("store", "export", path, exported)),
    )
    yield others[turn % len(others)]
    for folder in (copied, exported):
        shutil.rmtree(folder, ignore_errors=True)


def view_page(path: str, found: Found) -> None:
    """`millwheel ui` in a process: its page is polled for a while, and then it is interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a parent ignores, its children ignore
    page = subprocess.Popen(
        [sys.executable, "-m", "millwheel.cli", "ui", "0", "--store", path],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    tool = Tool("ui", ())
    try:
        assert page.stdout is not None
        url = page.stdout.readline().partition(" ")[0]
        for _ in range(_POLLS if url else 0):
            for part in ("api/status", "api/explain?computation=Sums", "api/key?computation=Sums&key=user+3"):
                _poll(url + part, path, found)
        page.send_signal(signal.SIGINT)
        text, error = page.communicate(timeout=60)
    finally:
        page.kill()
    found.note(tool, page.returncode, text + error, path, done=128 + signal.SIGINT)


def _poll(url: str, path: str, found: Found) -> None:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            status, text = 0, json.dumps(json.load(answer))
    except urllib.error.HTTPError as error:
        status, text = 1, f"{error.code} {error.read().decode()}"
    found.note(Tool("page", (), ()), status, text, path)
