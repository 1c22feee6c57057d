"""Finding Qualcomm's libraries, and saying which ones they are, without loading them.

The wheel ``onnxruntime-qnn`` carries ``libQnnHtp.so`` and ``libQnnSystem.so`` for
x86-64 Linux in its package folder.  A folder of a QAIRT SDK can be named instead.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import re
import struct
from pathlib import Path

from mnnqnn_tasks.errors import ToolMissing
from mnnqnn_tasks.files import sha256_file

HTP = "libQnnHtp.so"
SYSTEM = "libQnnSystem.so"
PACKAGE = "onnxruntime_qnn"
MIN_WHEEL = (2, 7, 0)
_TODO = f"python -m pip install 'onnxruntime-qnn>={'.'.join(map(str, MIN_WHEEL))}'"
_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3


def find(lib_dir: Path | None = None) -> Path:
    """The folder with the QNN libraries.

    Args:
        lib_dir: a folder to use instead of the wheel's.

    Raises:
        ToolMissing: no wheel, too old a wheel, or a folder without the libraries.
    """
    if lib_dir is None:
        spec = importlib.util.find_spec(PACKAGE)  # does not import the package
        if spec is None or not spec.submodule_search_locations:
            raise ToolMissing("the wheel onnxruntime-qnn is not installed", todo=_TODO)
        lib_dir = Path(next(iter(spec.submodule_search_locations)))
        version = wheel_version(lib_dir)
        if version is not None and _numbers(version) < MIN_WHEEL:
            raise ToolMissing(
                f"the wheel onnxruntime-qnn {version} is too old", where=str(lib_dir), todo=_TODO
            )
    for name in (HTP, SYSTEM):
        if not (lib_dir / name).is_file():
            raise ToolMissing(
                f"{name} is not in the QNN library folder",
                where=str(lib_dir),
                why="the wheel has these libraries for x86-64 Linux only",
                todo=_TODO,
            )
    return lib_dir.absolute()


def wheel_version(lib_dir: Path) -> str | None:
    """Version of the wheel that put ``lib_dir`` there, None for any other folder."""
    info = _dist_info(lib_dir)
    return None if info is None else info.name.removesuffix(".dist-info").split("-", 1)[1]


def identity(lib_dir: Path | None = None) -> str:
    """A short text that differs whenever the QNN libraries differ.

    For a wheel it is the version and the digests that the wheel's own RECORD has of the
    libraries, guarded by their sizes; otherwise the linker's build id and the size; and only
    for a library with neither the digest of its bytes.  Nothing is loaded.

    Raises:
        ToolMissing: as `find`.
    """
    folder = find(lib_dir)
    recorded = _recorded(folder)
    parts = []
    if recorded and (version := wheel_version(folder)):
        parts.append(f"onnxruntime-qnn {version}")
    for name in (HTP, SYSTEM):
        path = folder / name
        digest, size = recorded.get(name, ("", -1))
        if size != path.stat().st_size:
            build = _build_id(path)
            digest = f"build-id={build}" if build else f"sha256={sha256_file(path)}"
            digest += f" size={path.stat().st_size}"
        parts.append(f"{name} {digest}")
    return "; ".join(parts)


def _numbers(version: str) -> tuple[int, ...]:
    """Leading numbers of a version: ``2.7.0.dev1`` gives (2, 7, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def _dist_info(lib_dir: Path) -> Path | None:
    if lib_dir.name != PACKAGE:
        return None
    found = sorted(lib_dir.parent.glob(f"{PACKAGE}-*.dist-info"))
    return found[-1] if found else None


def _recorded(folder: Path) -> dict[str, tuple[str, int]]:
    """Digest and size of every library in the wheel's RECORD; empty where there is none."""
    info = _dist_info(folder)
    record = info / "RECORD" if info else None
    if record is None or not record.is_file():
        return {}
    entries = {}
    with record.open(encoding="utf-8", newline="") as stream:
        for row in csv.reader(stream):
            if len(row) == 3 and row[0].startswith(f"{PACKAGE}/") and row[1] and row[2].isdigit():
                entries[row[0].removeprefix(f"{PACKAGE}/")] = (row[1], int(row[2]))
    return entries


def _build_id(path: Path) -> str | None:
    """The GNU build id of an ELF file (elf(5), PT_NOTE); None where there is none."""
    with path.open("rb") as stream:
        head = stream.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            return None
        (offset,) = struct.unpack_from("<Q", head, 32)
        entry_size, count = struct.unpack_from("<HH", head, 54)
        stream.seek(offset)
        table = stream.read(entry_size * count)
        for index in range(len(table) // max(entry_size, 56)):
            kind, _, start, _, _, size = struct.unpack_from("<IIQQQQ", table, index * entry_size)
            if kind != _PT_NOTE or size > 1 << 16:
                continue
            stream.seek(start)
            if found := _note(stream.read(size)):
                return found
    return None


def _note(data: bytes) -> str | None:
    at = 0
    while at + 12 <= len(data):
        name_size, size, kind = struct.unpack_from("<III", data, at)
        name = data[at + 12 : at + 12 + name_size]
        at += 12 + (name_size + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and name == b"GNU\0":
            return data[at : at + size].hex()
        at += (size + 3) // 4 * 4
    return None


def short_identity(lib_dir: Path | None = None) -> str:
    """First 16 hex digits of the SHA-256 of `identity`, for keys and folder names."""
    return hashlib.sha256(identity(lib_dir).encode()).hexdigest()[:16]
