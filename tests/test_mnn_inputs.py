"""IO samples: shaped as MNN's tool shapes them, filled with real embeddings."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn import reader, samples
from mnnqnn_tasks.mnn.embedding import open_embedding
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.inputs import (
    TEXT,
    make_samples,
    opening,
    sample_tokens,
    splitmix64,
    token_samples,
    write_inputs,
)
from mnnqnn_tasks.mnn.params import convolution_ranges, params_as_json
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.mnn.tokenizer import open_tokenizer
from mnnqnn_tasks.mnn.weights import decode_convolution

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
BUNDLED = ROOT / "models" / "tiny-qwen3-w8"
SMOLLM = SHARED / "models" / "smollm2-135m-w8"
GOLDEN = sorted((SHARED / "golden").glob("*/testdir/*/input.mnn"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shutil.copytree(BUNDLED, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.skipif(not GOLDEN, reason=f"no golden data in {SHARED}")
@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: "-".join(p.parts[-4:-1]))
def test_the_form_is_that_of_mnn_s_tool(path: Path, tmp_path: Path) -> None:
    shape = int(path.parts[-2])
    write_inputs(SHARED / "models" / path.parts[-4], shape, tmp_path / "input.mnn")
    ours, theirs = samples.read(tmp_path / "input.mnn"), samples.read(path)
    assert list(ours) == list(theirs)
    for name, sample in theirs.items():
        assert ours[name].values.shape == sample.values.shape
        assert ours[name].values.dtype == sample.values.dtype
        assert ours[name].format == sample.format
        # Theirs is noise, and theirs leaves the rotary embedding of decode idle.
        if name != "input_ids" and (name, shape) != ("position_ids", 1):
            assert np.array_equal(ours[name].values, sample.values)
    assert os.path.getsize(tmp_path / "input.mnn") == os.path.getsize(path)


def test_embeddings_are_those_of_the_text(tmp_path: Path) -> None:
    write_inputs(BUNDLED, 24, tmp_path / "input.mnn")
    made = samples.read(tmp_path / "input.mnn")
    folder = open_folder(BUNDLED)
    tokenizer = open_tokenizer(folder)
    assert tokenizer is not None
    ids = tokenizer.encode("<|im_start|> " + " ".join([TEXT] * 3))[:24]
    assert tokenizer.decode(ids).startswith("<|im_start|> the quick brown fox")
    table = np.fromfile(BUNDLED / "embeddings_bf16.bin", "<u2").astype(np.uint32) << 16
    rows = table.view(np.float32).reshape(-1, 64)[ids]
    assert np.array_equal(made["input_ids"].values[:, 0], rows)
    assert np.std(rows) > 0.01
    assert made["logits_index"].values.tolist() == [0]


def test_the_same_bytes_every_time_and_everywhere(model: Path, tmp_path: Path) -> None:
    write_inputs(BUNDLED, 7, tmp_path / "a.mnn")
    write_inputs(model, 7, tmp_path / "b.mnn")
    assert (tmp_path / "a.mnn").read_bytes() == (tmp_path / "b.mnn").read_bytes()


def test_without_a_tokenizer_tokens_are_pseudo_random(model: Path) -> None:
    (model / "tokenizer.mtok").unlink()
    config = json.loads((model / "config.json").read_text())
    del config["tokenizer_file"]
    (model / "config.json").write_text(json.dumps(config))
    folder = open_folder(model)
    embedding = open_embedding(folder)
    assert embedding is not None
    ids = sample_tokens(folder, embedding, 50)
    assert len(set(ids)) > 40
    assert all(0 <= token < 384 for token in ids)
    assert ids == sample_tokens(folder, embedding, 50)


def test_without_embeddings_rows_are_pseudo_random(model: Path, tmp_path: Path) -> None:
    (model / "embeddings_bf16.bin").unlink()
    write_inputs(model, 16, tmp_path / "a.mnn")
    rows = samples.read(tmp_path / "a.mnn")["input_ids"].values
    assert rows.shape == (16, 1, 64)
    assert abs(rows.mean()) < 0.01
    assert 0.045 < rows.std() < 0.055
    assert len(np.unique(rows)) > 900


def test_what_prompts_begin_with() -> None:
    folder = open_folder(BUNDLED)
    tokenizer = open_tokenizer(folder)
    assert tokenizer is not None
    start = tokenizer.special["<|im_start|>"]
    assert opening(folder.llm_config, tokenizer) == [start]
    assert opening({}, tokenizer) == []  # the file itself has no template
    assert opening({"jinja": {"chat_template": "{{ messages }}"}}, tokenizer) == []
    assert opening({}, replace(tokenizer, chat_template="a<|im_start|><|im_end|>")) == [start]
    assert opening(folder.llm_config, replace(tokenizer, prefix=(7,))) == [7]


def test_splitmix64_is_the_published_generator() -> None:
    """The first numbers of SplitMix64 with seed 1234567, as its authors list them."""
    assert splitmix64(1234567, 5).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def net_with(*inputs: tuple[str, list[int], str]) -> Table:
    ops = [
        Table(
            "Op",
            {
                "name": name,
                "type": "Input",
                "main": Table("Input", {"dims": np.array(dims, np.int32), "dtype": dtype}),
            },
        )
        for name, dims, dtype in inputs
    ]
    return Table("Net", {"oplists": ops})


CONFIG: dict[str, Any] = {"hidden_size": 4, "attention_mask": "float"}
MASK = ("attention_mask", [1, 1, -1, -1], "DT_FLOAT")
WHOLE_MASK = ("attention_mask", [1, 1, -1, -1], "DT_INT32")


def made(name: str, net: Table, seq: int, **config: Any) -> np.ndarray[Any, Any]:
    return make_samples({**CONFIG, **config}, net, seq)[name].values


def test_masks() -> None:
    lowest = np.finfo(np.float32).min
    causal = made("attention_mask", net_with(MASK), 3)
    assert causal[0, 0].tolist() == [[0, lowest, lowest], [0, 0, lowest], [0, 0, 0]]
    whole = made("attention_mask", net_with(WHOLE_MASK), 2, attention_mask="int")
    assert whole.dtype == np.int32
    assert whole[0, 0].tolist() == [[1, 0], [1, 1]]
    glm2 = made("attention_mask", net_with(WHOLE_MASK), 2, attention_mask="glm2")
    assert glm2[0, 0].tolist() == [[0, 1], [0, 0]]
    mix = made("attention_mask", net_with(MASK), 3, attention_type="mix", sliding_window=2)
    assert mix.shape == (2, 1, 1, 3, 3)
    assert (mix[0, 0, 0] == 0).tolist() == np.tril(np.ones((3, 3), bool)).tolist()
    assert (mix[1, 0, 0] == 0).tolist() == [
        [True, False, False],
        [True, True, False],
        [False, True, True],
    ]


@pytest.mark.parametrize(
    ("mask", "kind", "words"),
    [
        (MASK, "int", 'set "attention_mask": "float" in llm_config.json'),
        (MASK, None, 'set "attention_mask": "float" in llm_config.json'),
        (WHOLE_MASK, "float", 'set "attention_mask": "int" or "glm2" in llm_config.json'),
    ],
)
def test_a_mask_of_another_type_is_the_config_s_fault(
    mask: tuple[str, list[int], str], kind: str | None, words: str
) -> None:
    config = {"hidden_size": 4} if kind is None else {"hidden_size": 4, "attention_mask": kind}
    with pytest.raises(ModelFileError) as caught:
        make_samples(config, net_with(mask), 2)
    assert caught.value.where == "llm_config.json: attention_mask"
    assert caught.value.todo == words


def test_positions_on_several_axes() -> None:
    for dims, axes in (([1, -1], 1), ([3, -1], 3), ([-1, -1], 3)):
        net = net_with(("position_ids", dims, "DT_INT32"))
        assert made("position_ids", net, 2, is_mrope=True).tolist() == [[0, 1]] * axes


def test_order_is_that_of_the_tool_then_of_the_model() -> None:
    net = net_with(
        ("deepstack_embeds", [3, -1, 4], "DT_FLOAT"),
        ("logits_index", [1], "DT_INT32"),
        MASK,
        ("input_ids", [1, 1, 4], "DT_FLOAT"),
    )
    result = make_samples(CONFIG, net, 5)
    assert list(result) == ["input_ids", "attention_mask", "logits_index", "deepstack_embeds"]
    assert result["deepstack_embeds"].values.shape == (3, 5, 4)
    assert make_samples(CONFIG, net, 1)["logits_index"].values.tolist() == [-1]


@pytest.mark.parametrize(
    ("name", "dims", "dtype", "config"),
    [
        ("pixels", [1, 3, -1, -1], "DT_FLOAT", {}),
        ("input_ids", [1, 1, 5], "DT_FLOAT", {}),
        ("input_ids", [1, 4], "DT_INT32", {}),
        ("attention_mask", [1, 1, -1, -1], "DT_FLOAT", {"attention_mask": "glm"}),
        ("position_ids", [1, 2, -1], "DT_INT32", {}),
        ("deepstack_embeds", [-1, -1, 4], "DT_FLOAT", {}),
    ],
)
def test_what_is_not_known_is_named(
    name: str, dims: list[int], dtype: str, config: dict[str, Any]
) -> None:
    with pytest.raises(ModelFileError) as caught:
        make_samples({**CONFIG, **config}, net_with((name, dims, dtype)), 2)
    assert name in str(caught.value)
    assert caught.value.why


def test_a_model_without_inputs_is_refused() -> None:
    with pytest.raises(ModelFileError, match="no inputs"):
        make_samples(CONFIG, Table("Net"), 2)


def test_samples_of_tokens() -> None:
    folder = open_folder(BUNDLED)
    net = reader.read(BUNDLED / "llm.mnn")
    result = token_samples(folder, net, [5])
    assert result["logits_index"].values.tolist() == [0]
    with pytest.raises(IndexError):
        token_samples(folder, net, [384])


@pytest.mark.skipif(not SMOLLM.is_dir(), reason=f"no {SMOLLM}")
def test_int8_embeddings_are_the_output_layer_s_rows() -> None:
    """SmolLM2 ties both; each was quantized by itself, so they agree to half a step."""
    folder = open_folder(SMOLLM)
    embedding = open_embedding(folder)
    assert embedding is not None
    assert (embedding.count, embedding.bits) == (49152, 8)
    net = reader.read(SMOLLM / "llm.mnn")
    head = next(op for op in net.oplists if op.type == "Convolution" and "lm_head" in op.name)
    data = np.memmap(SMOLLM / "llm.mnn.weight", mode="r")
    blobs = {
        role: memoryview(data[start : start + size])
        for role, (start, size) in convolution_ranges(head).items()
    }
    weight = decode_convolution(params_as_json(head.main), blobs)
    ids = [0, 1, 2, 1780, 49151]
    rows = embedding.rows(ids)
    difference = np.abs(rows - weight.dequantize()[ids]).max(axis=1)
    assert np.all(difference <= 1.01 * np.abs(rows).max(axis=1) / 127)
    assert np.all(difference < 0.02 * np.abs(rows).max())


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("form", ["dict", "list", "half"])
def test_every_layout_of_tied_embeddings(
    model: Path, bits: int, asymmetric: bool, form: str
) -> None:
    chance = np.random.default_rng(bits)
    count, hidden, block = 10, 64, 32
    alpha_type = "<f2" if form == "half" else "<f4"
    raw = chance.integers(0, 1 << bits, (count, hidden))
    alpha = chance.random((count, 2, 2 if asymmetric else 1)).astype(alpha_type)
    if bits == 16:
        expected = chance.standard_normal((count, hidden)).astype("<f2")
        packed = expected.tobytes()
    else:
        text = "".join(f"{int(value):0{bits}b}" for value in raw.reshape(-1))
        packed = bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
        centred = (raw - (1 << (bits - 1))).reshape(count, 2, block)
        expected = centred * alpha[:, :, -1:].astype(np.float64)
        if asymmetric:
            expected = expected + alpha[:, :, :1].astype(np.float64)
        expected = expected.reshape(count, hidden)
    start = 24
    weight = b"x" * start + packed + alpha.tobytes()
    (model / "llm.mnn.weight").write_bytes(weight)
    numbers = [start, start + len(packed), alpha.nbytes, bits, block]
    keys = ("weight_offset", "alpha_offset", "alpha_size", "quant_bit", "quant_block")
    tie: Any = dict(zip(keys, numbers, strict=True))
    if form == "half":
        tie["alpha_dtype"] = "fp16"
    if form == "list":
        tie = numbers
    config = json.loads((model / "llm_config.json").read_text())
    (model / "llm_config.json").write_text(json.dumps({**config, "tie_embeddings": tie}))
    embedding = open_embedding(open_folder(model))
    assert embedding is not None
    assert embedding.count == count
    rows = embedding.rows([3, 9, 3])
    assert np.allclose(rows, expected[[3, 9, 3]], rtol=1e-6, atol=1e-6)
    os.truncate(model / "llm.mnn.weight", start + len(packed) // 2)
    with pytest.raises(ModelFileError, match="cut short"):
        cut = open_embedding(open_folder(model))
        assert cut is not None
        cut.rows([9])


@pytest.mark.parametrize(
    "tie",
    [
        7,
        [1, 2, 3],
        {"quant_bit": 5},
        {"quant_bit": 8, "weight_offset": -1},
        {"quant_bit": 8, "alpha_offset": 640, "quant_block": 7},
        {"quant_bit": 8, "alpha_offset": 640, "alpha_size": 12},
        {"quant_bit": 8},
    ],
)
def test_contradictions_of_tied_embeddings_are_named(model: Path, tie: object) -> None:
    config = json.loads((model / "llm_config.json").read_text())
    (model / "llm_config.json").write_text(json.dumps({**config, "tie_embeddings": tie}))
    with pytest.raises(ModelFileError, match="embeddings"):
        open_embedding(open_folder(model))


def test_more_tokens_than_the_model_has_positions_for(model: Path, tmp_path: Path) -> None:
    write_inputs(model, 2048, tmp_path / "input.mnn")
    with pytest.raises(ModelFileError, match=r"llm_config.json.*2049 tokens[^!]*is 2048") as caught:
        write_inputs(model, 2049, tmp_path / "input.mnn")
    assert caught.value.todo == "choose chunk_sizes up to 2048 in the pipeline"
