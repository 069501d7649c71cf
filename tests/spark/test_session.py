"""The settings of a session are those that its Spark has; a Spark that does not start says what it needs."""

from __future__ import annotations

import pytest
from pyspark import SparkContext

import millwheel as mw
from millwheel.spark.session import local_context, settings_of

SOCKET = "spark.python.unix.domain.socket.enabled"
VERSIONS = ["3.5.0", "3.5.9", "3.5.2-amzn-1", "4.0.5", "4.1.0", "4.1.4", "4.2.1", "4.3.0", "4.10.0.dev0"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_gets_the_settings_that_it_has(version: str) -> None:
    newer = version not in VERSIONS[:4]
    assert (SOCKET in settings_of(version)) == newer
    assert settings_of(version).items() <= settings_of("4.3.0").items()
    assert "spark.task.maxFailures" in settings_of(version)


@pytest.mark.parametrize(
    ("version", "needs"),
    [("3.5.9", "Spark 3.5.9 needs Java 8, 11 or 17;"), ("4.3.0", "Spark 4.3.0 needs Java 17 or newer;")],
)
def test_a_spark_that_does_not_start_says_which_java_it_needs(
    monkeypatch: pytest.MonkeyPatch, version: str, needs: str
) -> None:
    given = {}

    def start(conf: object, ours: bool, java: str) -> None:
        given.update(conf.getAll())  # type: ignore[attr-defined]
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited\nmore")

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)  # that of other tests has settings of its own
    monkeypatch.setattr("pyspark.__version__", version)
    monkeypatch.setattr("millwheel.spark.session.start_jvm", start)
    with pytest.raises(mw.EngineError, match=needs) as raised:
        local_context("local[1]")
    assert "process exited): Spark" in str(raised.value)
    assert (SOCKET in given) == (version == "4.3.0")
