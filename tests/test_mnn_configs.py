"""The configs of a model folder: what is wrong with them is said early and by name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn.configs import load_config
from mnnqnn_tasks.mnn.folder import open_folder

MODEL = Path(__file__).resolve().parent.parent / "models" / "tiny-qwen3-w8"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_folder(folder)
    text = str(caught.value)
    text.encode("utf-8")  # a terminal can show it
    for part in parts:
        assert part in text


def put(path: Path, member: str) -> None:
    """Put one more member, as text, in front of those of a config."""
    path.write_text("{" + member + "," + path.read_text("utf-8").lstrip()[1:], "utf-8")


VALUES = [
    ('"x": NaN', "x", "nan"),
    ('"x": {"y": [1, -Infinity]}', "x.y[1]", "-inf"),
    ('"x": 1e999', "x", "inf"),
    ('"x": "\\ud800"', "x", "surrogate"),
    ('"x": [{"\\udfff": 1}]', "x[0].", "surrogate"),
    ('"x": 123456789012345678901', "x", "too large"),
    ('"x": 1, "x": 2', "x", "stands twice"),
    ('"x": {"y": 1, "y": 1}', "y", "stands twice"),
    ('"x": ' + "[" * 200 + "]" * 200, "x[0]", "levels"),
    ('"max_all_tokens": "4"', "max_all_tokens", "not a whole number"),
    ('"max_new_tokens": true', "max_new_tokens", "not a whole number"),
    ('"use_template": 1', "use_template", "not true or false"),
    ('"system_prompt": 7', "system_prompt", "not text"),
    ('"topP": []', "topP", "not a number"),
    ('"sliding_window": -1', "sliding_window", "not from 0 to"),
    ('"mrope_axes": 1000000000000', "mrope_axes", "not from 0 to 255"),
    ('"banned_tokens": [1.5]', "banned_tokens", "whole numbers"),
    ('"tie_embeddings": null', "tie_embeddings", "an object or a list"),
]


@pytest.mark.parametrize("name", ["config.json", "llm_config.json"])
@pytest.mark.parametrize(("member", "key", "words"), VALUES, ids=[v[0][:24] for v in VALUES])
def test_a_wrong_value_is_named(model: Path, name: str, member: str, key: str, words: str) -> None:
    put(model / name, member)
    refused(model, f"/{name}: {key}", words)


@pytest.mark.parametrize("name", ["config.json", "llm_config.json"])
@pytest.mark.parametrize("text", ["[]", "7", '"x"', "null", "", "{]", "\ufeff{}"])
def test_no_object(model: Path, name: str, text: str) -> None:
    (model / name).write_text(text, "utf-8")
    refused(model, f"/{name}", "JSON")


def test_what_is_allowed(tmp_path: Path) -> None:
    value = {"x": None, "y": [1, 2.5, "\U0001f600", {"z": True}], "top_p": 1, "temperature": 0.5}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(value), "utf-8")
    assert load_config(path) == value


FILES = ["config.json", "llm_config.json", "llm.mnn", "llm.mnn.weight", "tokenizer.mtok"]


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_called_what_it_is(model: Path, name: str) -> None:
    path = model / name
    path.unlink()
    path.mkdir()
    refused(model, f"/{name}", "it is a folder")
    path.rmdir()
    path.symlink_to(name)
    refused(model, f"/{name}", "symbolic links")
    path.unlink()
    path.symlink_to("gone")
    refused(model, f"/{name}", "link to gone")
    path.unlink()
    os.mkfifo(path)  # reading it would wait for ever
    refused(model, f"/{name}", "neither a file nor a folder")


def test_a_name_that_is_too_long(model: Path) -> None:
    put(model / "config.json", '"lookup_file": "' + "x" * 300 + '"')
    refused(model, "lookup_file")


def test_a_file_with_a_name_that_json_cannot_hold_is_not_the_model_s(model: Path) -> None:
    with open(os.path.join(os.fsencode(model), b"tokenizer\xff"), "wb"):
        pass
    assert all(name.isascii() for name in open_folder(model).files)
