"""The options are one value: what `run`, `start` and the command line take, and how mistakes are told."""

from __future__ import annotations

import argparse
import inspect
import typing
from dataclasses import fields
from typing import Any

import pytest

import millwheel as mw
from millwheel.cli.parser import make_parser
from millwheel.errors import PipelineError
from millwheel.master.options import NAMES, Options, OptionValues


@pytest.mark.parametrize(
    ("given", "meant"),
    [("slot", "slots"), ("step_bugdet", "step_budget"), ("max_skews", "max_skew"), ("takeover_", "takeover")],
)
def test_a_mistyped_option_names_the_one_that_was_meant(given: str, meant: str) -> None:
    with pytest.raises(PipelineError, match=rf"unknown option {given}: did you mean {meant}\b"):
        Options.of({given: 1})


def test_an_option_like_no_other_gets_the_list_of_all() -> None:
    with pytest.raises(
        PipelineError, match=r"unknown option zzz; there are slots, tablets, target, .*help\(millwheel.run\)"
    ):
        Options.of({"zzz": 1})


def test_an_option_that_is_none_is_left_at_its_default() -> None:
    given: dict[str, Any] = dict.fromkeys(NAMES)
    assert Options.of(given) == Options()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("slots", 0, "slots is a number from 1"),
        ("slots", "4", "slots is a number from 1"),
        ("slow_after", 0, "slow_after is a number of seconds"),
        ("slow_after", True, "slow_after is a number of seconds"),
        ("cache", -1, "cache is a number of bytes"),
        ("cache", 1.5, "cache is a number of bytes"),
    ],
)
def test_an_option_with_a_wrong_value_is_refused(name: str, value: Any, told: str) -> None:
    with pytest.raises(PipelineError, match=told):
        Options.of({name: value})


def test_type_checkers_and_people_are_told_of_the_same_options() -> None:
    assert tuple(OptionValues.__annotations__) == NAMES
    for function in (mw.run, mw.start):
        shown = inspect.signature(function).parameters
        assert [name for name in shown if name in NAMES] == list(NAMES)
        assert {name: shown[name].default for name in NAMES} == {
            field.name: field.default for field in fields(Options)
        }
    kinds, values = typing.get_type_hints(Options), typing.get_type_hints(OptionValues)
    for name in NAMES:
        assert values[name] in (kinds[name], kinds[name] | None), name


def test_the_command_line_names_options_as_run_does() -> None:
    parser = make_parser()
    command = next(
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    ).choices["run"]
    known = {action.dest for action in command._actions}
    assert {"slots", "cache", "takeover", "accept", "ui"} <= known & set(NAMES)
