"""What the first bytes of a context binary tell where libQnnSystem refuses the file.

Binaries of QNN 2.47 to 2.51 begin with the same 16 bytes; at 24 stands where the backend's part
begins, at 32 its length, and it ends the file.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

_MAGIC = bytes.fromhex("00000002 00000003 00000000 00000001")
_HEAD = struct.Struct("<16s8xQQ")


def reason(path: Path) -> str | None:
    """How a context binary was damaged; None for a file that is none."""
    try:
        with path.open("rb") as stream:
            head, size = stream.read(_HEAD.size), os.fstat(stream.fileno()).st_size
    except OSError:
        return None
    if len(head) < _HEAD.size:
        return None
    magic, begin, length = _HEAD.unpack(head)
    if magic != _MAGIC:
        return None
    told = begin + length
    if size == told:
        return "bytes of its metadata were changed after it was compiled"
    how = (
        "it was cut off"
        if size < told
        else "bytes were put in after it was compiled, as by giving a graph a longer name"
    )
    return f"its header tells of {told} bytes, and it has {size}: {how}"
