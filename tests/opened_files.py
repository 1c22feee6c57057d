"""Notes which files are opened below a folder while a stage is done, by whatever program.

The kernel tells (inotify), so it does not matter who opens: Python, MNN, QNN, a helper.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_IN_OPEN, _IN_CREATE, _IN_ISDIR = 0x20, 0x100, 0x40000000
_EVENT = struct.Struct("iIII")


class Watch:
    """The files below ``root`` that anybody has opened since it was made.

    Not those in folders that came later: what reads is there before.
    """

    def __init__(self, root: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._fd >= 0, os.strerror(ctypes.get_errno())
        self._folders = {}
        for folder, _, _ in os.walk(root):
            number = libc.inotify_add_watch(self._fd, os.fsencode(folder), _IN_OPEN | _IN_CREATE)
            assert number >= 0, os.strerror(ctypes.get_errno())
            self._folders[number] = folder

    def end(self) -> set[str]:
        """The files; those that were new are not among them."""
        opened: set[str] = set()
        created: set[str] = set()
        with os.fdopen(self._fd, "rb", buffering=0) as stream:
            while data := stream.read(1 << 16):
                while data:
                    number, mask, _, length = _EVENT.unpack_from(data)
                    name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
                    data = data[_EVENT.size + length :]
                    assert number >= 0, "more events than the kernel keeps"
                    path = os.path.join(self._folders[number], os.fsdecode(name))
                    if not mask & _IN_ISDIR:
                        (created if mask & _IN_CREATE else opened).add(path)
        return opened - created


def note_stages(root: Path, note: Path) -> None:
    """From now on, add a line to ``note`` for each stage that this process does."""
    from mnnqnn_tasks.toolchain import work

    perform = work.perform

    def noted(stage: str, arguments: Mapping[str, Any]) -> work.Work:
        watch = Watch(root)
        done = perform(stage, arguments)
        made = {*done.made}  # it may look at what an earlier run left in their place
        made |= {os.path.join(arguments["blobs"], name) for name in done.values.get("blobs", ())}
        opened = sorted(watch.end() - made)
        line = {"stage": stage, "arguments": dict(arguments), "opened": opened}
        with open(note, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        return done

    work.perform = noted
