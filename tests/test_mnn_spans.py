"""What is remembered of a model: taken over only where decoding would find the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn.index import index_model
from mnnqnn_tasks.mnn.spans import SpanMemory

BUNDLED = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen3-w8"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLED, tmp_path / "model", copy_function=shutil.copyfile))


class Watched(SpanMemory):
    """Counts how often the model had to be decoded."""

    decoded = 0

    def keep(self, *args: object) -> None:
        self.decoded += 1
        super().keep(*args)  # type: ignore[arg-type]


def edit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_other_weights_need_no_decoding(model: Path, tmp_path: Path) -> None:
    memory = Watched(tmp_path / "spans.json", "code")
    before = index_model(model, memory)
    edit(model / "llm.mnn.weight", 1000)
    after = index_model(model, memory)
    assert memory.decoded == 1
    assert after == index_model(model) != before


@pytest.mark.parametrize("name", ["llm.mnn", "llm_config.json"])
def test_another_model_is_decoded(model: Path, tmp_path: Path, name: str) -> None:
    memory = Watched(tmp_path / "spans.json", "code")
    index_model(model, memory)
    if name == "llm.mnn":
        edit(model / name, -1)
    else:
        config = json.loads((model / name).read_text("utf-8"))
        (model / name).write_text(json.dumps(config, indent=3), "utf-8")
    try:
        index_model(model, memory)
    except ModelFileError:
        return  # it was decoded, and is no model any more
    assert memory.decoded == 2


def test_a_cut_weight_file_is_refused_all_the_same(model: Path, tmp_path: Path) -> None:
    memory = SpanMemory(tmp_path / "spans.json", "code")
    index_model(model, memory)
    weight = model / "llm.mnn.weight"
    weight.write_bytes(weight.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="weight"):
        index_model(model, memory)


def test_other_code_or_an_edited_memory_is_not_believed(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "spans.json"
    index_model(model, SpanMemory(path, "old"))
    newer = Watched(path, "new")
    index_model(model, newer)
    assert newer.decoded == 1
    value = json.loads(path.read_text("utf-8"))
    value["spans"].pop()
    path.write_text(json.dumps(value), "utf-8")
    assert index_model(model, newer) == index_model(model)
    assert newer.decoded == 2
    path.write_bytes(path.read_bytes()[:50])
    index_model(model, newer)
    assert newer.decoded == 3
