"""The index of a model: digests of what it holds, and clear words for what is missing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from mnnqnn_tasks.cache.statcache import DigestCache
from mnnqnn_tasks.errors import ModelFileError, StaleInputError
from mnnqnn_tasks.files import canonical_json
from mnnqnn_tasks.mnn import index as index_module
from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.index import ModelIndex, index_model
from mnnqnn_tasks.mnn.params import net_ranges
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.mnn.writer import write

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ROOT / "models" / "tiny-qwen3-w8"
OTHERS = sorted((ROOT.parent / "shared" / "models").glob("*"))
MODELS = [BUNDLED, *(path for path in OTHERS if path.name != BUNDLED.name)]
SCHEMA = json.loads((ROOT / "schemas" / "model.schema.json").read_text("utf-8"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "mod\u00e8le \u6a21\u578b 'x'"
    shutil.copytree(BUNDLED, folder)
    return folder


def some_input() -> Table:
    """An Input op: a model without one is refused."""
    main = Table("Input", {"dims": np.array([1, 1, 64], np.int32), "dtype": "DT_FLOAT"})
    return Table("Op", {"type": "Input", "name": "input_ids", "main": main})


def edit(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text("utf-8"))
    for key, change in changes.items():
        value.pop(key, None)
        if change is not None:
            value[key] = change
    path.write_text(json.dumps(value), "utf-8")


@pytest.mark.parametrize("folder", MODELS, ids=lambda p: p.name)
def test_digests_are_those_of_the_bytes(folder: Path) -> None:
    made = index_model(folder)
    jsonschema.validate(made.to_json(), SCHEMA)
    for name, digest in made.files.items():
        data = (folder / name).read_bytes()
        assert (digest.sha256, digest.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert set(made.files) == set(os.listdir(folder))
    data = (folder / "llm.mnn.weight").read_bytes()
    needed = {(r.offset, r.size) for r in net_ranges(reader.read(folder / "llm.mnn"))}
    assert set(made.ranges) == needed
    for offset, size in needed:
        assert made.ranges[offset, size] == hashlib.sha256(data[offset : offset + size]).hexdigest()


@pytest.mark.parametrize("folder", MODELS, ids=lambda p: p.name)
def test_a_known_digest_is_not_made_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by whoever looks first nor by the next, and the ranges are the same."""
    known = DigestCache(tmp_path / "log")
    first = index_model(folder, known=known)
    assert first == index_model(folder)
    monkeypatch.setattr(index_module, "_digest_ranges", None)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert index_model(folder, known=DigestCache(tmp_path / "log")) == first


def test_a_known_digest_of_another_content_is_not_taken(model: Path, tmp_path: Path) -> None:
    known = DigestCache(tmp_path / "log")
    time.sleep(0.3)  # a younger file is not remembered
    before = index_model(model, known=known)
    weight = model / "llm.mnn.weight"
    was = weight.stat()
    data = bytearray(weight.read_bytes())
    data[len(data) // 2] ^= 1
    weight.write_bytes(data)
    os.utime(weight, ns=(was.st_atime_ns, was.st_mtime_ns))
    after = index_model(model, known=known)
    assert after == index_model(model) != before


def test_the_folder_does_not_matter(model: Path) -> None:
    text = canonical_json(index_model(BUNDLED).to_json())
    for path in model.iterdir():
        os.utime(path, (1, 1))
    assert canonical_json(index_model(model).to_json()) == text
    assert str(model) not in text
    link = model.parent / "link"
    link.symlink_to(model)
    assert canonical_json(index_model(f"{link}/").to_json()) == text


def test_json_and_back(model: Path) -> None:
    made = index_model(model)
    assert ModelIndex.from_json(json.loads(json.dumps(made.to_json()))) == made
    for bad in ({}, {"version": 2}, {**made.to_json(), "ranges": [1]}, {"version": 1}, [], None):
        with pytest.raises(ModelFileError, match=r"model\.json"):
            ModelIndex.from_json(bad)  # type: ignore[arg-type]


def test_one_changed_weight_changes_its_ranges_alone(model: Path) -> None:
    before = index_model(model)
    item = next(r for r in net_ranges(reader.read(model / "llm.mnn")) if r.role == "weight")
    data = bytearray((model / "llm.mnn.weight").read_bytes())
    data[item.offset + item.size // 2] ^= 1
    (model / "llm.mnn.weight").write_bytes(data)
    after = index_model(model)
    assert [s for s in before.ranges if before.ranges[s] != after.ranges[s]] == [
        (item.offset, item.size)
    ]
    changed = [n for n in before.files if before.files[n] != after.files[n]]
    assert changed == ["llm.mnn.weight"]


def test_ranges_over_any_piece_size(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = index_model(model)
    for chunk in (1000, 4096, 65537):
        monkeypatch.setattr(index_module, "_CHUNK", chunk)
        assert index_model(model) == expected


def test_overlapping_and_repeated_ranges(model: Path) -> None:
    blobs = [[0, 5000], [0, 5000], [100, 10], [4990, 20], [0, 1]]
    ops = [
        Table("Op", {"type": "Const", "main": Table("Blob", {"external": np.array(blob)})})
        for blob in blobs
    ]
    write(model / "llm.mnn", Table("Net", {"oplists": [some_input(), *ops]}))
    data = (model / "llm.mnn.weight").read_bytes()
    assert index_model(model).ranges == {
        (offset, size): hashlib.sha256(data[offset : offset + size]).hexdigest()
        for offset, size in blobs
    }


def test_a_model_without_external_weights_needs_no_weight_file(model: Path) -> None:
    ops = [some_input(), Table("Op", {"type": "Const"})]
    write(model / "llm.mnn", Table("Net", {"oplists": ops}))
    (model / "llm.mnn.weight").unlink()
    made = index_model(model)
    assert made.weight is None
    assert made.ranges == {}
    jsonschema.validate(made.to_json(), SCHEMA)


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        index_model(folder)
    for part in parts:
        assert part in str(caught.value)


def test_missing_things_are_named(tmp_path: Path, model: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere", "does not exist")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "llm_config.json")
    refused(model / "llm.mnn", "it is a file")
    for name in ("tokenizer.mtok", "llm.mnn.weight", "llm.mnn", "llm_config.json"):
        data = (model / name).read_bytes()
        (model / name).unlink()
        refused(model, name)
        (model / name).write_bytes(data)


def test_truncated_things_are_named(model: Path) -> None:
    weight = model / "llm.mnn.weight"
    os.truncate(weight, weight.stat().st_size - 1)
    refused(model, "llm.mnn.weight", "past the end", "the file has", "/lm_head")
    os.truncate(weight, 0)
    refused(model, "llm.mnn.weight", "past the end")
    os.truncate(model / "llm.mnn", 100_000)
    refused(model, "llm.mnn", "not a readable MNN model")
    os.truncate(model / "llm.mnn", 0)
    refused(model, "llm.mnn", "empty")


def test_an_unknown_op_is_named(model: Path) -> None:
    net = reader.read(model / "llm.mnn")
    net.oplists[7].fields["type"] = 31337
    write(model / "llm.mnn", net)
    refused(model, "llm.mnn", "op 7", "31337", net.oplists[7].name)


def test_configs_that_are_none(model: Path) -> None:
    path = model / "llm_config.json"
    for text, words in (
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("\udcff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("{}", "hidden_size is missing"),
        ('{"hidden_size": true, "layer_nums": 3}', "hidden_size is True"),
        ('{"hidden_size": 64, "layer_nums": 0}', "layer_nums is 0"),
    ):
        path.write_text(text, "utf-8", errors="surrogateescape")
        refused(model, "llm_config.json", words)


@pytest.mark.parametrize("name", ["../llm.mnn", "/etc/passwd", "a/../../b", "a\0b", 7, [1]])
def test_files_outside_the_folder_are_refused(model: Path, name: object) -> None:
    edit(model / "config.json", llm_model=name)
    refused(model, "config.json: llm_model", "outside the model's folder")


def test_names_come_from_the_config(model: Path) -> None:
    (model / "parts").mkdir()
    (model / "llm.mnn").rename(model / "parts" / "net.mnn")
    (model / "llm.mnn.weight").rename(model / "w.bin")
    (model / "picture.mnn").write_bytes(b"any")
    edit(
        model / "config.json",
        llm_model="parts/net.mnn",
        llm_weight="w.bin",
        visual_model="picture.mnn",
        prompt="no_file.txt",
    )
    made = index_model(model)
    assert (made.model, made.weight) == ("parts/net.mnn", "w.bin")
    assert {"parts/net.mnn", "w.bin", "picture.mnn", "config.json"} <= set(made.files)
    edit(model / "config.json", visual_model="gone.mnn")
    refused(model, "gone.mnn", "visual_model")


def test_a_folder_without_config_has_mnn_s_names(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "tokenizer.mtok").rename(model / "tokenizer.txt")
    folder = open_folder(model)
    assert (folder.model, folder.weight) == ("llm.mnn", "llm.mnn.weight")
    assert "tokenizer.txt" in folder.files
    assert "config.json" not in index_model(model).files


def test_a_file_that_changes_meanwhile_is_stale(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_file = index_module.sha256_file

    def then_touch(path: Path) -> str:
        digest = hash_file(path)
        os.utime(model / "llm.mnn", (5, 5))  # someone writes while we read
        return digest

    monkeypatch.setattr(index_module, "sha256_file", then_touch)
    with pytest.raises(StaleInputError) as caught:
        index_model(model)
    assert "llm.mnn" in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(model: Path) -> None:
    (model / "tokenizer.mtok").chmod(0)
    refused(model, "tokenizer.mtok", "ermission")
