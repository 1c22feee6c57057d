"""doit doctor: found and missing things, in a folder with nothing in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from external_doubles import COMPILE, CONTEXT, IO, LLM_IO, mnn_build, qnn_sdk

from mnnqnn_tasks.qnn import run
from mnnqnn_tasks.spec.schemas import schema
from mnnqnn_tasks.tasks import doctor

REPO = Path(__file__).resolve().parents[1]
PIPELINE = "version: 1\nmodels: [{name: m, path: m}]\ntargets: [{soc_id: 57}]\n"


def call(folder: Path, *args: str, **env: str) -> tuple[int, str]:
    here = {name: value for name, value in os.environ.items() if name != "QNN_SDK_ROOT"}
    done = subprocess.run(
        [sys.executable, "-m", "doit", "doctor", *args],
        cwd=folder,
        env={**here, "PYTHONPATH": str(REPO), **env},
        capture_output=True,
        encoding="utf-8",
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def found(folder: Path, *args: str, **env: str) -> tuple[int, list[dict[str, Any]]]:
    code, text = call(folder, "--json", *args, **env)
    value = json.loads(text)
    jsonschema.validate(value, schema("doctor"))
    assert value["ok"] == (code == 0)
    return code, value["findings"]


def test_an_empty_folder_has_all_that_native_needs(tmp_path: Path) -> None:
    code, text = call(tmp_path)
    assert code == 0, text
    assert f"QNN build {run.build_id()}" in text
    assert "prepares graphs for 69 of 69 chips" in text
    assert "no build folder of MNN is named" in text and "no SDK is named" in text
    assert list(tmp_path.iterdir()) == []


def test_tools_are_described(tmp_path: Path) -> None:
    build = mnn_build(tmp_path / "mnn", LLM_IO, IO)
    qnn_sdk(tmp_path / "sdk")
    code, findings = found(
        tmp_path, "--mnn_path", str(build.folder), QNN_SDK_ROOT=str(tmp_path / "sdk")
    )
    words = [finding["what"] for finding in findings]
    assert f"{build.folder / IO} is called with MODEL INPUT_JSON OUT WEIGHT" in words
    assert f"{build.folder / LLM_IO} is called with MODEL_DIR OUT CHUNK, not used" in words
    assert f"{build.folder / COMPILE} reads graph_name, skips, KVCACHE_SIZE_LIMIT" in words
    assert f"{tmp_path / 'sdk'}, version 2.38.0.250901" in words
    assert "it has libraries of devices with v75, v79" in words
    assert f"its QNN build is {run.build_id()}" in words
    # clang++ and make may be missing here, but nothing needs the SDK.
    assert code == 0


def test_what_is_asked_for_and_missing_fails(tmp_path: Path) -> None:
    build = mnn_build(tmp_path / "mnn")
    tools = qnn_sdk(tmp_path / "sdk")
    (tools.folder / CONTEXT).unlink()
    path = build.folder / COMPILE
    path.write_text(path.read_text().replace("QnnModel_composeGraphs", ""))
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "p.yaml").write_text(
        PIPELINE + "toolchain: {partition: external, mnn_path: ../mnn, link: external,"
        " qnn_sdk_root: ../sdk}\n"
    )
    code, findings = found(tmp_path)
    assert code == 1
    missing = {f["what"]: f["todo"] for f in findings if f["state"] == "missing"}
    (built,) = [what for what in missing if "without QNN conversion" in what]
    assert "-DMNN_QNN_CONVERT_MODE=ON" in missing[built]
    assert f"there is no {tools.folder / CONTEXT}" in missing
    assert "SM8650-v75 of p.yaml: the SDK's QNN links for it" in [f["what"] for f in findings]


def test_tools_that_do_not_start(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, text in ((IO, "#!/bin/sh\nyes | head -c 300000\nkill -11 $$"), (COMPILE, "\0\0")):
        (tmp_path / "b" / name).write_text(text)
        (tmp_path / "b" / name).chmod(0o755)
    code, findings = found(tmp_path, "--mnn_path", "b", "--qnn_sdk_root", "b")
    assert code == 1
    missing = [f["what"] for f in findings if f["state"] == "missing" and "usage" in f["what"]]
    assert [what.split(";")[-1] for what in missing] == [" ended by SIGSEGV", " exit code 127"]
    notes = [f["what"] for f in findings if f["state"] == "note"]
    assert len([what for what in notes if what.endswith("is not cached")]) == 2


def test_a_broken_pipeline_and_a_wrong_option(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("version: 2\n")
    code, findings = found(tmp_path, "p.yaml")
    assert code == 1
    assert "p.yaml:1:1: the key" in findings[-1]["what"]
    assert call(tmp_path, "no.yaml")[0] == 1
    assert call(tmp_path, "--nmn_path", "x")[0] == 3


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from mnnqnn_tasks.qnn import library

    monkeypatch.setattr(library, "PACKAGE", "no_such_wheel")
    findings = list(doctor.examine(doctor.Wanted((), {}, {})))
    (finding,) = [f for f in findings if f.state == doctor.MISSING]
    assert "onnxruntime-qnn is not installed" in finding.what
    assert "pip install" in str(finding.todo)


def test_a_chip_that_a_library_does_not_know() -> None:
    from mnnqnn_tasks.qnn import library

    why = doctor.accepts(library.find(), 9999, "v75")
    assert why is not None and "deviceCreate" in why
