"""A Kafka broker of one's own, in KRaft mode on loopback: `broker()`, or the fixture `kafka`.

The broker is the one of Maven Central.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.jars import fetched
from tests.servers.processes import Unavailable, await_answer, free_port, listens, stop

VERSION = "4.1.0"  # runs on Java 17

_CONFIG = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
auto.create.topics.enable=false
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
"""


@dataclass
class Broker:
    """A running broker."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def make_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Makes a topic; gives its name."""
        from confluent_kafka.admin import AdminClient, NewTopic

        client = AdminClient({"bootstrap.servers": self.servers})
        topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): v for key, v in config.items()})
        client.create_topics([topic])[name].result(30)
        return name

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stops the broker; SIGKILL is a crash."""
        stop(self.process, number)

    def start(self) -> None:
        """Starts it again, on the same port and data."""
        self.process = _start(self.folder, self.port)


@contextmanager
def broker() -> Iterator[Broker]:
    """A broker that is stopped and removed at the end; `Unavailable` says why there is none."""
    jars = _jars()
    folder = Path(tempfile.mkdtemp(prefix="millwheel-kafka-"))
    try:
        port = free_port()
        config = folder / "server.properties"
        config.write_text(_CONFIG.format(port=port, controller=free_port(), folder=folder))
        made = subprocess.run(
            [
                *("java", "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format"),
                *("-t", uuid.uuid4().hex[:22], "-c", os.fspath(config)),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if made.returncode:
            raise Unavailable(f"Kafka's storage could not be made: {made.stderr.strip()[-200:]}")
        found = Broker(folder, port, _start(folder, port))
        try:
            yield found
        finally:
            found.stop(signal.SIGKILL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{_jars()}/*", "kafka.Kafka"]
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [*command, os.fspath(folder / "server.properties")], stdout=log, stderr=log, cwd=folder
        )
    await_answer(lambda: listens(port), process, "Kafka")
    return process


def _jars() -> Path:
    """The broker's jars."""
    return fetched(f"kafka-{VERSION}", "org.apache.kafka", "kafka_2.13", VERSION)
