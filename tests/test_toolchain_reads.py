"""What a stage reads, as other machines are told, and what it does read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opened_files import Watch
from tasks_project import REPO, Project

from mnnqnn_tasks.tasks.executor import REMOTE
from mnnqnn_tasks.toolchain.reads import reads

_HOOK = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from opened_files import note_stages
note_stages(Path({root!r}), Path({note!r}))
"""


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Every stage of an export: its name, arguments and the files that were opened."""
    folder = tmp_path_factory.mktemp("reads")
    note = folder / "note"
    project = Project.create(folder / "p")
    with open(project.root / "dodo.py", "a", encoding="utf-8") as dodo:
        dodo.write(_HOOK.format(tests=str(REPO / "tests"), root=str(project.root), note=str(note)))
    result = project.doit("-n", "1", "export_qnn", "io")
    assert result.code == 0, result.text
    return [json.loads(line) for line in note.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("stage", sorted(REMOTE))
def test_no_stage_opens_another_file(stages: list[dict[str, Any]], stage: str) -> None:
    (index,) = (line["arguments"]["out"] for line in stages if line["stage"] == "index")
    known = json.loads(Path(index).read_text("utf-8"))["files"]
    model = {name: said["sha256"] for name, said in known.items()}
    done = [line for line in stages if line["stage"] == stage]
    assert done
    for line in done:
        arguments = line["arguments"]
        named = {read.path for read in reads(stage, arguments, model)}
        memory = {arguments.get("digests")}  # of what is read where nobody remembers it
        assert set(line["opened"]) - memory <= named
        assert all(Path(path).is_file() for path in named)


def test_the_watch_sees_what_is_opened(tmp_path: Path) -> None:
    for name in ("read", "not read"):
        (tmp_path / name).write_text(name)
    watch = Watch(tmp_path)
    (tmp_path / "read").read_text()
    (tmp_path / "new").write_text("")
    assert watch.end() == {str(tmp_path / "read")}
