"""The real libGenie in a process of its own, and what is made of what it says."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from genie_cases import PROMPT, TOKEN, Case, graphs, write_case, write_files
from genie_models import OPTIONS, VOCABULARY, build, graph, language
from hypothesis import given, settings
from hypothesis import strategies as st

from mnnqnn_tasks.errors import GenieError, ToolMissing
from mnnqnn_tasks.genie import library, probe, testimony, witness
from mnnqnn_tasks.genie.prediction import Prediction, Refusal, Variant
from mnnqnn_tasks.genie.testimony import Testimony as Heard
from mnnqnn_tasks.genie.versions import Version
from mnnqnn_tasks.qnn.ir import Graph, Node, ScalarParam, Tensor

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas/genie_probe.schema.json").read_text())
KINDS = (("token", 1), ("prompt", 16))
NAMES = ("token_ar1_cl64_1_of_1", "prompt_ar16_cl64_1_of_1")
GOOD = Case("genie_config", ((NAMES[0], TOKEN), (NAMES[1], PROMPT)))
VALUELESS = TOKEN.without("past_value_0_in", "past_value_0_out")
DEADLY = Case("deadly", ((NAMES[0], VALUELESS),))
MUTE = Case("mute", ((NAMES[0], TOKEN.without("logits")),))
TABLE = (Variant(1, 64, NAMES[:1]), Variant(16, 64, NAMES[1:]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bundle ü")
    binaries = graphs([GOOD, DEADLY, MUTE])
    build(made, binaries)
    shared = [graph(name, ports) for name, ports in GOOD.parts]
    build(made, {"shared.bin": shared}, options=replace(OPTIONS, weight_sharing=True))
    write_files(made)
    for case in (GOOD, DEADLY, MUTE):
        write_case(made, case)
    return made


@pytest.fixture(scope="module")
def lib_dir() -> Path:
    return library.find(None)


def edited(folder: Path, name: str, old: str, new: str) -> Path:
    text = (folder / "genie_config.json").read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    return folder / name


def test_it_loads_and_answers(folder: Path, lib_dir: Path) -> None:
    before = sorted(os.listdir(folder))
    heard = witness.ask(folder / "genie_config.json", lib_dir, "a b c", tokens=4)
    assert heard.outcome == "accepted"
    assert heard.variants == TABLE
    assert heard.reasons == ()
    assert heard.prompt == (1, 3, 4, 5)
    assert heard.answer == ("d", "e", "f", "g")
    assert re.fullmatch(r"1\.\d+\.\d+", heard.api)
    assert re.fullmatch(r"2\.\d+\.\d+", heard.version)
    assert sorted(os.listdir(folder)) == before


def counting(ar: int, name: str) -> tuple[Graph, Graph]:
    """Two splits that say t + 1 after t; the first looks tokens up and tells no context length."""
    hidden = Tensor("h1", "APP_READ", "FLOAT_16", (1, ar, VOCABULARY))
    table = Tensor("next", "STATIC", "FLOAT_16", (VOCABULARY, VOCABULARY))
    ids = Tensor("input_ids", "APP_WRITE", "INT_32", (1, ar))
    axis = ScalarParam("axis", "INT_32", 0)
    look = Node("look", "Gather", ("next", "input_ids"), ("h1",), (axis,))
    body = language(ar, 64, first=False)
    inputs = [port for port in body.inputs if port.name != "hidden"]
    last = graph(name.format(k=2), replace(body, inputs=tuple(inputs)).without("logits"))
    last.tensors += [
        replace(hidden, kind="APP_WRITE"),
        Tensor("logits", "APP_READ", "FLOAT_16", hidden.dims),
    ]
    last.nodes.append(Node("say", "Reshape", ("h1",), ("logits",)))
    return Graph(name.format(k=1), [ids, table, hidden], [look]), last


@pytest.mark.parametrize(
    ("form", "outcome"),
    [
        ("{kind}_ar{ar}_cl64_{{k}}_of_2", "accepted"),
        ("qwen2_5_7b_instruct_{kind}_{{k}}_of_2", "accepted"),
        ("qwen_2048_{kind}_{{k}}_of_2", "refused"),
    ],
)
def test_what_names_without_ar_and_cl_do(
    folder: Path, lib_dir: Path, tmp_path: Path, form: str, outcome: str
) -> None:
    """Splits speak sense as long as the tensors tell AR and CL; a number in a name hides that."""
    pairs = [counting(ar, form.format(kind=kind, ar=ar)) for kind, ar in KINDS]
    names = ["1.bin", "2.bin"]
    build(tmp_path, dict(zip(names, zip(*pairs, strict=True), strict=True)))
    write_files(tmp_path)
    path = write_case(tmp_path, Case("genie_config", ()))
    config = json.loads(path.read_text())
    config["dialog"]["engine"]["model"]["binary"]["ctx-bins"] = names
    path.write_text(json.dumps(config))
    found = probe.probe(tmp_path, lib_dir, "a b c", tokens=4)
    assert found.disagreements == ()
    assert found.heard.outcome == outcome
    assert found.heard.answer == (("d", "e", "f", "g") if outcome == "accepted" else None)


def test_it_refuses(folder: Path, lib_dir: Path) -> None:
    heard = witness.ask(folder / "mute.json", lib_dir)
    assert heard.outcome == "refused"
    assert heard.answer is None
    assert f"{NAMES[0]} : logits - Tensor not found" in heard.reasons


@pytest.fixture
def cores() -> Iterator[None]:
    """Whoever crashes leaves a core, if the machine lets us have one."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.usefixtures("cores")
def test_a_crash_is_a_result(folder: Path, lib_dir: Path) -> None:
    before = sorted(os.listdir(folder))
    heard = witness.ask(folder / "deadly.json", lib_dir, "a")
    assert sorted(os.listdir(folder)) == before
    assert heard.outcome == "crashed"
    assert heard.ending == "SIGSEGV in GenieDialog_create"
    assert heard.variants == TABLE[:1]  # what it said before


def test_a_config_is_refused(folder: Path, lib_dir: Path) -> None:
    path = edited(folder, "unknown.json", '"type": "basic"', '"type": "basic", "nobody": 1')
    heard = witness.ask(path, lib_dir)
    assert heard.outcome == "config refused"
    assert any("nobody" in reason for reason in heard.reasons)


@pytest.mark.parametrize("old", ["tokenizer.json", next(iter(GOOD.binaries()))])
def test_a_missing_file_is_no_verdict(folder: Path, lib_dir: Path, old: str) -> None:
    heard = witness.ask(edited(folder, "missing.json", old, "nothing.at.all"), lib_dir)
    assert heard.outcome == "not loaded"
    assert any("nothing.at.all" in reason for reason in heard.reasons)


def test_shared_weights_give_a_table_and_no_verdict(folder: Path, lib_dir: Path) -> None:
    bins = json.dumps(list(GOOD.binaries()))
    heard = witness.ask(edited(folder, "shared.json", bins, '["shared.bin"]'), lib_dir)
    assert heard.outcome == "not loaded"
    assert heard.variants == TABLE


def test_time_is_limited(folder: Path, lib_dir: Path) -> None:
    heard = witness.ask(folder / "genie_config.json", lib_dir, timeout=0.001)
    assert heard.outcome == "timed out"
    assert heard.ending.startswith("no answer in time")


def test_a_folder_without_the_library_is_refused(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "nothing"):
        with (
            pytest.raises(ToolMissing, match=r"libGenie|no such library folder"),
            library.opened(source),
        ):
            pass
    wheel = tmp_path / "damaged.whl"
    wheel.write_bytes(b"PK\3\4damaged")
    with pytest.raises(GenieError, match="cannot unpack the wheel"), library.opened(wheel):
        pass


def folder_with(lib_dir: Path, folder: Path, genie: Path) -> Path:
    """The real QNN libraries beside another libGenie."""
    made = folder / lib_dir.name
    made.mkdir()
    for name in ("libQnnHtp.so", "libQnnSystem.so"):
        (made / name).symlink_to(lib_dir / name)
    (made / "libGenie.so").symlink_to(genie)
    beside = f"{lib_dir.name}.libs"  # the wheel's own libc++, which it looks for there
    (folder / beside).symlink_to(lib_dir.parent / beside)
    return library.find(folder)


def test_what_is_no_library_is_refused(folder: Path, lib_dir: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a library\n" * 100)
    made = folder_with(lib_dir, tmp_path, text)
    with pytest.raises(ToolMissing, match=r"libGenie\.so cannot be loaded\n  why: .*ELF"):
        witness.ask(folder / "genie_config.json", made)


def test_a_library_without_the_functions_is_no_verdict(
    folder: Path, lib_dir: Path, tmp_path: Path
) -> None:
    made = folder_with(lib_dir, tmp_path, lib_dir / "libQnnSystem.so")
    heard = witness.ask(folder / "genie_config.json", made)
    assert heard.outcome == "not loaded"
    assert "libGenie has no function GenieLog_create" in heard.reasons


def test_a_question_may_be_any_bytes(folder: Path, lib_dir: Path) -> None:
    heard = witness.ask(folder / "genie_config.json", lib_dir, "a \udcff\udcfe é", tokens=1)
    assert heard.outcome in ("accepted", "crashed")  # libGenie's own tokenizer decides


def doit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "doit", "genie_probe", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_command_says_what_libgenie_says(folder: Path, tmp_path: Path) -> None:
    done = doit(tmp_path, str(folder), "--ask", "x", "--tokens", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"    0  {NAMES[1]}" in done.stdout
    assert "answer, by token: 'y' 'z'" in done.stdout
    assert done.stdout.endswith("  as predicted\n")
    assert os.listdir(tmp_path) == []


def test_the_command_gives_json_and_an_exit_code(folder: Path, tmp_path: Path) -> None:
    both = [str(folder), str(folder / "mute.json")]
    done = doit(tmp_path, "--json", *both)
    found = json.loads(done.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    assert done.returncode == 1
    assert [one["outcome"] for one in found] == ["accepted", "refused"]
    assert [one["disagreements"] for one in found] == [[], []]
    assert found[1]["predicted"]["outcome"] == "refused"


def test_mistakes_are_one_message(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "genie_config.json").write_text("[]")
    for arguments in (
        [],
        [str(tmp_path / "nothing")],
        [str(folder), "--lib", str(tmp_path)],
        [str(folder), "--timeout", "0"],
        [str(folder), "--tokens", "x"],
    ):
        done = doit(tmp_path, *arguments)
        assert done.returncode == 3, arguments
        assert "Traceback" not in done.stderr
    done = doit(tmp_path, str(tmp_path))
    assert done.returncode == 1
    assert "config refused" in done.stdout
    assert "no prediction" in done.stdout


def predicted(*refusals: Refusal) -> Prediction:
    return Prediction(Version(2, 51), TABLE, refusals)


LOGITS = Refusal("last-output", "g : logits - Tensor not found")
DEATH = Refusal("kv-mapping", "SIGSEGV", crash=True)


@pytest.mark.parametrize(
    ("prediction", "outcome", "reasons", "found"),
    [
        (predicted(), "accepted", (), []),
        (predicted(), "refused", (LOGITS.message,), ["verdict"]),
        (predicted(LOGITS), "accepted", (), ["verdict"]),
        (predicted(LOGITS), "refused", (LOGITS.message,), []),
        (predicted(LOGITS), "refused", ("another",), ["reason", "reason"]),
        (predicted(LOGITS), "refused", (LOGITS.message, "another"), ["reason"]),
        (predicted(DEATH), "crashed", (), []),
        (predicted(DEATH), "refused", ("another",), ["verdict"]),
        (predicted(), "crashed", (), ["verdict"]),
        (predicted(), "not loaded", ("no tokenizer",), []),
        (predicted(LOGITS), "timed out", (), []),
        (predicted(LOGITS), "config refused", (), []),
    ],
)
def test_disagreements_are_found(
    prediction: Prediction, outcome: str, reasons: tuple[str, ...], found: list[str]
) -> None:
    code = {"crashed": -11, "timed out": None}.get(outcome, 0)
    heard = Heard("2.51.0", "1.21.0", outcome, TABLE, reasons, code=code)  # type: ignore[arg-type]
    assert [d.what for d in probe.compare(prediction, heard)] == found
    other = replace(heard, variants=TABLE[::-1])
    assert "table" in [d.what for d in probe.compare(prediction, other)]
    report = probe.Report("b", heard, prediction, tuple(probe.compare(prediction, heard)))
    assert report.exit_code == (2 if found else 0 if outcome == "accepted" else 1)
    jsonschema.Draft202012Validator(SCHEMA).validate([probe.to_json(report)])
    assert ("DISAGREEMENT" in "\n".join(probe.to_text(report))) == bool(found)


def test_a_process_that_the_system_killed_is_no_verdict() -> None:
    heard = Heard("2.51.0", "1.21.0", "crashed", (), code=-9)
    assert list(probe.compare(predicted(), heard)) == []


@settings(max_examples=200, deadline=None)
@given(st.text(), st.text(), st.integers(-15, 3) | st.none())
def test_torn_words_are_read(events: str, printed: str, code: int | None) -> None:
    whole = '{"log": [3, "Inserting graph g as idx 0 for AR-1 CL-64"]}\n{"step": "x"}\n'
    heard = testimony.read("2.51.0", code, whole + events.replace("{", "("), printed)
    assert heard.variants == (Variant(1, 64, ("g",)),)
    assert heard.step == "x"
