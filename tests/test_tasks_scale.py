"""Tens of models for many chips: what it costs to find nothing to do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tasks_project import REPO


@pytest.mark.slow
def test_fifty_models_of_two_hundred_tasks() -> None:
    """CPU and memory of ``export_qnn`` and ``ci_plan`` where nothing is stale."""
    script = [sys.executable, str(REPO / "bench" / "scale.py")]
    result = subprocess.run(
        [*script, "--models", "50", "--chunk", "16"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert [line.split(":")[0].split(",")[0] for line in lines] == ["export_qnn", "ci_plan"] * 2
    assert all("50 models, 10250 tasks" in line and line.endswith(" ok") for line in lines), lines
