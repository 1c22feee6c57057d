"""`doit genie_lint` on real context binaries: tables, findings, exit codes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from genie_models import HEAD_DIM, HIDDEN, VOCABULARY, Port, Ports, build, graph, language, split

from mnnqnn_tasks.genie import graphs, report
from mnnqnn_tasks.genie.config import EXTENSIONS, Device, GenieConfig, Rope
from mnnqnn_tasks.genie.config_check import check
from mnnqnn_tasks.genie.config_read import read_config
from mnnqnn_tasks.genie.finding import ADVICE, Finding
from mnnqnn_tasks.genie.graphs import ContextFile, GraphInfo
from mnnqnn_tasks.genie.lint import Lint, lint
from mnnqnn_tasks.genie.versions import VERSIONS, Version, parse_version
from mnnqnn_tasks.qnn.ir import Graph
from mnnqnn_tasks.spec.schemas import schema

OLD = ("2.42", "2.47", "2.48", "2.49")
RELEASES = tuple(map(str, VERSIONS))
CL = 4096


def lookup(name: str, ar: int = 1) -> Graph:
    """A first split that looks embeddings up: nothing in it tells the context length."""
    ports = Ports(
        (Port("input_ids", "INT_32", (1, ar)), Port("position_ids_cos", "FLOAT_16", (1, 1, ar, 2))),
        (Port("h1", "FLOAT_16", (1, ar, HIDDEN)),),
    )
    return graph(name, ports)


def body(name: str, ar: int, cl: int) -> Graph:
    """The last split behind `lookup`."""
    return graph(name, language(ar, cl, first=False).renamed(hidden="h1"))


def splits(form: str, total: int, ar: int = 1, cl: int = CL) -> list[Graph]:
    """A model of ``total`` splits; ``form`` has ``{k}``."""
    return [graph(form.format(k=k), split(k, total, ar, cl)) for k in range(1, total + 1)]


#: Every bundle of these tests, linked at once.
BUNDLES: dict[str, list[Graph]] = {
    "good": [
        *splits("token_ar1_cl4096_{k}_of_2", 2),
        *splits("prompt_ar8_cl4096_{k}_of_2", 2, 8),
    ],
    "eleven": splits("token_ar1_cl4096_{k}_of_11", 11),
    "padded": splits("token_ar1_cl4096_{k:02}_of_11", 11),
    "nine": splits("token_ar1_cl4096_{k}_of_9", 9),
    "unnamed": [*splits("qwen2_5_7b_instruct_token_{k}_of_2", 2)],
    "unnamed_lookup": [
        lookup("qwen2_5_7b_instruct_token_1_of_2"),
        body("qwen2_5_7b_instruct_token_2_of_2", 1, CL),
        body("qwen2_5_7b_instruct_token_long_2_of_2", 1, 2 * CL),
    ],
    "number": [lookup("qwen_2048_token_1_of_2"), body("qwen_2048_token_2_of_2", 1, CL)],
    "contradicts": [graph("prompt_ar128_cl2048_1_of_1", language(1, CL))],
    "no_logits": [graph("token_ar1_cl64_1_of_1", language(1, 64).without("logits"))],
    "no_ids": [graph("token_ar1_cl64_1_of_1", language(1, 64).without("input_ids"))],
    "no_mask": [graph("token_ar1_cl64_1_of_1", language(1, 64).without("attention_mask"))],
    "no_ar": [
        graph("token_1_of_2", language(1, 64, last=False).renamed(hidden_out="h1")),
        graph("2_of_2", Ports((Port("h1", "FLOAT_16", (8,)),), (Port("x", "FLOAT_16", (8,)),))),
    ],
    "missing": [
        *splits("token_ar1_cl4096_{k}_of_3", 3),
        *splits("prompt_ar8_cl4096_{k}_of_3", 3, 8)[:2],
    ],
    "twice": [
        graph("token_ar1_cl64_1_of_1", language(8, 64)),
        graph("prompt_ar8_cl64_1_of_1", language(8, 64)),
    ],
    "unconnected": [
        graph("token_ar1_cl64_1_of_2", language(1, 64, last=False)),
        graph("token_ar1_cl64_2_of_2", language(1, 64, first=False, layers=(1,))),
    ],
    "swapped": [
        graph("token_ar1_cl64_1_of_4", split(1, 4, 1, 64)),
        graph("token_ar1_cl64_2_of_4", split(3, 4, 1, 64)),
        graph("token_ar1_cl64_3_of_4", split(2, 4, 1, 64)),
        graph("token_ar1_cl64_4_of_4", split(4, 4, 1, 64)),
    ],
    "other_shape": [
        graph("token_ar1_cl64_1_of_2", split(1, 2, 1, 64)),
        graph(
            "token_ar1_cl64_2_of_2",
            split(2, 2, 1, 64).having(inputs=[Port("h1", "FLOAT_32", (1, 1, 4))]),
        ),
    ],
    "extra_input": [
        graph(
            "token_ar1_cl64_1_of_1",
            language(1, 64).having(inputs=[Port("rope_table", "FLOAT_16", (1, 4))]),
        )
    ],
    "kv_length": [
        graph(
            "prompt_ar8_cl64_1_of_1",
            language(8, 64).having(inputs=[Port("past_key_0_in", "FLOAT_16", (1, 1, 4, 50))]),
        )
    ],
    "no_value": [graph("token_ar1_cl64_1_of_1", language(1, 64).without("past_value_0_in"))],
}


@dataclass
class Bundles:
    folder: Path

    def paths(self, name: str) -> list[Path]:
        return [self.folder / f"{name}.bin"]

    def read(self, name: str) -> list[ContextFile]:
        return [graphs.read(path) for path in self.paths(name)]


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    folder = tmp_path_factory.mktemp("genie_lint")
    build(folder, {f"{name}.bin": made for name, made in BUNDLES.items()})
    return Bundles(folder)


def config(folder: Path, name: str = "good", size: int = CL, **engine: Any) -> Path:
    """A genie_config.json in ``folder`` for one bundle, with keys of the engine added."""
    made = GenieConfig(
        size, VOCABULARY, 1, (2,), HEAD_DIM, Rope(1e4, HEAD_DIM // 2), (f"{name}.bin",)
    )
    value = made.to_json()
    value["dialog"]["engine"] |= engine
    (folder / "tokenizer.json").write_text("{}")
    (folder / made.extensions).write_text(json.dumps(Device(57, "v75").to_json()))
    path = folder / f"{name}.json"
    path.write_text(json.dumps(value))
    return path


def of(result: Lint, rule: str) -> list[Finding]:
    return [finding for finding in result.findings if finding.rule == rule]


def doit(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The real command in a folder without a dodo file."""
    return subprocess.run(
        [sys.executable, "-m", "doit", "genie_lint", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_sound_model_has_no_finding(bundles: Bundles) -> None:
    result = lint(bundles.read("good"), read_config(config(bundles.folder)))
    assert result.findings == ()
    assert all(prediction.accepted for prediction in result.predictions)
    table = [(v.ar, v.cl, v.graphs) for v in result.predictions[0].variants]
    assert table == [
        (ar, CL, tuple(f"{kind}_ar{ar}_cl4096_{k}_of_2" for k in (1, 2)))
        for ar, kind in ((1, "token"), (8, "prompt"))
    ]


# Summary of the 2.42 document: a name without ar/cl; ten splits or more; names changed afterwards.


def test_row_1_names_without_ar_and_cl(bundles: Bundles) -> None:
    complete = lint(bundles.read("unnamed"))
    assert {f.advice.severity for f in of(complete, "name-incomplete")} == {"warning"}
    assert len(of(complete, "name-incomplete")) == 2
    assert complete.errors == 0  # the tensors tell everything
    partial = lint(bundles.read("unnamed_lookup"))
    (finding,) = of(partial, "cl-unknown")
    assert finding.versions == tuple(map(str, VERSIONS))
    assert finding.advice.mend == "recompile"
    assert finding.graphs == ("qwen2_5_7b_instruct_token_1_of_2",)
    assert "garbage from the first token on" in of(partial, "name-incomplete")[0].advice.symptom


def test_row_1_a_number_taken_for_the_context_length(bundles: Bundles) -> None:
    result = lint(bundles.read("number"))
    lookup_split, last = of(result, "cl-guessed")[0], of(result, "name-incomplete")[0]
    assert "takes 2048 for its context length" in lookup_split.what
    assert last.graphs == ("qwen_2048_token_2_of_2",)
    assert {(v.ar, v.cl) for v in result.predictions[0].variants} == {(1, 2048), (1, CL)}
    assert not any(prediction.accepted for prediction in result.predictions)


def test_row_2_ten_splits_or_more(bundles: Bundles) -> None:
    result = lint(bundles.read("eleven"))
    (finding,) = of(result, "split-order")
    assert finding.versions == OLD
    assert set(finding.says) == {
        "token_ar1_cl4096_10_of_11 : input_ids - Tensor not found",
        "token_ar1_cl4096_9_of_11 : logits - Tensor not found",
    }
    assert "10, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9" in finding.what
    assert finding.advice.mend == "renumber"
    assert result.errors == 1  # what follows from the order is not told again
    old, new = result.predictions[0], result.predictions[-1]
    assert old.variants[0].graphs[0] == "token_ar1_cl4096_10_of_11"
    assert new.accepted and new.variants[0].graphs[0] == "token_ar1_cl4096_1_of_11"
    assert lint(bundles.read("eleven"), versions=[Version(2, 51)]).errors == 0


@pytest.mark.parametrize("name", ["padded", "nine"])
def test_row_2_the_remedies_help(bundles: Bundles, name: str) -> None:
    assert lint(bundles.read(name)).errors == 0


NAME = b"token_ar1_cl4096_1_of_2"


def _string(name: bytes) -> bytes:
    return struct.pack("<I", len(name)) + name


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda data: data.replace(_string(NAME), _string(NAME + b"_abc")),
            "(Genie: Create From Binary FAILED)\n  why: its header tells of",
        ),
        (
            lambda data: data.replace(NAME, b"token_1_of_2".ljust(len(NAME), b"\0")),
            "Unable to retrieve graph handle",
        ),
        (
            lambda data: data.replace(NAME, b"token_1_of_2".ljust(len(NAME), b"_"), 1),
            "Unable to retrieve graph handle",
        ),
    ],
    ids=["other length", "padded with zeros", "padded with underscores"],
)
def test_row_3_names_changed_afterwards(
    bundles: Bundles, tmp_path: Path, change: Any, says: str
) -> None:
    (source,) = bundles.paths("good")
    path = tmp_path / "changed.bin"
    path.write_bytes(change(source.read_bytes()))
    result = doit(path, "--load", cwd=tmp_path)
    assert result.returncode in (1, 3)
    assert says in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_a_sound_file_loads(bundles: Bundles) -> None:
    assert lint(bundles.read("good"), load=True).findings == ()


@pytest.mark.parametrize(
    ("size", "changes", "found"),
    [
        (8192, {}, {"context-size": RELEASES}),
        (8192, {"longcontext": {"version": 1}}, {}),
        (4096, {}, {}),
        (1024, {}, {"context-size-equal": RELEASES[:1], "context-size-below": RELEASES[1:]}),
    ],
)
def test_context_size(
    bundles: Bundles, size: int, changes: dict[str, Any], found: dict[str, tuple[str, ...]]
) -> None:
    path = config(bundles.folder, size=size, **changes)
    result = lint(bundles.read("good"), read_config(path))
    assert {finding.rule: finding.versions for finding in result.findings} == found
    for finding in result.findings:
        says = f"Config specifies context->size={size}, but loaded max-CL=4096"
        assert finding.says == ((says,) if finding.advice.severity == "error" else ())


@pytest.mark.parametrize(
    ("bundle", "rule", "part"),
    [
        ("contradicts", "name-contradicts", "AR 128, input_ids has 1; CL 2048, attention_mask has"),
        ("no_logits", "last-output", "token_ar1_cl64_1_of_1 : logits - Tensor not found"),
        ("no_ids", "first-input", "token_ar1_cl64_1_of_1 : input_ids - Tensor not found"),
        ("no_mask", "mask", "Default Group past_ has no associated attention mask"),
        ("no_ar", "ar", "Unexpected model. Couldn't determine required input tokens 2_of_2"),
        ("missing", "splits-missing", "AR-8 CL-4096 has 2 of 3 splits, without 3"),
        ("twice", "splits-twice", "split 1 of AR-8 CL-64 is there 2 times"),
        ("twice", "name-contradicts", "token_ar1_cl64_1_of_1 says AR 1, input_ids has 8"),
        ("twice", "no-token", "8 tokens"),
        ("unconnected", "unconnected", "token_ar1_cl64_2_of_2 reads hidden, which no split gives"),
        ("swapped", "too-early", "token_ar1_cl64_2_of_4 reads h2"),
        ("other_shape", "link-differs", "[1, 1, 8] becomes [1, 1, 4]; FLOAT_16 becomes FLOAT_32"),
        ("extra_input", "zero-filled", "rope_table"),
        ("kv_length", "kv-dimension", "KV$ has input dimension 50.Expected CL=64 or CL - AR-n=56"),
        ("no_value", "kv-pair", "past_key_0_in and no past_value_0_in"),
        ("nine", "no-prompt", "one token"),
    ],
)
def test_finding(bundles: Bundles, bundle: str, rule: str, part: str) -> None:
    found = of(lint(bundles.read(bundle)), rule)
    assert any(part in finding.what for finding in found), found


def test_one_name_in_two_files(bundles: Bundles) -> None:
    (finding,) = of(lint(bundles.read("no_value") * 2), "name-twice")
    assert finding.graphs == ("token_ar1_cl64_1_of_1",)


def test_chips_and_files_of_the_config(bundles: Bundles, tmp_path: Path) -> None:
    path = config(tmp_path, "good")
    (tmp_path / EXTENSIONS).write_text(json.dumps(Device(69, "v79").to_json()))
    result = lint(bundles.read("good"), read_config(path))
    assert "soc_id 57 in" in of(result, "soc-differs")[0].what
    (listed,) = of(result, "ctx-bins")
    assert listed.what == f"{path} does not list {bundles.folder / 'good.bin'}"


def test_the_config_itself_is_judged(bundles: Bundles, tmp_path: Path) -> None:
    path = config(tmp_path)
    (tmp_path / EXTENSIONS).write_text(json.dumps({"devices": [{"dsp_arch": "v75"}]}))
    value = json.loads(path.read_text())
    value["dialog"]["engine"]["n-thread"] = 3
    path.write_text(json.dumps(value))
    result = doit(*bundles.paths("good"), "--config", path, cwd=tmp_path)
    assert result.returncode == 1
    for part in (
        "dialog.engine.n-thread: libGenie does not know this key",
        "ctx-bins[0]: there is no file",
        "no soc_model: answers begin well and drift into garbage",
        "warning: config-doubt",
    ):
        assert part in result.stdout


def test_engines_in_a_list(bundles: Bundles) -> None:
    path = config(bundles.folder)
    value = json.loads(path.read_text())
    engine = value["dialog"]["engine"]
    value["dialog"]["engine"] = [{**engine, "role": "draft", "model": {}}, engine]
    engine["role"] = "target"
    path.write_text(json.dumps(value))
    assert read_config(path).binaries == ("good.bin",)


def test_advice_is_there_for_every_rule_and_says_something(bundles: Bundles) -> None:
    from mnnqnn_tasks.genie.rulebook import RULES

    filling = {"cl", "order-strings", "order-numbers", "ar-embeds", "kv-calls", "kv-dim"}
    assert {rule.key for rule in RULES} - filling <= set(ADVICE)
    for advice in ADVICE.values():
        assert advice.symptom and advice.cause and advice.remedy


def test_json_keeps_its_schema(bundles: Bundles) -> None:
    for name in BUNDLES:
        value = report.as_json(lint(bundles.read(name)))
        jsonschema.validate(value, schema("genie_lint"))
        assert value["errors"] == sum(f["severity"] == "error" for f in value["findings"])


def test_command_without_a_dodo_file(bundles: Bundles, tmp_path: Path) -> None:
    (path,) = bundles.paths("good")
    result = doit(path, "--genie", "2.47", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Genie of QAIRT 2.47 takes the model" in result.stdout
    assert "0 errors, 0 warnings" in result.stdout
    assert not any(tmp_path.iterdir())


def test_an_unknown_release_is_told_from_known_ones(bundles: Bundles) -> None:
    result = lint(bundles.read("good"), versions=[parse_version("2.45"), parse_version("2.51")])
    text = report.as_text(result)
    assert text.startswith("Genie of QAIRT 2.45 (not known, taken for 2.42), 2.51 takes the model:")
    assert [one["known"] for one in report.as_json(result)["loaders"]] == [False, True]


def test_command_reads_the_files_of_a_config(bundles: Bundles, tmp_path: Path) -> None:
    path = config(bundles.folder, "eleven")
    result = doit("--json", f"--config={path}", cwd=tmp_path)
    value = json.loads(result.stdout)
    assert result.returncode == 1
    assert [f["rule"] for f in value["findings"]] == ["split-order", "no-prompt"]
    assert doit("--genie", "2.51", "--strict", f"--config={path}", cwd=tmp_path).returncode == 1


def test_command_with_odd_names(bundles: Bundles, tmp_path: Path) -> None:
    (source,) = bundles.paths("good")
    for name in ("a=b.bin", "ü $(x) 'y'.bin"):
        (tmp_path / name).write_bytes(source.read_bytes())
        result = doit(name, "--genie", "2.51", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert name in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "needs a context binary"),
        (("nothing.bin",), "no such file"),
        (("/dev/null",), "not a regular file"),
        ((".",), "a folder"),
        (("nothing.bin", "nowhere.bin"), "2 files cannot be read"),
        (("good.bin", "--genie", "new"), "is no version of QAIRT"),
        (("good.bin", "--genie", "1.20"), "names no single release"),
        (("good.bin", "--config", "nothing.json"), "not a Genie config"),
        (("--config", "empty.json"), "the config names no context binary"),
        (("--config", "empty.json"), "dialog.engine: it is missing"),
        (("--nonsense",), "nonsense"),
    ],
)
def test_wrong_use_is_one_message(
    bundles: Bundles, arguments: tuple[str, ...], message: str
) -> None:
    (bundles.folder / "empty.json").write_text('{"dialog": {}}')
    result = doit(*arguments, cwd=bundles.folder)
    assert result.returncode == 3
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"dialog": 1}, "dialog: 1 does not fit"),
        ({"dialog": {"context": {"size": "4096"}}}, "dialog.context.size: '4096' does not fit"),
        (
            {"dialog": {"engine": {"model": {"binary": {"ctx-bins": [1]}}}}},
            "dialog.engine.model.binary.ctx-bins: [1] does not fit",
        ),
        ({"dialog": {"engine": {"backend": {"extensions": 3}}}}, "extensions: 3 does not fit"),
    ],
)
def test_config_of_wrong_types(bundles: Bundles, tmp_path: Path, change: object, what: str) -> None:
    """The graphs are judged all the same."""
    path = tmp_path / "genie_config.json"
    path.write_text(json.dumps(change))
    said = read_config(path)
    files = bundles.read("eleven")
    result = lint(files, said, problems=check(said, files))
    assert any(what in finding.what for finding in of(result, "config"))
    assert of(result, "split-order")


def test_what_is_no_config_is_refused(bundles: Bundles, tmp_path: Path) -> None:
    path = tmp_path / "genie_config.json"
    path.write_text("[]")
    result = doit(*bundles.paths("good"), "--config", path, cwd=tmp_path)
    assert result.returncode == 3 and "it is no JSON object" in result.stderr


def test_sizes_of_the_config_are_compared_with_the_graphs(bundles: Bundles, tmp_path: Path) -> None:
    path = config(bundles.folder, "nine")
    other = tmp_path / "genie_config.json"
    text = path.read_text().replace(f'"n-vocab": {VOCABULARY}', '"n-vocab": 99')
    other.write_text(text.replace("nine.bin", str(bundles.folder / "nine.bin")))
    result = doit(f"--config={other}", cwd=tmp_path)
    assert "n-vocab: it is 99, and the graphs have 32 entries of logits" in result.stdout


def test_names_do_not_steer_the_terminal() -> None:
    file = ContextFile("a\x1b[2J.bin", (GraphInfo("x\x1b]0;y\x07\u202e\ud800", (), ()),))
    text = report.as_text(lint([file]))
    assert text.replace("\n", "").isprintable()
    text.encode("utf-8")


def test_two_gigabytes_are_not_read(bundles: Bundles, tmp_path: Path) -> None:
    """A sparse file whose header claims all of it; what was read of it is measured.

    The program's own peak is that since it began: its ru_maxrss counts the test's process,
    which it was before.
    """
    (source,) = bundles.paths("good")
    data = bytearray(source.read_bytes())
    (offset,) = struct.unpack_from("<Q", data, 24)  # where the blob begins, then its size
    assert struct.unpack_from("<Q", data, 32) == (len(data) - offset,)
    struct.pack_into("<Q", data, 32, (2 << 30) - offset)
    path = tmp_path / "large.bin"
    path.write_bytes(data)
    os.truncate(path, 2 << 30)
    program = (
        "import resource, sys; from pathlib import Path; from mnnqnn_tasks.genie import graphs;"
        "from mnnqnn_tasks.qnn import client; found = graphs.read(Path(sys.argv[1]));"
        "[s.control.close() or s.process.wait() for s in client._servers.values()];"
        "own = Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0];"
        "theirs = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss;"
        "print(len(found.graphs), max(int(own), theirs))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, timeout=120
    )
    count, kilobytes = map(int, done.stdout.split())
    assert count == 4
    assert kilobytes < 300 << 10


def test_rules_of_a_release(tmp_path: Path) -> None:
    every = doit("--rules", cwd=tmp_path)
    old, new = (doit("--rules", "--genie", version, cwd=tmp_path) for version in ("1.14", "2.51"))
    assert [done.returncode for done in (every, old, new)] == [0, 0, 0]
    assert "order-strings (2.42 to 2.49): splits are ordered as strings: _10_ before _2_\n" in (
        old.stdout
    )
    assert "  seen: sample source of QAIRT 2.42 (std::set)" in old.stdout
    assert "order-strings" not in new.stdout and "order-numbers (2.50 on)" in new.stdout
    assert every.stdout.count("seen: ") > old.stdout.count("seen: ")
