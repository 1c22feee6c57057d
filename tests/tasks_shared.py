"""Throw-away projects that share a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks_project import Project, Result

#: Targets of two chips.
TWO = ({"name": "a", "soc_id": 57}, {"name": "b", "soc_id": 69})


class Shared:
    """Projects with one cache."""

    def __init__(self, root: Path, **environment: str) -> None:
        self.root = root
        self.cache = root / "cache"
        self.env = {"MNNQNN_CACHE": "on", "MNNQNN_CACHE_DIR": str(self.cache), **environment}

    def project(self, name: str, **changes: Any) -> Project:
        return Project.create(self.root / name / "p", **changes)

    def doit(self, project: Project, *args: str) -> Result:
        return project.doit(*args, env=self.env)

    def exported(self, name: str, **changes: Any) -> Project:
        project = self.project(name, **changes)
        result = self.doit(project, "export_qnn")
        assert result.code == 0, result.text
        return project


def outcomes(project: Project) -> dict[str, str]:
    """What the cache did for each task, as the journal has it."""
    found = {}
    for line in (project.root / "build" / ".mnnqnn" / "tasks.jsonl").read_text().splitlines():
        task, record = json.loads(line)
        if record:
            found[task] = record["_values_:"].get("cache", {}).get("outcome")
    return found
