"""What a cluster needs is sent there, and what it lacks is said at start-up."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millwheel.errors import StoreError
from millwheel.spark import module_zip, probe
from millwheel.spark.cluster import PACKAGES
from millwheel.store.lmdb.lmdb_store import LmdbStore
from millwheel.store.open import open_store
from tests.architecture.project import project
from tests.servers.cluster import Standalone, driver_environment, python_without, standalone
from tests.servers.processes import Unavailable

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

_ROOT = Path(__file__).parents[2]
_PIPELINE = """
import millwheel as mw
from helping.words import words

class Counts(mw.Computation):
    def process_record(self, record):
        self.state["n"] = self.state.get("n", 0) + 1
        self.set_timer("end", mw.MAX_TIME)

    def process_timer(self, timer):
        self.produce("counts", words(self.key, self.state["n"]), timestamp=0)

def pipeline():
    p = mw.Pipeline("shipped")
    records = [mw.Record(key=f"k{n % 7}", value=n, timestamp=n) for n in range(700)]
    p.inject("numbers", mw.injectors.Records(records))
    p.add(Counts(), inputs={"numbers": mw.by_key}, outputs=["counts"])
    p.sink("counts", mw.sinks.JsonLines(OUT))
    return p
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Standalone]:
    try:
        with standalone(workers=1) as found:
            yield found
    except Unavailable as reason:
        pytest.skip(str(reason))


def _project(folder: Path) -> Path:
    """A user's module, and a package beside it that it imports."""
    project = folder / "project"
    (project / "helping").mkdir(parents=True)
    (project / "helping" / "__init__.py").write_text("")
    (project / "helping" / "words.py").write_text("def words(key, n):\n    return f'{key}: {n}'\n")
    (project / "counting.py").write_text(_PIPELINE.replace("OUT", repr(str(folder / "out"))))
    return project


def _run(cluster: Standalone, folder: Path, python: Path, store: str) -> subprocess.CompletedProcess[str]:
    environment = {**driver_environment(python), "PYTHONPATH": str(_ROOT)}
    command = [*(sys.executable, "-m", "millwheel.cli", "run", "counting:pipeline", "--drain", "--json")]
    return subprocess.run(
        [*command, "--store", store, "--master", cluster.master],
        capture_output=True,
        text=True,
        env=environment,
        cwd=_project(folder),
        timeout=240,
    )


def test_millwheel_run_ships_itself_and_the_users_modules(cluster: Standalone, tmp_path: Path) -> None:
    done = _run(cluster, tmp_path, python_without(tmp_path), str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["records_in"] == 700
    import millwheel as mw

    found = sorted(record.value for record in mw.sinks.JsonLines(tmp_path / "out").records())
    assert found == [f"k{n}: 100" for n in range(7)]


def test_executors_are_asked_for_every_dependency() -> None:
    needed = {re.split("[<>=]", requirement)[0] for requirement in project()["dependencies"]}
    assert set(PACKAGES) == needed - {"pyspark"}


def test_a_package_that_an_executor_lacks_is_named_at_start_up(cluster: Standalone, tmp_path: Path) -> None:
    done = _run(cluster, tmp_path, python_without(tmp_path, "xxhash", "orjson"), str(tmp_path / "store"))
    assert done.returncode == 1
    assert "lacks orjson, xxhash" in done.stderr
    assert "pip install orjson==" in done.stderr
    assert "Traceback" not in done.stderr


def _message(stderr: str) -> str:
    """The line that says what happened; behind it comes where the whole trace is."""
    *_, line = (line for line in stderr.splitlines() if line.startswith("millwheel: "))
    return line


def test_a_python_that_an_executor_cannot_start_is_said(cluster: Standalone, tmp_path: Path) -> None:
    done = _run(cluster, tmp_path, tmp_path / "no-such-python", str(tmp_path / "store"))
    assert done.returncode == 1
    assert "Cannot run program" in _message(done.stderr)
    assert "PYSPARK_PYTHON names the Python they start" in done.stderr


def test_lmdb_is_refused_where_an_executor_does_not_see_the_disk(cluster: Standalone, tmp_path: Path) -> None:
    hidden = tmp_path / "disk of the driver"
    hidden.mkdir()
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("this user may not hide a folder from an executor")
    done = _run(cluster, tmp_path, python_without(tmp_path, hidden=hidden), str(hidden / "store"))
    assert done.returncode == 1
    assert "is on the driver's disk, and an executor on the host" in done.stderr
    assert "postgresql://" in done.stderr
    assert "Traceback" not in done.stderr


def test_modules_of_ones_own_are_shipped_and_installed_ones_are_not() -> None:
    found = module_zip.own_modules()
    assert found["millwheel"].name == "millwheel"
    assert "tests" in found
    assert not {"pytest", "lmdb", "json", "pyspark"} & found.keys()


def test_the_same_modules_give_the_same_zip(tmp_path: Path) -> None:
    assert module_zip.pack_modules(tmp_path).name == module_zip.pack_modules(tmp_path).name


def test_a_worker_never_makes_a_store_that_is_not_there(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "store")
    address = store.address
    store.close()
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"there is none: LMDB serves the processes of one machine"):
        open_store(address)
    assert not (tmp_path / "store").exists()
    LmdbStore(tmp_path / "store").close()
    with pytest.raises(StoreError, match="there is another one"):
        open_store(address)


def test_an_executor_sees_a_file_by_its_token(tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    sign.write_text("token")
    (seen,) = probe.Question(path=str(sign), token="token")([])
    (other,) = probe.Question(path=str(sign), token="another")([])
    (nothing,) = probe.Question(packages=("no_such_package", "json"), path=str(tmp_path / "none"))([])
    assert seen["sees"]
    assert not other["sees"]
    assert not nothing["sees"]
    assert nothing["missing"] == ["no_such_package"]
    assert seen["machine"] == probe.machine()
