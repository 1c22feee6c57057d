"""A folder of its own for a tool: it sees short relative names, whatever the paths are.

Nothing that a user named stands in a tool's arguments but the tool itself, so that spaces,
quotes and commas in paths do no harm to tools that split text.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mnnqnn_tasks.errors import ToolError
from mnnqnn_tasks.files import disk_errors
from mnnqnn_tasks.mnn.folder import ModelFolder

#: qnn-model-lib-generator runs make, which cannot have spaces in paths.
_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")

#: The names under which a tool finds the model.
MODEL, WEIGHT, MODEL_DIR = "model/llm.mnn", "model/llm.mnn.weight", "model"


@contextlib.contextmanager
def workplace(folder: Path, *, plain: bool = False) -> Iterator[Path]:
    """Make ``folder`` anew; it is deleted when the block ends without an error.

    Args:
        folder: where; what a failed tool leaves stays there until the next run.
        plain: work in the system's temporary folder if this path has other characters
            than letters, digits and ``_./+-``.

    Raises:
        DiskError: when it cannot be made.
    """
    if plain and not is_plain(folder):
        tops = (tempfile.gettempdir(), "/tmp", "/var/tmp")
        top = next((t for t in tops if is_plain(Path(t)) and os.access(t, os.W_OK)), None)
        with tempfile.TemporaryDirectory(prefix="mnnqnn-", dir=top) as place:
            yield Path(place)
        return
    with disk_errors(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def is_plain(path: Path) -> bool:
    """Whether a path has no characters that make trips over."""
    return _PLAIN.fullmatch(str(path)) is not None


def put_model(place: Path, folder: ModelFolder) -> None:
    """Links to the model's files under the names that MNN's tools expect.

    ``compilefornpu`` and ``generateLlmIO`` take the weights from the model's name and
    ``.weight``, whatever the model's config says.
    """
    names = {f"{MODEL_DIR}/{name}": name for name in folder.files}
    names |= {MODEL: folder.model, WEIGHT: folder.weight}
    with disk_errors(place):
        for link, name in names.items():
            if (folder.path / name).exists():
                (place / link).parent.mkdir(parents=True, exist_ok=True)
                os.symlink(folder.path / name, place / link)


def expect(path: Path, tool: str, label: str, tail: str, log: Path) -> Path:
    """A file that a tool should have made.

    Raises:
        ToolError: it is missing, empty, or no file of its own.
    """
    if path.is_symlink() or not path.is_file():
        why = "it is not there" if not path.exists() else "it is no plain file"
    elif path.stat().st_size == 0:
        why = "it is empty"
    else:
        return path
    raise ToolError(
        f"{tool} ended with exit code 0 and did not make {path.name}",
        where=label,
        why=why,
        todo=f"the whole output is in {log}",
        tail=tail or None,
    )
