"""Jars of Maven Central, fetched once into the user's cache folder with ``mvn``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers.processes import Unavailable

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millwheel</groupId><artifactId>for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""

_SETTINGS = """<settings><mirrors><mirror>
  <id>none</id><mirrorOf>*,!central</mirrorOf><url>file:///dev/null</url>
</mirror></mirrors></settings>
"""
"""Projects name repositories of their own, which need not be reachable where Central is: none is asked."""


def fetched(name: str, group: str, artifact: str, version: str) -> Path:
    """A folder with an artifact and what it needs; `Unavailable` says why it cannot be had."""
    if shutil.which("java") is None:
        raise Unavailable(f"{name} needs Java, which is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "millwheel" / name
    if folder.is_dir():
        return folder
    if shutil.which("mvn") is None:
        raise Unavailable(f"{name} is fetched with mvn, which is not installed")
    with tempfile.TemporaryDirectory(prefix="millwheel-jars-") as work:
        pom = _POM.format(group=group, artifact=artifact, version=version)
        (Path(work) / "pom.xml").write_text(pom)
        (Path(work) / "settings.xml").write_text(_SETTINGS)
        try:
            done = subprocess.run(
                [
                    *(
                        "mvn",
                        "-q",
                        "-B",
                        "-Dstyle.color=never",
                        "-s",
                        "settings.xml",
                        "dependency:copy-dependencies",
                    ),
                    *("-DoutputDirectory=jars", "-DincludeScope=runtime"),
                ],
                cwd=work,
                capture_output=True,
                text=True,
                timeout=240,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{name} could not be fetched in time") from None
        if done.returncode:
            # Maven's own words have escape codes and the registry's address in them.
            missing = re.search(r"([\w.-]+:[\w.-]+:jar:[\w.-]+) (?:was|in) ", done.stdout)
            reason = f"{missing[1]} is not there" if missing else "Maven failed"
            raise Unavailable(f"{name} could not be fetched: {reason}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        staged = folder.with_name(f".{folder.name}-{os.getpid()}")
        shutil.copytree(Path(work) / "jars", staged)
        try:
            staged.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(staged)
    return folder
