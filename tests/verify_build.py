"""Makes what verification reads, with the real ``doit`` and without linking anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.verify.run import Subject

REPO = Path(__file__).parents[1]
SHARED = REPO.parent / "shared" / "models"
DEMO = REPO / "models" / "tiny-qwen3-w8"
TARGET = TargetOptions(soc_id=57, dsp_arch="v75")


def build(model: Path, root: Path, chunks: Sequence[int]) -> Subject:
    """Samples, plan and translated graphs of ``model`` in the folder ``root``."""
    pipeline = {
        "version": 1,
        "models": [{"name": "m", "path": str(model), "chunk_sizes": list(chunks)}],
        "targets": [{"name": "t57", "soc_id": 57}],
        "build_dir": "../build",
        "dist_dir": "../dist",
    }
    (root / "pipelines").mkdir(parents=True)
    (root / "pipelines" / "p.yaml").write_text(json.dumps(pipeline), "utf-8")
    shutil.copyfile(REPO / "dodo.py", root / "dodo.py")
    done = subprocess.run(
        [sys.executable, "-m", "doit", "translate"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    return Subject("m", "t57", root / "build" / "m", model, (1, *chunks), TARGET)
