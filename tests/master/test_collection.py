"""The collector of cycles is paused while an epoch's reports are added up, and only then."""

from __future__ import annotations

import gc

import pytest

from millwheel.master.collection import paused_collection


def _fail_in_it() -> None:
    with paused_collection():
        assert not gc.isenabled()
        raise ValueError("in it")


def test_it_is_on_again_afterwards_also_after_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="in it"):
        _fail_in_it()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with paused_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
