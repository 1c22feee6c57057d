"""Finding libGenie: in the wheel, in a folder, or in a wheel file that is unpacked for a while."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from mnnqnn_tasks.errors import GenieError, ToolMissing
from mnnqnn_tasks.files import TEMP_PREFIX
from mnnqnn_tasks.genie.native import LIBRARY
from mnnqnn_tasks.qnn import library

#: Where libGenie lies below a folder that a user names: the folder itself, site-packages or
#: an unpacked wheel, a QAIRT SDK.
_PLACES = (".", library.PACKAGE, "lib/x86_64-linux-clang")

_TODO = (
    "name a folder that holds libGenie.so and libQnnHtp.so for x86-64, such as onnxruntime_qnn of "
    "an unpacked wheel onnxruntime-qnn, or the wheel file itself"
)
_BUILD_ID = re.compile(r"v?(\d+\.\d+\.\d+)")


@contextlib.contextmanager
def opened(source: Path | None) -> Iterator[Path]:
    """The folder with libGenie while the block runs; a wheel file is unpacked for that long.

    Args:
        source: a folder or a wheel file; the installed wheel by default.

    Raises:
        ToolMissing: no libGenie or no QNN libraries there.
        GenieError: the wheel file is damaged.
    """
    if source is None or os.path.isdir(source):
        yield find(source)
        return
    if not os.path.isfile(source):
        raise ToolMissing("there is no such library folder", where=str(source), todo=_TODO)
    folder = tempfile.mkdtemp(prefix=TEMP_PREFIX)
    try:
        _unpack(source, Path(folder))
        yield find(Path(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find(source: Path | None) -> Path:
    """The folder with libGenie and the QNN libraries of the same version.

    Raises:
        ToolMissing: it is not there.
    """
    if source is None:
        found = library.find()
        if not (found / LIBRARY).is_file():
            raise ToolMissing(f"{LIBRARY} is not in the wheel", where=str(found), todo=_TODO)
        return found
    for place in _PLACES:
        if (source / place / LIBRARY).is_file():
            return library.find(source / place)
    raise ToolMissing(f"{LIBRARY} is not in the folder", where=str(source), todo=_TODO)


def _unpack(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            # The parts that are no libraries of Qualcomm's stay in.
            names = [
                name
                for name in archive.namelist()
                if re.search(r"\.so(\.[\d.]+)?$", name) and "providers" not in name
            ]
            archive.extractall(folder, names)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise GenieError(
            "cannot unpack the wheel", where=str(wheel), why=str(error), todo=_TODO
        ) from error


@functools.cache
def version(lib_dir: Path) -> str:
    """Version of the QNN libraries in a folder, as ``2.51.0``.

    Raises:
        QnnError, NativeCrash, ToolMissing: the library cannot be asked.
    """
    from mnnqnn_tasks.qnn import run

    build_id = run.build_id(lib_dir)
    found = _BUILD_ID.match(build_id)
    return found[1] if found else build_id
