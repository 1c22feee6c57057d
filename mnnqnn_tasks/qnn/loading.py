"""Loading a context binary on the host: what a runtime on the device does first.

Runs in a worker process.  The emulator takes the steps of a device: it reads the whole binary,
so this needs as much memory as the file is large.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

from mnnqnn_tasks.errors import QnnError
from mnnqnn_tasks.qnn.log import Log
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.qnn.session import Htp

#: What the error says if the library does not load a binary.
REFUSED = "QNN cannot load the context binary"


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[tuple[int, int]]:
    """Address and size of a file in memory; private, so that nothing reaches the file."""
    try:
        with path.open("rb") as stream:
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise QnnError("cannot read the context binary", where=str(path), why=str(error)) from error
    view = ctypes.c_char.from_buffer(memory)
    try:
        yield ctypes.addressof(view), len(memory)
    finally:
        del view
        memory.close()


def load_binary(path: Path, soc_id: int, graphs: Sequence[str], lib_dir: Path) -> list[str]:
    """Create a context from ``path`` and ask it for ``graphs``; names that it does not have.

    Raises:
        QnnError: the library does not know the chip, or does not load the binary.
    """
    log = Log()
    htp = Htp(lib_dir, log)
    backend = htp.backend()
    device = htp.device(TargetOptions(soc_id, ""))
    context = ctypes.c_void_p()
    log.stage(f"load {path.name}")
    with _mapped(path) as (address, size):
        htp.call(
            "contextCreateFromBinary",
            backend,
            device,
            None,
            address,
            size,
            ctypes.byref(context),
            None,
            what=REFUSED,
            where=str(path),
        )
        retrieve, handle = htp.function("graphRetrieve"), ctypes.c_void_p()
        return [
            name
            for name in graphs
            if retrieve(context, name.encode("utf-8", "surrogateescape"), ctypes.byref(handle))
        ]
