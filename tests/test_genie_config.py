"""genie_config.json: written, checked, and what the real libGenie says of the same."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from genie_models import HEAD_DIM, VOCABULARY, graph, split
from genie_wheels import WHEELS, fetch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie import config_check, library
from mnnqnn_tasks.genie.config import Device, GenieConfig, Penalty, Rope, Sampler, write
from mnnqnn_tasks.genie.config_keys import BLOCKS
from mnnqnn_tasks.genie.config_problem import Problem
from mnnqnn_tasks.genie.config_read import blocks, load, read_config
from mnnqnn_tasks.genie.graphs import ContextFile, GraphInfo, Tensor
from mnnqnn_tasks.genie.lint import lint
from mnnqnn_tasks.genie.versions import NEWEST, Version, parse_version

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas/genie_config.schema.json").read_text())
CONFIG = GenieConfig(
    context_size=64,
    vocabulary=VOCABULARY,
    bos_token=1,
    eos_tokens=(2,),
    head_dim=HEAD_DIM,
    rope=Rope(10000.0, HEAD_DIM // 2),
    ctx_bins=("1.bin", "2.bin"),
)
DEVICE = Device(57, "v75")
ARCHS = {57: "v75", 69: "v79"}


def bundle(folder: Path, config: GenieConfig = CONFIG, device: Device = DEVICE) -> Path:
    path = write(folder, config, device)
    for name in (*config.ctx_bins, config.tokenizer):
        (folder / name).write_bytes(b"there")
    return path


def context_file(*named: tuple[str, Any], soc: int | None = 57) -> ContextFile:
    """What a binary with such graphs is read as."""
    made = []
    for name, ports in named:
        one = graph(name, ports)
        inputs = tuple(Tensor(t.name, t.dtype, t.dims) for t in one.inputs())
        outputs = tuple(Tensor(t.name, t.dtype, t.dims) for t in one.outputs())
        made.append(GraphInfo(one.name, inputs, outputs))
    return ContextFile("f", tuple(made), soc)


FILES = {
    f"{number}.bin": context_file((f"token_ar1_cl64_{number}_of_2", split(number, 2, 1, 64)))
    for number in (1, 2)
}


def beside(path: Path) -> list[ContextFile]:
    """`FILES` where the config lies."""
    return [replace(file, file=str(path.parent / name)) for name, file in FILES.items()]


def problems(path: Path, files: Sequence[ContextFile] = ()) -> list[str]:
    found = config_check.check(read_config(path), files, ARCHS.get)
    return [f"{p.severity} {p.place}: {p.what}" for p in found]


def test_what_is_written_is_sound(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    assert problems(path, beside(path)) == []
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(path.read_text()))


def test_rope_scaling_goes_into_positional_encoding(tmp_path: Path) -> None:
    scaling = {"rope-type": "llama3", "factor": 8.0, "low-freq-factor": 1.0}
    config = GenieConfig(
        64, 32, -1, (2, 3), HEAD_DIM, Rope(500000.0, 2, scaling), ("1.bin",), poll=False
    )
    path = bundle(tmp_path, config)
    raw = load(path)
    assert problems(path) == []
    assert raw["dialog"]["context"]["eos-token"] == [2, 3]
    jsonschema.Draft202012Validator(SCHEMA).validate(raw)


def test_a_config_without_binaries_is_refused() -> None:
    with pytest.raises(GenieError, match="without context binaries"):
        GenieConfig(64, 32, 1, (2,), 4, Rope(1e4, 2), ())


def test_two_writings_are_the_same_bytes(tmp_path: Path) -> None:
    one, two = bundle(tmp_path / "a"), bundle(tmp_path / "b")
    assert one.read_bytes() == two.read_bytes()


def edit(path: Path, place: str, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    for _, block in blocks(data, place):
        change(block)  # type: ignore[arg-type]
    path.write_text(json.dumps(data))


HTP = "dialog.engine.backend.QnnHtp"
BINARY = "dialog.engine.model.binary"
MISTAKES: dict[str, tuple[str, Callable[[dict[str, Any]], object], str]] = {
    "unknown key": ("dialog", lambda b: b.update(contxt={}), "error dialog.contxt: .*not know"),
    "missing key": (
        "dialog.context",
        lambda b: b.pop("size"),
        "context.size: it is missing",
    ),
    "type": ("dialog.sampler", lambda b: b.update({"top-k": "1"}), "top-k: '1' does not fit"),
    "true is no number": ("dialog.context", lambda b: b.update(size=True), "True does not fit"),
    "choice": ("dialog", lambda b: b.update(type="chat"), "dialog.type: 'chat' does not fit"),
    "absolute": (
        BINARY,
        lambda b: b.update({"ctx-bins": ["/1.bin"]}),
        r"warning .*\[0\]: .* outside",
    ),
    "parent": ("dialog.tokenizer", lambda b: b.update(path="../t.json"), "path: .* outside"),
    "dots inside": ("dialog.tokenizer", lambda b: b.update(path="a/../../t.json"), "outside"),
    "too long": ("dialog.tokenizer", lambda b: b.update(path="t" * 5000), "there is no file 'ttt"),
    "no name": ("dialog.tokenizer", lambda b: b.update(path="\ud800"), "names no file"),
    "no such file": (BINARY, lambda b: b.update({"ctx-bins": ["3.bin"]}), "there is no file '3"),
    "twice": (BINARY, lambda b: b.update({"ctx-bins": ["1.bin", "1.bin"]}), "there twice"),
    "empty list": (BINARY, lambda b: b.update({"ctx-bins": []}), "it is empty"),
    "both lists": (BINARY, lambda b: b.update(fcb=["1.bin"]), "ctx-bins and fcb are both"),
    "order": (
        BINARY,
        lambda b: b.update({"ctx-bins": ["2.bin", "1.bin"]}),
        "warning .*ctx-bins: the binaries hold splits 2, 1",
    ),
    "types": (BINARY, lambda b: b.update({"ctx-bins": [1]}), r"ctx-bins: \[1\] does not fit"),
    "no file list": ("dialog", lambda b: b.update(engine=1), "dialog.engine: 1 does not fit"),
    "vocabulary": ("dialog.context", lambda b: b.update({"n-vocab": 99}), "n-vocab: it is 99"),
    "token": ("dialog.context", lambda b: b.update({"eos-token": [2, 32]}), "eos-token: token 32"),
    "head": (HTP, lambda b: b.update({"kv-dim": 8}), "kv-dim: it is 8, and the graphs have 4"),
    "positions": (HTP, lambda b: b.update({"pos-id-dim": 4}), "pos-id-dim: it is 4"),
    "two ropes": (
        "dialog.engine.model",
        lambda b: b.update({"positional-encoding": {"type": "rope"}}),
        "rope-theta: libGenie refuses it beside",
    ),
    "no extensions": (
        "dialog.engine.backend",
        lambda b: b.pop("extensions"),
        "warning .*extensions: there is no",
    ),
    "backend block": ("dialog.engine.backend", lambda b: b.pop("QnnHtp"), "QnnHtp: it is missing"),
    "model block": ("dialog.engine.model", lambda b: b.pop("binary"), "binary: it is missing"),
}


@pytest.mark.parametrize("label", MISTAKES)
def test_mistakes_are_told_with_their_place(tmp_path: Path, label: str) -> None:
    place, change, message = MISTAKES[label]
    path = bundle(tmp_path)
    edit(path, place, change)
    found = problems(path, beside(path))
    assert any(re.search(message, line) for line in found), found


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"dsp_arch": "v75"}, "no soc_model: answers begin well and drift"),
        ({"soc_model": 57}, "no dsp_arch"),
        ({"soc_model": 57, "dsp_arch": "v73"}, "dsp_arch is v73, and SoC 57 has v75"),
    ],
)
def test_the_chip_is_checked(tmp_path: Path, device: dict[str, Any], message: str) -> None:
    path = bundle(tmp_path)
    (tmp_path / CONFIG.extensions).write_text(json.dumps({"devices": [device]}))
    assert any(message in line for line in problems(path)), problems(path)
    assert read_config(path).soc_id == device.get("soc_model")


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "genie_config.json"
    for text in ("", "[]", "{", "\0", "[" * 100000, "1"):
        path.write_text(text)
        with pytest.raises(GenieError, match="not a Genie config"):
            read_config(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_json_is_checked_without_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    raw = copy.deepcopy(CONFIG.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(sorted(BLOCKS)))
        for _, block in blocks(raw, place):
            name = data.draw(st.sampled_from(sorted(BLOCKS[place])) | st.text(max_size=4))
            block[name] = data.draw(JSON)  # type: ignore[index]
    path = tmp_path_factory.mktemp("fuzz") / "genie_config.json"
    path.write_text(json.dumps(raw))
    for problem in config_check.check(read_config(path), beside(path), ARCHS.get):
        assert str(problem)


def test_the_schema_has_the_keys_of_the_table() -> None:
    def walk(schema: dict[str, Any], place: str) -> Iterator[tuple[str, set[str], set[str]]]:
        yield place, set(schema["properties"]), set(schema["required"])
        for name, inner in schema["properties"].items():
            here = f"{place}.{name}" if place else name
            if here == "dialog.engine":
                yield from walk(SCHEMA["$defs"]["engine"], here)
            elif isinstance(inner, dict) and "properties" in inner:
                yield from walk(inner, here)

    found = {place: (names, needed) for place, names, needed in walk(SCHEMA, "")}
    assert found == {
        place: (set(table), {name for name, key in table.items() if key.needed})
        for place, table in BLOCKS.items()
    }


def test_the_schema_tells_the_release_of_newer_keys() -> None:
    text = json.dumps(SCHEMA)
    for table in BLOCKS.values():
        for name, key in table.items():
            told = re.findall(rf'"{name}": {{"description": "([^"]*)"', text)
            assert key.since is None or any(f"Since QAIRT {key.since}." in one for one in told), (
                name
            )


#: Keys that only mean something with others, or that libGenie checks further.
RICHER = {"engine", "role", "type", "callback-name", "longcontext", "cache-groups", "batching"}
VALUES: dict[str, Any] = {
    "a whole number": 1,
    "a whole number from 0": 1,
    "a number of tokens": 1,
    "a whole number below 2147483648": -1,
    "a number": 0.5,
    "a number from 0": 0,
    "a number from 0 to 1": 1,
    "a text": "text",
    "true or false": False,
    "a list of texts": ["text"],
    "a token id or a list of them": [1, 2],
    "a text or a list of texts": "text",
}
WRONG: dict[str, Any] = {
    "1": 2,
    "a whole number": "1",
    "a whole number from 0": "1",
    "a number of tokens": "1",
    "a whole number below 2147483648": 1 << 31,
    "a number": "0.5",
    "a number from 0": -0.1,
    "a number from 0 to 1": 1.1,
    "a text": 1,
    "true or false": 0,
    "an object": "text",
    "a list of texts": "text",
    "a token id or a list of them": "1",
    "a text or a list of texts": 1,
    "an object or a list of them": "text",
}


#: Of the right type, and outside its range.
OUTSIDE: dict[str, Any] = {
    "a whole number from 0": -1,
    "a number of tokens": -1,
    "a number from 0": -0.1,
    "a number from 0 to 1": 1.1,
    "a whole number below 2147483648": 1 << 31,
}
#: Where a value was not tried above, and releases differ.
MORE: tuple[tuple[str, str, Any], ...] = (
    ("dialog", "harmony", {}),
    ("dialog", "nested-generator", {}),
    ("dialog", "nested-policy", [{}]),
    ("dialog", "callback-type", "text"),
    ("dialog.engine", "batching", {}),
    ("dialog.engine.backend", "extensions", ["text"]),
)

Tried = tuple[str, list[Problem], dict[str, Any]]


def variants() -> Iterator[Tried]:
    """A label, what our check says, and a config: one key at a time."""
    for place, table in BLOCKS.items():
        for name, key in table.items():
            if f"{place}.{name}" in BLOCKS or (not place and name in BLOCKS):
                continue
            for label, values in (("right", VALUES), ("wrong", WRONG), ("outside", OUTSIDE)):
                value = values.get(key.kind)
                if value is not None and not key.choices and name not in RICHER:
                    yield from _with(f"{place}.{name} {label}", place, name, value)
            if key.needed and name != "kv-dim":  # which createFromJson does not ask for
                yield from _with(f"{place}.{name} missing", place, name, None)
        yield from _with(f"{place}.nobody unknown", place, "nobody", 1)
    for place, name, value in MORE:
        yield from _with(f"{place}.{name} more", place, name, value)


#: With every block of the table that a config may have.
FULL = replace(CONFIG, sampler=Sampler(penalty=Penalty(64)))


def _with(label: str, place: str, name: str, value: Any) -> Iterator[Tried]:
    raw = copy.deepcopy(FULL.to_json())
    for _, block in blocks(raw, place):
        if value is None:
            block.pop(name)  # type: ignore[attr-defined]
        else:
            block[name] = value  # type: ignore[index]
    yield label, list(config_check.keys(raw)), raw


_ASK = """
import ctypes, json, os, sys
genie = ctypes.CDLL(sys.argv[1])
codes = []
for text in json.load(sys.stdin):
    made = ctypes.c_void_p()
    codes.append(genie.GenieDialogConfig_createFromJson(text.encode(), ctypes.byref(made)))
os.write(2, b"\\n@" + json.dumps(codes).encode())
os._exit(0)
"""


def ask(configs: list[dict[str, Any]], lib_dir: Path) -> list[bool]:
    """Which of the configs a libGenie takes."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(lib_dir / library.LIBRARY)],
        input=json.dumps([json.dumps(config) for config in configs]).encode(),
        capture_output=True,
        check=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(lib_dir)},
    )
    codes = json.loads(done.stderr.rpartition(b"\n@")[2])
    return [code == 0 for code in codes]


def disagreements(lib_dir: Path, release: Version) -> list[tuple[str, bool]]:
    """Configs that a libGenie takes (or does not) against what we say of its release."""
    tried = list(variants())
    assert len(tried) > 180
    verdicts = ask([config for _, _, config in tried], lib_dir)
    assert True in verdicts and False in verdicts
    return [
        (label, verdict)
        for (label, problems, _), verdict in zip(tried, verdicts, strict=True)
        if verdict == any(problem.holds(release) for problem in problems)
    ]


def test_libgenie_takes_and_refuses_the_same_configs() -> None:
    assert disagreements(library.find(None), NEWEST) == []


@pytest.mark.slow
@pytest.mark.parametrize("release", [release for release in WHEELS if release != str(NEWEST)])
def test_older_releases_take_and_refuse_the_same_configs(tmp_path: Path, release: str) -> None:
    with library.opened(fetch(WHEELS[release], tmp_path)) as lib_dir:
        assert disagreements(lib_dir, parse_version(release)) == []


def test_what_an_older_release_refuses_names_it(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    edit(path, "dialog.engine.backend.QnnHtp", lambda b: b.update({"direct-io": True}))
    edit(path, "dialog.engine.backend", lambda b: b.update(extensions=[CONFIG.extensions]))
    edit(path, "dialog.sampler", lambda b: b.update({"seed": 1 << 31}))
    config = read_config(path)
    found = lint(FILES.values(), config, problems=config_check.check(config))  # type: ignore[arg-type]
    told = {f.what.split(":")[0].rpartition(".")[2]: f.versions for f in found.findings}
    assert told["direct-io"] == ("2.42", "2.47", "2.48", "2.49")
    assert told["extensions"] == ("2.42", "2.47", "2.48")
    assert told["seed"] == ("2.51",)
    only = lint([], config, [Version(2, 50)], problems=config_check.check(config))
    assert "config" not in {finding.rule for finding in only.findings}
