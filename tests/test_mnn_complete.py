"""A model folder that could not be run is refused before anything is built from it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from mnnqnn_tasks.errors import MnnqnnError, ModelFileError
from mnnqnn_tasks.mnn import reader
from mnnqnn_tasks.mnn.complete import vocabulary
from mnnqnn_tasks.mnn.configs import _TYPES
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.index import index_model
from mnnqnn_tasks.mnn.inputs import write_inputs
from mnnqnn_tasks.mnn.table import Table

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "tiny-qwen3-w8"
ROWS, HIDDEN = 384, 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a config; ``None`` removes one."""
    value = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}), "utf-8")


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        index_model(folder)
    for part in parts:
        assert part in str(caught.value)


def test_embeddings_cut_short(model: Path) -> None:
    path = model / "embeddings_bf16.bin"
    os.truncate(path, 1000)
    refused(model, str(path), "takes 128 bytes", "the 1000 bytes", "all 384 take 49152")
    os.truncate(path, 7 * 2 * HIDDEN)
    refused(model, str(path), "384 tokens, which is 49152 bytes", "896 bytes for 7 tokens")
    os.truncate(path, 0)
    refused(model, str(path), "no whole number of rows")
    os.truncate(path, (ROWS + 1) * 2 * HIDDEN)
    index_model(model)  # tokens that are only read
    os.truncate(path, ROWS * 2 * HIDDEN)
    index_model(model)


@pytest.mark.parametrize(
    ("tie", "words"),
    [
        ([4096, 4096 + 24576, 1 << 20, 8, 0], ("they end at byte 1077248", "has 186756")),
        ([186756, 186756 + 24576, 1536, 8, 0], ("they end at byte 212868", "has 186756")),
        ([4096, 4096 + 24575, 1536, 8, 0], ("takes 64 bytes", "24575 bytes")),
        ([4096, 4096 + 64 * 200, 800, 8, 0], ("for 384 tokens", "for 200 tokens")),
        ([4096, 4096 + 24576, 1537, 8, 0], ("1537 bytes of scales",)),
        ([4096, 4096, 1536, 8, 0], ("tie_embeddings is",)),
        ([4096, 4096 + 24576, 1536, 8, 128], ("tie_embeddings is",)),
    ],
)
def test_tied_embeddings_outside_the_file(
    model: Path, tie: list[int], words: tuple[str, ...]
) -> None:
    edit(model / "llm_config.json", tie_embeddings=tie)
    refused(model, "embeddings", *words)


def test_tied_embeddings_that_fit(model: Path) -> None:
    good = [4096, 4096 + 24576, 1536, 8, 0]
    for config in ("config.json", "llm_config.json"):  # MNN merges them
        edit(model / config, tie_embeddings=good)
        (model / "embeddings_bf16.bin").unlink(missing_ok=True)
        index_model(model)
        edit(model / config, tie_embeddings=None)
    refused(model, "no embeddings")
    shutil.copy(MODEL / "embeddings_bf16.bin", model)
    edit(model / "llm_config.json", tie_embeddings=[])  # as if it were not there
    index_model(model)


def test_what_mnn_would_look_for_in_vain(model: Path) -> None:
    edit(model / "config.json", tokenizer_file=None)
    refused(model, "no tokenizer", "'tokenizer.txt'", "no config sets tokenizer_file")
    edit(model / "config.json", tokenizer_file="")
    refused(model, "no tokenizer", "its name is empty")
    edit(model / "config.json", tokenizer_file="tokenizer.mtok")
    (model / "embeddings_bf16.bin").unlink()
    refused(model, "no embeddings", "'embeddings_bf16.bin'", "no config sets embedding_file")
    (model / "embeddings_bf16.bin").mkdir()
    refused(model, "no embeddings", "it is a folder")


def test_llm_config_must_not_override_the_export(model: Path) -> None:
    edit(model / "llm_config.json", chunk_limits=[1, 2])
    refused(model, "sets 'chunk_limits'")


@pytest.mark.parametrize("kind", ["int", "glm2", "glm", None])
def test_the_config_must_describe_the_model_s_mask(model: Path, kind: str | None) -> None:
    edit(model / "llm_config.json", attention_mask=kind)
    refused(model, "attention_mask", "llm_config.json")
    with pytest.raises(ModelFileError, match=r"llm_config\.json"):
        write_inputs(model, 1, model / "input.mnn")


def test_the_config_must_describe_the_model_s_width(model: Path) -> None:
    edit(model / "llm_config.json", hidden_size=128)
    refused(model, "input_ids", "embeddings of 128")


def test_the_vocabulary_is_that_of_the_logits() -> None:
    net = reader.read(MODEL / "llm.mnn")
    assert vocabulary(net) == ROWS
    last = next(op for op in net.oplists if op.name == "/lm/lm_head/Linear/post_reshape")
    cap = int(last.outputIndexes[0])
    extra = len(net.tensorName)  # 30 * tanh(x), as some models cap their logits
    names = [f"{n}_" if n == "logits" else n for n in net.tensorName]
    const = Table("Op", {"type": "Const", "outputIndexes": np.array([extra], np.int32)})
    scale = {"type": "BinaryOp", "inputIndexes": np.array([extra, cap], np.int32)}
    scale["outputIndexes"] = np.array([extra + 1], np.int32)
    capped = {"oplists": [*net.oplists, const, Table("Op", scale)]}
    capped["tensorName"] = [*names, "thirty", "logits"]
    assert vocabulary(Table("Net", capped)) == ROWS
    assert vocabulary(Table("Net", {"tensorName": ["x"]})) is None
    assert vocabulary(Table("Net", {"tensorName": ["logits"]})) is None
    other = {"type": "Reshape", "main": Table("Reshape", {"dims": np.array([1, -1, 2])})}
    other |= {"inputIndexes": np.array([cap]), "outputIndexes": np.array([extra])}
    split = {"oplists": [*net.oplists, Table("Op", other)], "tensorName": [*names, "logits"]}
    assert vocabulary(Table("Net", split)) is None


KEYS = [
    *_TYPES,
    *("hidden_size", "layer_nums", "llm_model", "llm_weight", "llm_config", "embedding_file"),
    *("tokenizer_file", "visual_model", "jinja", "x", "\ud800", "base_dir", "mllm"),
]
TEXTS = ["", "float", "int", "mix", "llm.mnn", "..", ".", "/", "a\0", "\udfff", "x" * 300]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 200)
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
TIES = st.lists(st.integers(-1, 200_000) | st.sampled_from([0, 2, 8, 16]), max_size=7) | (
    st.dictionaries(
        st.sampled_from(
            ["weight_offset", "alpha_offset", "alpha_size", "quant_bit", "quant_block"]
        ),
        st.integers(0, 200_000) | st.sampled_from([0, 3, 8, 16]) | VALUES,
    )
)
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3) | st.fixed_dictionaries(
    {"tie_embeddings": TIES}
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=st.sampled_from(["config.json", "llm_config.json"]), changes=CHANGES, whole=VALUES)
def test_no_config_whatever_ends_in_another_error(
    model: Path, name: str, changes: dict[str, Any], whole: object
) -> None:
    original = json.loads((MODEL / name).read_text("utf-8"))
    for value in (original | changes, whole):
        (model / name).write_text(json.dumps(value), "utf-8")
        try:
            open_folder(model)
            json.dumps(index_model(model).to_json()).encode("utf-8")
            write_inputs(model, 2, model.parent / "input.mnn")
        except MnnqnnError as error:
            str(error).encode("utf-8")
    shutil.copyfile(MODEL / name, model / name)
