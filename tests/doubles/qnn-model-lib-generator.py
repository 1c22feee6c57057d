"""Double of the SDK's ``qnn-model-lib-generator``: packs what it would compile.

The real one runs make, which cannot have spaces in paths, and needs ``QNN_SDK_ROOT``.
"""

from __future__ import annotations

import argparse
import io
import os
import tarfile
from pathlib import Path

from double import main


def work(argv: list[str], mode: str) -> int:
    parser = argparse.ArgumentParser()
    for short in "cbto":
        parser.add_argument(f"-{short}", required=True)
    given = parser.parse_args(argv)
    if " " in os.getcwd() + os.environ["QNN_SDK_ROOT"]:
        print("make: *** No rule to make target")
        return 0
    assert os.path.isdir(os.environ["QNN_SDK_ROOT"])
    source = Path(given.c)
    out = Path(given.o) / given.t / f"lib{source.stem}.so"
    out.parent.mkdir(parents=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo(source.name)
        entry.size = source.stat().st_size
        with source.open("rb") as stream:
            tar.addfile(entry, stream)
        with tarfile.open(given.b) as raws:
            for raw in raws:
                tar.addfile(raw, raws.extractfile(raw))
    out.write_bytes(b"" if mode == "empty" else b"\x7fELF" + packed.getvalue())
    return 0


main(work, "usage: qnn-model-lib-generator [-h] [-c <QNN_MODEL>.cpp] [-b <QNN_MODEL>.bin]")
