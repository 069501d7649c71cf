"""A zip of modules for executors: this package, and the user's own modules.

Everything that the driver has imported from outside Python's library and its installed packages is
included: the module of ``millwheel run MODULE:FACTORY``, the modules beside a script, a package in
development. Installed packages must be installed on the executors. Compiled modules (``.so``) cannot be
imported from a zip and are left out.
"""

from __future__ import annotations

import hashlib
import os
import py_compile
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from millwheel.errors import PipelineError

_LARGEST_FILE = 1 << 20  # bytes: data beside a module; larger files belong on a shared file system
_LARGEST = 64 << 20  # bytes in total: it is sent to every executor
_LEFT_OUT = {".so", ".pyd", ".pyc"}
_WHEN = (2000, 1, 1, 0, 0, 0)  # one time for all, so that the same content gives the same zip


def own_modules() -> dict[str, Path]:
    """By name: each top-level module or package that executors lack, and its path."""
    installed = [Path(path).resolve() for path in {*sysconfig.get_paths().values(), *_site_packages()}]
    found = {"millwheel": Path(__file__).resolve().parents[1]}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or name in found or name == "__main__" or file is None:
            continue
        path = Path(file).resolve()
        if path.suffix != ".py" or any(path.is_relative_to(folder) for folder in installed):
            continue
        if path.stem == name:
            found[name] = path
        elif path.name == "__init__.py" and path.parent.name == name:
            found[name] = path.parent
    return found


def _site_packages() -> list[str]:
    """Folders of installed packages, those outside of a virtual environment included."""
    return [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]


def pack_modules(folder: Path) -> Path:
    """Writes `own_modules` to a zip in a folder, named by its content."""
    entries = dict(sorted(_entries()))
    size = sum(map(len, entries.values()))
    if size > _LARGEST:
        largest = sorted(entries, key=lambda name: -len(entries[name]))[:3]
        raise PipelineError(
            f"the modules that the executors need take {size >> 20} MB, {', '.join(largest)} the most of it: "
            "keep data outside of packages, or install the package on the executors"
        )
    digest = hashlib.blake2b(digest_size=8)
    for name, data in entries.items():
        digest.update(name.encode() + b"\x00" + data)
    path = folder / f"millwheel-{digest.hexdigest()}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _WHEN), data, zipfile.ZIP_DEFLATED)
    return path


def _entries() -> Iterator[tuple[str, bytes]]:
    """Names and contents, with byte code, which saves each Python worker compiling."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, path in own_modules().items():
            for file in [path] if path.is_file() else _files(path):
                inside = os.fspath(Path(name) / file.relative_to(path)) if path.is_dir() else file.name
                yield inside, file.read_bytes()
                if file.suffix == ".py":
                    compiled = _compiled(file, inside, Path(scratch))
                    if compiled is not None:
                        yield inside + "c", compiled


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)
        if hidden or not path.is_file() or path.suffix in _LEFT_OUT:
            continue
        if path.suffix == ".py" or path.stat().st_size <= _LARGEST_FILE:
            yield path


def _compiled(file: Path, inside: str, scratch: Path) -> bytes | None:
    """Byte code with its path in the zip; None if it is not Python of this version."""
    target = scratch / "compiled"
    try:
        py_compile.compile(
            os.fspath(file),
            os.fspath(target),
            inside,
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    except (py_compile.PyCompileError, OSError):
        return None
    return target.read_bytes()
