"""Reading the graphs of a bundle: context binaries, and dumps of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from qnn_graphs import Weights, matmul, save

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie import graphs
from mnnqnn_tasks.genie.graphs import Tensor
from mnnqnn_tasks.qnn import run
from mnnqnn_tasks.qnn.options import TargetOptions


def tensor(name: str, dims: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "dimensions": dims, "dataType": "QNN_DATATYPE_FLOAT_16", **more}


INPUT = tensor(
    "input_ids",
    [1, 8],
    quantizeParams={
        "definition": "QNN_DEFINITION_DEFINED",
        "quantizationEncoding": "QNN_QUANTIZATION_ENCODING_SCALE_OFFSET",
        "scaleOffset": {"scale": 0.5, "offset": -3},
    },
)
FLAT = {
    "buildId": "v2.51.0",
    "socModel": 57,
    "graphs": [
        {
            "graphName": "g",
            "graphInputs": [INPUT],
            "graphOutputs": [tensor("logits", [1, 8, 384], dataType=0x0216)],
        }
    ],
}


def wrapped(value: Any) -> Any:
    """As the older tool writes it: every object of a list, and the file, inside ``info``."""
    if isinstance(value, dict):
        return {
            key: [{"info": wrapped(item)} for item in inner] if _objects(inner) else wrapped(inner)
            for key, inner in value.items()
        }
    return value


def _objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


@pytest.mark.parametrize("form", ["flat", "wrapped"])
def test_dump(tmp_path: Path, form: str) -> None:
    path = tmp_path / "dump.txt"  # the content decides, not the name
    data = FLAT if form == "flat" else {"info": wrapped(FLAT), "version": 3}
    path.write_text("\ufeff \n" + json.dumps(data), encoding="utf-8")
    found = graphs.read(path)
    assert (found.soc_id, found.build_id, found.file) == (57, "v2.51.0", str(path))
    (graph,) = found.graphs
    assert graph.input("input_ids") == Tensor(
        "input_ids", "FLOAT_16", (1, 8), "SCALE_OFFSET", 0.5, -3
    )
    assert graph.output("logits") == Tensor("logits", "FLOAT_16", (1, 8, 384))
    assert graph.input("logits") is None


def test_binary_and_the_dump_of_it_say_the_same(tmp_path: Path) -> None:
    net = save(tmp_path, matmul("token_ar1_cl64_1_of_1", 1, Weights(64, 64), tmp_path / "blobs"))
    run.link([net], tmp_path / "blobs", TargetOptions(57, "v75"), tmp_path / "a.bin")
    found = graphs.read(tmp_path / "a.bin")
    (graph,) = found.graphs
    assert graph.name == "token_ar1_cl64_1_of_1"
    assert graph.inputs == (Tensor("t0", "FLOAT_32", (1, 64)),)
    assert graph.file == str(tmp_path / "a.bin")
    assert found.build_id == run.build_id()
    whole, damaged = (tmp_path / "a.bin").read_bytes(), tmp_path / "damaged.bin"
    for data, why in (
        (whole[:-1], "it was cut off"),
        (whole[:100], f"tells of {len(whole)} bytes, and it has 100: it was cut off"),
        (whole + b"x", "bytes were put in"),
    ):
        damaged.write_bytes(data)
        with pytest.raises(GenieError, match=why):
            graphs.read(damaged)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"not a binary at all" * 100, "not a QNN context binary"),
        (b"{", "not a dump"),
        (b"{\xff", "not a dump"),
        (b"{}", "the file has no list graphs"),
        (b'{"info": 3}', "info of the file is no JSON object"),
        (b'{"graphs": {}}', "has no list graphs"),
        (b'{"graphs": [3]}', r"graphs\[0\] is no JSON object"),
        (b'{"graphs": [{"graphName": 3}]}', r"graphs\[0\] has no text graphName"),
        (b'{"graphs": [{"graphName": "g"}]}', r"graphs\[0\] has no list graphInputs"),
        (b'{"x":' * 100_000, "nested too deeply|not a dump"),
        (b'{"x":' + b"9" * 100_000 + b"}", "not a dump"),
    ],
)
def test_file_that_is_neither(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.bin"
    path.write_bytes(content)
    with pytest.raises(GenieError, match=message) as caught:
        graphs.read(path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, r"graphs\[0\]\.graphInputs\[0\] has no text name"),
        ({"dimensions": 3}, "has no list dimensions"),
        ({"dimensions": ["1"]}, "not all numbers"),
        ({"dimensions": [-1]}, "not all numbers"),
        ({"dimensions": [1 << 40]}, "not all numbers"),
        ({"dataType": None}, "has no dataType"),
    ],
)
def test_tensor_that_is_malformed(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "dump.json"
    graph = {"graphName": "g", "graphInputs": [INPUT | change], "graphOutputs": []}
    path.write_text(json.dumps({"graphs": [graph]}))
    with pytest.raises(GenieError, match=message):
        graphs.read(path)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (3, (None, None, None)),
        ({"quantizationEncoding": "QNN_QUANTIZATION_ENCODING_UNDEFINED"}, (None, None, None)),
        ({"quantizationEncoding": "QNN_QUANTIZATION_ENCODING_BLOCK"}, ("BLOCK", None, None)),
        (
            {
                "quantizationEncoding": "QNN_QUANTIZATION_ENCODING_SCALE_OFFSET",
                "scaleOffset": {"scale": "x", "offset": 0},
            },
            ("SCALE_OFFSET", None, None),
        ),
    ],
)
def test_quantization_of_a_dump(tmp_path: Path, quantization: Any, expected: object) -> None:
    path = tmp_path / "dump.json"
    graph = {
        "graphName": "g",
        "graphInputs": [INPUT | {"quantizeParams": quantization}],
        "graphOutputs": [],
    }
    path.write_text(json.dumps({"graphs": [graph]}))
    (made,) = graphs.read(path).graphs[0].inputs
    assert (made.encoding, made.scale, made.offset) == expected


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("missing.bin", "no such file"),
        ("pipe", "not a regular file"),
        (".", r"a folder.*\n.*\*\.bin"),
        ("a\0b", "no such file|null"),
    ):
        with pytest.raises(GenieError, match=message):
            graphs.read(tmp_path / name)
