"""Which files belong to a model folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn.folder import open_folder

MODEL = Path(__file__).resolve().parent.parent / "models" / "tiny-qwen3-w8"
PLAIN = {
    *("config.json", "llm_config.json", "llm.mnn", "llm.mnn.weight"),
    *("embeddings_bf16.bin", "tokenizer.mtok"),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def add(model: Path, name: str, **values: object) -> None:
    path = model / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_the_bundled_model(model: Path) -> None:
    (model / "README.md").write_text("not the model's")
    assert set(open_folder(model).files) == PLAIN


def test_files_of_further_modules(model: Path) -> None:
    for name in ("context.json", "visual.mnn", "visual.mnn.weight", "fc.mnn", "x.mnn.weight"):
        (model / name).write_bytes(b"x")
    (model / "sub").mkdir()
    (model / "sub" / "words.txt").write_bytes(b"x")
    add(model, "llm_config.json", visual_model="visual.mnn", lookup="sub/words.txt")
    add(model, "config.json", dflash_fc="fc.mnn", other="../model/fc.mnn", long="x" * 5000)
    found = set(open_folder(model).files)
    assert found - PLAIN == {
        *("context.json", "visual.mnn", "visual.mnn.weight", "fc.mnn", "sub/words.txt")
    }


@pytest.mark.parametrize("name", ["../llm.mnn", "/etc/passwd", "a/../../b", "nul\0", 7])
def test_a_file_outside_the_folder_is_refused(model: Path, name: object) -> None:
    add(model, "config.json", tokenizer_file=name)
    with pytest.raises(ModelFileError, match="outside the model's folder"):
        open_folder(model)


def test_a_named_file_that_is_missing(model: Path) -> None:
    add(model, "config.json", lookup_file="words.txt")
    with pytest.raises(ModelFileError, match="missing") as caught:
        open_folder(model)
    assert "words.txt" in str(caught.value) and "lookup_file" in str(caught.value)
