"""Damaged and hostile files: one message or a finding, never a traceback or a crash."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from genie_cases import Case, write_case, write_files
from genie_models import build, graph, language
from hypothesis import given, settings
from hypothesis import strategies as st

from mnnqnn_tasks.errors import GenieError, MnnqnnError
from mnnqnn_tasks.files import canonical_json
from mnnqnn_tasks.genie import graphs, library, report
from mnnqnn_tasks.genie.config_check import check
from mnnqnn_tasks.genie.config_read import read_config
from mnnqnn_tasks.genie.graphs import ContextFile, GraphInfo, Tensor
from mnnqnn_tasks.genie.lint import lint
from mnnqnn_tasks.genie.names import parse
from mnnqnn_tasks.genie.order import in_order, ordered
from mnnqnn_tasks.genie.probe import probe, to_text
from mnnqnn_tasks.genie.renumber import renumber
from mnnqnn_tasks.genie.versions import VERSIONS


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("fuzz")
    made = [
        graph(f"{kind}_ar{ar}_cl64_1_of_1", language(ar, 64))
        for kind, ar in (("token", 1), ("prompt", 8))
    ]
    build(folder, {"a.bin": made})
    return (folder / "a.bin").read_bytes()


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A mutation, mostly of the metadata, which is what gets parsed."""
    changed = bytearray(data)
    kind = rng.randrange(5)
    if kind == 0:
        return bytes(changed[: rng.randrange(1, len(changed))])
    if kind == 1:
        return bytes(changed) + rng.randbytes(rng.randrange(1, 64))
    reach = min(len(changed), rng.choice((64, 2048, 8192)))
    for _ in range(rng.choice((1, 4, 32))):
        at = rng.randrange(reach)
        changed[at] = rng.choice((0, 255, 127, rng.randrange(256))) if kind < 4 else changed[at] ^ 1
    return bytes(changed)


def judged(path: Path) -> None:
    """Read, lint and print, or refuse with a message that names the file."""
    try:
        file = graphs.read(path)
    except GenieError as error:
        assert str(path) in str(error)
        assert error.todo
        return
    text = report.as_text(lint([file]))
    text.encode("utf-8")
    canonical_json(report.as_json(lint([file]))).encode()


def test_damaged_binaries(binary: bytes, tmp_path: Path) -> None:
    rng = random.Random(1)
    path = tmp_path / "damaged.bin"
    for _ in range(120):
        path.write_bytes(damaged(binary, rng))
        judged(path)


def test_counts_of_a_damaged_binary_are_not_believed(binary: bytes, tmp_path: Path) -> None:
    """libQnnSystem hands on the count of tensors as it stands there: 16 million is gigabytes."""
    (begin,) = struct.unpack_from("<Q", binary, 24)  # of what is behind the metadata
    counts = [at for at in range(40, begin, 4) if binary[at : at + 4] == struct.pack("<I", 6)]
    assert counts  # of a graph's inputs, among others
    path, refused = tmp_path / "damaged.bin", 0
    for at in counts:
        path.write_bytes(binary[:at] + struct.pack("<I", 6 + (1 << 24)) + binary[at + 4 :])
        try:
            file = graphs.read(path)
        except GenieError as error:
            refused += "damaged" in error.what
        else:
            assert all(len(graph.inputs) == 6 for graph in file.graphs)
    assert refused


def test_damaged_binaries_are_not_renumbered(binary: bytes, tmp_path: Path) -> None:
    rng = random.Random(2)
    path, out = tmp_path / "damaged.bin", tmp_path / "out"
    for _ in range(20):
        path.write_bytes(damaged(binary, rng))
        with pytest.raises(MnnqnnError):
            renumber([path], out)
        assert not out.exists() or not any(out.iterdir())


def test_damaged_bundles_are_probed(binary: bytes, tmp_path: Path) -> None:
    """libGenie may refuse, crash or take it: that is a result, and we predict the same."""
    rng = random.Random(6)
    one = Case("genie_config", ())
    write_files(tmp_path)
    path = write_case(tmp_path, one)
    config = json.loads(path.read_text())
    config["dialog"]["engine"]["model"]["binary"]["ctx-bins"] = ["a.bin"]
    for number in range(9):
        whole = number % 3
        (tmp_path / "a.bin").write_bytes(binary if whole else damaged(binary, rng))
        path.write_bytes(written(config if whole != 1 else mutated(config, rng), rng))
        try:
            found = probe(tmp_path, library.find(None), timeout=60)
        except GenieError as error:
            assert str(tmp_path) in str(error)
            continue
        assert found.exit_code in (0, 1), "\n".join(to_text(found))


def test_damaged_binaries_that_are_loaded(binary: bytes, tmp_path: Path) -> None:
    """Loading goes deeper into the file than its metadata: the library may die of it."""
    rng = random.Random(3)
    path = tmp_path / "damaged.bin"
    for _ in range(15):
        changed = bytearray(binary)
        for _ in range(16):
            changed[rng.randrange(4096, len(changed))] = rng.randrange(256)
        path.write_bytes(changed)
        file = graphs.read(path)
        assert report.as_text(lint([file], load=True))


ENCODING = "QNN_QUANTIZATION_ENCODING_SCALE_OFFSET"
DUMP: dict[str, Any] = {
    "info": {
        "buildId": "v2.47.0",
        "socModel": 57,
        "graphs": [
            {
                "info": {
                    "graphName": "token_ar1_cl64_1_of_1",
                    "graphInputs": [
                        {"info": {"name": "input_ids", "dimensions": [1, 1], "dataType": 50}},
                        {
                            "info": {
                                "name": "attention_mask",
                                "dimensions": [1, 1, 1, 64],
                                "dataType": "QNN_DATATYPE_FLOAT_16",
                                "quantizeParams": {
                                    "quantizationEncoding": ENCODING,
                                    "scaleOffset": {"scale": 0.5, "offset": 0},
                                },
                            }
                        },
                    ],
                    "graphOutputs": [
                        {"info": {"name": "logits", "dimensions": [1, 1, 32], "dataType": 534}}
                    ],
                }
            }
        ],
    }
}
CONFIG: dict[str, Any] = {
    "dialog": {
        "context": {"size": 64, "n-vocab": 32, "n-embd": 8},
        "engine": {
            "longcontext": {},
            "backend": {"QnnHtp": {"kv-dim": 4, "pos-id-dim": 2}, "extensions": "ext.json"},
            "model": {"binary": {"ctx-bins": ["a.bin", "b.bin"]}},
        },
    }
}
HOSTILE = [
    *(None, True, 0, -1, 1 << 70, 10**400, 1.5, float("inf"), float("nan")),
    *("", "x", "\0", "..", "9" * 5000, "\ud800", "ar99999999999_cl1_1_of_99999999999999999999"),
    *([], {}, [[]], [{}]),
]


def mutated(value: Any, rng: random.Random) -> Any:
    """A copy of a JSON value with something in it replaced, doubled or dropped."""
    copied = json.loads(json.dumps(value))
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = (
            node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        )
        for key in keys:
            places.append((node, key))
            walk(node[key])

    walk(copied)
    for _ in range(rng.choice((1, 1, 3))):
        node, key = rng.choice(places)
        if isinstance(node, dict) and rng.random() < 0.3:
            node.pop(key, None)
        elif isinstance(node, list) and rng.random() < 0.3:
            node.append(rng.choice(HOSTILE))
        else:
            node[key] = rng.choice(HOSTILE)
    return copied


def written(value: Any, rng: random.Random) -> bytes:
    text = json.dumps(value).encode()
    if rng.random() < 0.2:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice((b"", b"{", b'"', b"\xff", b"1e999", b"[" * 3000)) + text[at:]
    return text


def test_damaged_dumps(tmp_path: Path) -> None:
    rng = random.Random(4)
    path = tmp_path / "dump.json"
    for _ in range(600):
        path.write_bytes(b"{" + written(mutated(DUMP, rng), rng)[1:])
        judged(path)


def test_damaged_configs(tmp_path: Path) -> None:
    rng = random.Random(5)
    path = tmp_path / "genie_config.json"
    file = ContextFile("a.bin", (GraphInfo("token_ar1_cl64_1_of_1", (), ()),))
    for round_ in range(600):
        extensions = {"devices": [{"soc_model": 57, "dsp_arch": "v75"}]}
        (tmp_path / "ext.json").write_bytes(written(mutated(extensions, rng), rng))
        path.write_bytes(written(mutated(CONFIG, rng), rng))
        try:
            config = read_config(path)
            problems = check(config, [file])
        except GenieError as error:
            assert str(tmp_path) in str(error)
            continue
        assert report.as_text(lint([file], config, problems=problems)), round_


_names = st.text(max_size=20) | st.from_regex(
    r"(token|prompt)?_?(ar|AR)?_?[0-9]{0,12}(_cl[0-9]{0,5})?_[0-9T]{0,3}_of_[0-9]{0,3}",
    fullmatch=True,
)
_tensors = st.lists(
    st.builds(
        Tensor,
        st.sampled_from(
            ["input_ids", "attention_mask", "inputs_embeds", "logits", "past_key_0_in", "h1", "",
             "past_key_0_out", "past_value_0_in", "position_ids_cos", "past_key_", "past_key_x_in"]
        ),
        st.sampled_from(["FLOAT_16", "INT_32", "0x1234", ""]),
        st.lists(st.integers(0, 1 << 32), max_size=5).map(tuple),
    ),
    max_size=6,
).map(tuple)  # fmt: skip


@given(st.lists(st.builds(GraphInfo, _names, _tensors, _tensors), max_size=6))
@settings(deadline=None)
def test_any_graphs_are_judged(made: list[GraphInfo]) -> None:
    result = lint([ContextFile("a.bin", tuple(made))])
    assert len(result.predictions) == len(VERSIONS)
    report.as_text(result).encode("utf-8")
    canonical_json(report.as_json(result)).encode()


@given(st.lists(_names, max_size=8))
@settings(deadline=None)
def test_any_names_are_ordered(names: list[str]) -> None:
    for version in VERSIONS:
        assert sorted(ordered(names, version)) == sorted(set(names))
    assert sorted(in_order(names)) == sorted(names)
    for name in names:
        parse(name)
