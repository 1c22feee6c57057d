"""The README says what the schema says, and its examples work."""

from __future__ import annotations

import json
import re
from pathlib import Path

from mnnqnn_tasks.spec.genie import GeniePipeline
from mnnqnn_tasks.spec.load import load_any, load_pipeline
from mnnqnn_tasks.spec.schemas import schema
from mnnqnn_tasks.spec.soc import table

REPO = Path(__file__).resolve().parent.parent
README = (REPO / "README.md").read_text("utf-8")


def test_the_pipeline_of_the_readme_loads(tmp_path: Path) -> None:
    block = re.findall(r"```yaml\n(.*?)```", README, re.S)[0]
    path = tmp_path / "pipelines" / "p.yaml"
    path.parent.mkdir()
    path.write_text(re.sub(r"^   ", "", block, flags=re.M))
    pipeline = load_pipeline(path)
    assert pipeline.targets[0].soc_model == "SM8650"
    assert pipeline.build_dir == tmp_path / "build"


def test_the_genie_pipeline_of_the_readme_loads(tmp_path: Path) -> None:
    (block,) = re.findall(r"```\n(version: 1\nkind: genie\n.*?)```", README, re.S)
    path = tmp_path / "g.yaml"
    path.write_text(block)
    pipeline = load_any(path)
    assert isinstance(pipeline, GeniePipeline)
    assert pipeline.models[0].splits == 11


def test_the_dodo_file_of_the_readme_is_ours() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    ours = (REPO / "dodo.py").read_text()
    for line in block.split("\n"):
        assert line.strip() in ours


def test_every_key_and_default_is_in_the_reference() -> None:
    rows = dict(re.findall(r"^\| (`.*?) \| (.*?) \|", README, re.M))
    rows = {key.replace("`", ""): value.strip("`") for key, value in rows.items()}
    spec = schema("pipeline")
    expected = {key: spec["properties"][key] for key in spec["properties"]}
    for section, name in (("models", "model"), ("targets", "target")):
        del expected[section]
        for key, value in spec["$defs"][name]["properties"].items():
            expected[f"{section}[].{key}"] = value
    for section in ("cache", "toolchain"):
        del expected[section]
        for key, value in spec["$defs"][section]["properties"].items():
            expected[f"{section}.{key}"] = value
    named = {part for key in rows for part in key.replace("or soc", "targets[].soc").split()}
    assert set(expected) <= named
    for key, value in expected.items():
        if "default" in value:
            text = value["default"]
            assert rows[key] == (text if isinstance(text, str) else json.dumps(text)), key


def test_marketing_names_are_those_of_the_reference() -> None:
    names = re.findall(r"`(8 [A-Z]\w+(?: \d)?)`", README)
    assert {table().find(name).soc_id for name in names} == {36, 43, 57, 69}  # type: ignore[union-attr]


def test_the_two_commands_are_what_the_check_runs() -> None:
    commands = re.findall(r"```sh\n(.*?)```", README, re.S)
    assert len(commands) == 2
    assert commands[0].startswith("python3 -m venv") and "doit export_qnn" in commands[0]
    assert commands[1].startswith(".venv/") and "pytest" in commands[1]
    found = re.findall(r"^(?:python3|\.venv/).*$", README, re.M)
    assert found == [command.strip() for command in commands]
