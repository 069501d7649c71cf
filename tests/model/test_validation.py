"""A pipeline is checked when it is built or run, and each mistake has its own message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from tests.computations import Counter, Echo, Hooks, Log, hooks, single


def injected() -> mw.Pipeline:
    p = mw.Pipeline("checked")
    p.inject("in", mw.injectors.Records([]))
    return p


def check(p: mw.Pipeline) -> None:
    """What `run`, `start` and the harness do first."""
    mw.testing.Harness(p)


def test_reading_a_stream_that_nobody_writes_names_the_reader_and_the_stream() -> None:
    p = injected()
    p.add(Counter(), inputs={"nothing like it": mw.by_key}, outputs=["counts"])
    with pytest.raises(
        mw.PipelineError, match=r"'checked'.*'Counter' reads stream 'nothing like it', which nobody writes"
    ):
        check(p)


def test_a_misspelt_stream_is_told_the_right_name() -> None:
    p = injected()
    p.add(Echo("queries"), inputs={"in": mw.by_key}, outputs=["queries"])
    p.add(Counter(), inputs={"querys": mw.by_key}, outputs=["counts"])
    with pytest.raises(mw.PipelineError, match="did you mean 'queries'"):
        check(p)


def test_a_sink_of_a_stream_that_nobody_writes_says_so() -> None:
    p = injected()
    p.sink("nothing like it", mw.sinks.Collect())
    with pytest.raises(
        mw.PipelineError, match=r"a sink takes stream 'nothing like it', which nobody writes.*in"
    ):
        check(p)


def test_two_computations_of_one_name_are_refused_when_the_second_is_added() -> None:
    p = injected()
    p.add(Counter(), inputs={"in": mw.by_key}, outputs=["counts"])
    with pytest.raises(mw.PipelineError, match=r"two computations of the name 'Counter'.*name="):
        p.add(Counter(), inputs={"in": mw.by_key}, outputs=["other"])


def test_the_name_defaults_to_the_class_name_and_may_be_given() -> None:
    p = injected()
    p.add(Counter(), inputs={"in": mw.by_key}, outputs=["counts"])
    p.add(Counter(), name="Counter 2", inputs={"in": mw.by_key}, outputs=["counts"])
    h = mw.testing.Harness(p)
    assert set(h.status().records) == {"Counter", "Counter 2"}


def test_a_cycle_is_named_by_its_path() -> None:
    p = injected()
    p.add(Echo("b"), name="A", inputs={"in": mw.by_key, "c": mw.by_key}, outputs=["b"])
    p.add(Echo("c"), name="B", inputs={"b": mw.by_key}, outputs=["c"])
    with pytest.raises(
        mw.PipelineError, match=r"'checked' has a cycle: .*A.*B.*A|'checked' has a cycle: .*B.*A.*B"
    ):
        check(p)


def test_a_computation_that_reads_its_own_output_is_a_cycle() -> None:
    p = injected()
    p.add(Echo("out"), name="A", inputs={"in": mw.by_key, "out": mw.by_key}, outputs=["out"])
    with pytest.raises(mw.PipelineError, match="cycle: A <- A"):
        check(p)


def test_a_computation_that_reads_its_own_errors_is_a_cycle() -> None:
    p = injected()
    p.add(Echo("out"), name="A", inputs={"in": mw.by_key, "A.errors": mw.by_key}, errors="divert")
    with pytest.raises(mw.PipelineError, match="cycle"):
        check(p)


def test_two_readers_of_one_stream_are_no_cycle() -> None:
    p = injected()
    p.add(Echo("a"), name="A", inputs={"in": mw.by_key}, outputs=["a"])
    p.add(Echo("b"), name="B", inputs={"in": mw.by_key, "a": mw.by_key}, outputs=["b"])
    p.add(Echo("c"), name="C", inputs={"a": mw.by_key, "b": mw.by_key}, outputs=["c"])
    check(p)


def test_computations_may_be_added_before_those_that_they_read_from() -> None:
    p = mw.Pipeline("backwards")
    p.add(Log(), inputs={"out": mw.by_key}, outputs=["log"])
    p.add(Echo(), inputs={"in": mw.by_key}, outputs=["out"])
    p.inject("in", mw.injectors.Records([]))
    h = mw.testing.Harness(p)
    h.send("in", 1, timestamp=0)
    assert len(h.output("log")) == 1


def test_a_pipeline_without_an_injector_says_so() -> None:
    p = mw.Pipeline("nothing")
    with pytest.raises(mw.PipelineError, match="'nothing' has no injector"):
        check(p)


def test_a_pipeline_without_computations_is_fine() -> None:
    h = mw.testing.Harness(injected())
    h.send("in", 1, timestamp=0)
    h.drain()
    assert len(h.output("in")) == 1


def test_an_extractor_that_returns_no_str_names_computation_stream_and_record() -> None:
    h = mw.testing.Harness(single(Counter(), key=lambda record: 1.5, outputs=["counts"]))
    with pytest.raises(mw.UserCodeError, match=r"'C', stream 'in'.*returned 1\.5.*timestamp=3"):
        h.send("in", 1, timestamp=3)


def test_a_record_that_a_codec_cannot_encode_names_the_computation() -> None:
    h = mw.testing.Harness(hooks(lambda c, record: c.produce("out", {1, 2})))
    with pytest.raises(mw.UserCodeError, match=r"'C', stream 'out'.*set"):
        h.send("in", 1, timestamp=3)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda p: mw.Pipeline(""), "a pipeline has a name"),
        (lambda p: mw.Pipeline(None), "a pipeline has a name"),
        (lambda p: p.inject("", mw.injectors.Records([])), "a stream has a name"),
        (lambda p: p.inject("x", [1, 2]), r"'x'.*not a millwheel\.Injector"),
        (lambda p: p.sink("in", print), r"'in'.*not a millwheel\.Sink"),
        (lambda p: p.add(Counter, inputs={"in": mw.by_key}), "an instance, not the class"),
        (lambda p: p.add(print, inputs={"in": mw.by_key}), r"millwheel\.Computation"),
        (lambda p: p.add(Counter(), inputs={"in": "user"}), r"by\('user'\)"),
        (lambda p: p.add(Counter(), inputs=["in"]), "maps each stream to its key extractor"),
        (lambda p: p.add(Counter(), inputs={"in": mw.by_key}, outputs="counts"), "list of streams"),
        (lambda p: p.add(Counter(), inputs={"in": mw.by_key}, outputs=[""]), "a stream has a name"),
        (
            lambda p: p.add(Counter(), inputs={"in": mw.by_key}, late="ignore"),
            '"deliver", "drop" or "divert"',
        ),
        (lambda p: p.add(Counter(), inputs={"in": mw.by_key}, errors="ignore"), '"stop" or "divert"'),
        (lambda p: p.add(Counter(), inputs={"in": mw.by_key}, name=""), "a computation has a name"),
        (lambda p: p.remove("nobody"), "no computation 'nobody'"),
    ],
)
def test_a_wrong_argument_says_what_was_expected(mistake: Callable[[Any], object], message: str) -> None:
    with pytest.raises(mw.PipelineError, match=message):
        mistake(injected())


def test_a_codec_without_decode_is_refused() -> None:
    class Half(mw.Computation):
        codec = type("HalfCodec", (), {"encode": staticmethod(bytes)})()

    with pytest.raises(mw.PipelineError, match=r"'Half'.*no decode"):
        injected().add(Half(), inputs={"in": mw.by_key})


def test_remove_takes_a_computation_out() -> None:
    p = injected()
    p.add(Echo(), inputs={"in": mw.by_key}, outputs=["out"])
    p.add(Log(), inputs={"in": mw.by_key}, outputs=["log"])
    p.remove("Echo")
    h = mw.testing.Harness(p)
    h.send("in", 1, timestamp=0)
    assert set(h.status().records) == {"Log"}
    with pytest.raises(mw.PipelineError):
        h.output("out")


def test_removing_a_producer_leaves_its_readers_without_their_stream() -> None:
    p = injected()
    p.add(Echo(), inputs={"in": mw.by_key}, outputs=["out"])
    p.add(Log(), inputs={"out": mw.by_key}, outputs=["log"])
    p.remove("Echo")
    with pytest.raises(mw.PipelineError, match="'out', which nobody writes"):
        check(p)


def test_run_checks_the_pipeline_before_it_starts_anything(tmp_path: Any) -> None:
    p = injected()
    p.add(Counter(), inputs={"nothing like it": mw.by_key}, outputs=["counts"])
    store = tmp_path / "store"
    with pytest.raises(mw.PipelineError, match="nobody writes"):
        mw.run(p, store=str(store))
    assert not store.exists()


def test_run_names_the_options_it_has(tmp_path: Any) -> None:
    with pytest.raises(mw.PipelineError, match=r"(?s)unknown option speed.*slots"):
        mw.run(injected(), store=str(tmp_path / "store"), speed=11)


def test_every_error_is_a_millwheel_error() -> None:
    for error in (mw.PipelineError, mw.CodecError, mw.InputError, mw.StoreError, mw.UserCodeError):
        assert issubclass(error, mw.MillWheelError)


def test_a_computation_may_have_no_outputs() -> None:
    p = injected()
    p.add(Hooks(lambda c, record: c.state.update(n=1)), name="C", inputs={"in": mw.by_key})
    h = mw.testing.Harness(p)
    h.send("in", 1, timestamp=0)
    assert h.state("C", "") == {"n": 1}
