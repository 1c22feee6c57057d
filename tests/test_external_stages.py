"""The stages with doubled tools: what they make, and every way in which a tool lets us down."""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from external_doubles import COMPILE, CONTEXT, IO, LLM_IO, MODEL_LIB, Tools, mnn_build, qnn_sdk
from tasks_project import MODEL, exported

from mnnqnn_tasks.errors import (
    MnnqnnError,
    NativeCrash,
    QnnError,
    StaleInputError,
    ToolError,
    ToolMissing,
)
from mnnqnn_tasks.files import sha256_file
from mnnqnn_tasks.mnn import samples
from mnnqnn_tasks.mnn.folder import ModelFolder, open_folder
from mnnqnn_tasks.qnn import library
from mnnqnn_tasks.qnn.options import TargetOptions
from mnnqnn_tasks.spec.schemas import schema
from mnnqnn_tasks.toolchain.cppnet.listing import read_listing
from mnnqnn_tasks.toolchain.external import linking, loads, mnnbuild, stages
from mnnqnn_tasks.toolchain.external.cutting import Options, cut
from mnnqnn_tasks.toolchain.external.runner import Runner
from mnnqnn_tasks.toolchain.external.samples import make_samples
from mnnqnn_tasks.toolchain.external.sdk import Sdk

TARGET = TargetOptions(soc_id=57, dsp_arch="v75")


@pytest.fixture(scope="module")
def model() -> ModelFolder:
    return open_folder(MODEL)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner("task:m", tmp_path / "log", 120)


# IO samples


@pytest.mark.parametrize("tool", [LLM_IO, IO])
def test_samples_of_either_generation(
    tmp_path: Path, model: ModelFolder, runner: Runner, tool: str
) -> None:
    build = mnn_build(tmp_path / "mnn", tool)
    lengths = (1, 16) if tool == IO else (1, 16, 8)
    out = {n: {k: tmp_path / f"t/{n}/{k}.mnn" for k in ("input", "output")} for n in lengths}
    make_samples(model, build.folder, tmp_path / "w", runner, out)
    for length, pair in out.items():
        given = samples.read(pair["input"])
        assert given["input_ids"].values.shape == (length, 1, 64)
        assert given["attention_mask"].values.shape == (1, 1, length, length)
        assert "logits" in samples.read(pair["output"])
    assert len(build.calls(tool)) == (1 if tool == IO else 2)
    assert not (tmp_path / "w").exists()


def test_a_tool_is_asked_what_it_is(tmp_path: Path) -> None:
    build = mnn_build(tmp_path / "mnn", IO, LLM_IO)
    found = mnnbuild.io_tools(build.folder)
    assert [(tool.path.name, tool.takes_json) for tool in found] == [(IO, True), (LLM_IO, False)]
    # The names do not tell: a version of MNN may have called the newer one so.
    (build.folder / IO).rename(build.folder / LLM_IO)
    assert mnnbuild.io_tools(build.folder)[0].takes_json
    (build.folder / LLM_IO).write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(ToolError, match="how it wants to be called"):
        mnnbuild.io_tools(build.folder)
    (build.folder / LLM_IO).unlink()
    with pytest.raises(ToolMissing, match="makes IO samples"):
        mnnbuild.io_tools(build.folder)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("nothing", "did not make input.mnn"),
        ("partial", "made a bad output.mnn"),
        ("shape", "not one of 16 tokens"),
    ],
)
def test_bad_samples_are_not_taken(
    tmp_path: Path, model: ModelFolder, runner: Runner, mode: str, words: str
) -> None:
    build = mnn_build(tmp_path / "mnn")
    build.mode(generateLlmIO=mode)
    out = {n: {k: tmp_path / f"t/{n}/{k}.mnn" for k in ("input", "output")} for n in (1, 16)}
    with pytest.raises(ToolError) as caught:
        make_samples(model, build.folder, tmp_path / "w", runner, out)
    assert words in str(caught.value)
    assert not (tmp_path / "t").exists()


# compilefornpu


@dataclass
class Bench:
    """An exported project to take samples from, and a doubled build."""

    build: Tools
    inputs: list[Path]
    model: ModelFolder
    first: Path

    def cut(self, out: Path, runner: Runner, **options: Any) -> dict[Path, str]:
        told = Options(**options)
        work = out.parent / "w"
        return cut(self.model, self.build.folder, work, runner, self.inputs, told, out).files


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, model: ModelFolder) -> Bench:
    top = tmp_path_factory.mktemp("bench")
    project = exported(top / "p")
    assert project.doit("io:m:output").code == 0
    inputs = [project.build / "testdir" / str(n) / "input.mnn" for n in (1, 16)]
    made = Bench(mnn_build(top / "mnn tools"), inputs, model, top / "first")
    made.cut(made.first, Runner("t", top / "log", 120))
    return made


@pytest.fixture
def ready(bench: Bench) -> Bench:
    bench.build.mode()
    bench.build.forget()
    return bench


def test_a_cut_is_put_in_place_with_its_lists(tmp_path: Path, ready: Bench, runner: Runner) -> None:
    out = tmp_path / "b 'ü"
    files = ready.cut(out, runner)
    assert {path.relative_to(out).parts[0] for path in files} == {
        *("qnn", "sources", "npu_postreat.json")
    }
    listing = json.loads((out / "sources" / "graph1_2.json").read_text())
    assert {name: entry["sha256"] for name, entry in listing.items()} == {
        path.name: sha256_file(path) for path in (out / "sources" / "graph1_2").iterdir()
    }
    (call,) = ready.build.calls(COMPILE)
    assert call["argv"] == ["model/llm.mnn", "qnn/llm.mnn", "qnn.json"]
    weights = [
        {path.stat().st_ino for path in (out / "sources" / graph).glob("*.raw")}
        for graph in ("graph4", "graph1_4")
    ]
    assert weights[0] & weights[1]  # one file for decode and prefill
    assert weights[0] <= {path.stat().st_ino for path in (out / "blobs").iterdir()}
    # The same again changes no file, not even its time.
    before = {path: path.stat().st_mtime_ns for path in files}
    (out / "sources" / "graph9").mkdir()
    assert ready.cut(out, runner) == files
    assert {path: path.stat().st_mtime_ns for path in files} == before
    assert not (out / "sources" / "graph9").exists()


def test_another_order_of_the_same_nodes_is_no_change(
    tmp_path: Path, ready: Bench, runner: Runner
) -> None:
    """The real tool's depends on where things lie in its memory."""
    out = tmp_path / "b"
    before = ready.cut(out, runner)
    ready.build.mode(compilefornpu="other order")
    assert ready.cut(out, runner) == before
    other = ready.cut(tmp_path / "new", runner)
    changed = [
        path.name
        for path in other
        if other[path] != before[out / path.relative_to(tmp_path / "new")]
    ]
    assert sorted(changed) == ["graph4.cpp", "graph4.json"]


def test_what_compilefornpu_is_told() -> None:
    told = Options("graphllm", ("/a", "/b"), 4096)
    assert told.config(["testdir/0", "testdir/1"]) == {
        "type": "QNN",
        "graph_name": "graphllm",
        "skips": ["/a", "/b"],
        "KVCACHE_SIZE_LIMIT": 4096,
        "testdir": ["testdir/0", "testdir/1"],
        "cache": "qnn",
    }


FAILURES = {
    "missing": "left out the op /layers.1/StridedSlice_output_0 (Softmax)",
    "silent": "6 of 10 graphs have no source",
    "truncated": "the source of a graph ends too early",
    "no raw": ".raw is missing",
    "link": "it is no plain file",
    "outside": "no path inside the build folder",
    "other host": "a bad qnn/llm.mnn",
    "nothing": "did not make npu_postreat.json",
    "exit": "exit code 7",
    "segv": "ended by SIGSEGV",
}


@pytest.mark.parametrize("mode", FAILURES)
def test_a_cut_that_failed_leaves_the_old_one(
    tmp_path: Path, ready: Bench, runner: Runner, mode: str
) -> None:
    out = tmp_path / "b"
    shutil.copytree(ready.first, out)
    files = {path: sha256_file(path) for path in out.rglob("*") if path.is_file()}
    ready.build.mode(compilefornpu=mode)
    with pytest.raises(MnnqnnError) as caught:
        ready.cut(out, runner)
    words = FAILURES[mode].replace("Softmax", _type_91())
    assert words in str(caught.value)
    assert "last lines" in str(caught.value) and "compilefornpu: begin" in str(caught.value)
    assert {path: sha256_file(path) for path in out.rglob("*") if path.is_file()} == files


def _type_91() -> str:
    from mnnqnn_tasks.mnn import schema as mnn_schema

    return mnn_schema.load().enums["OpType"].names[91]


def test_a_cut_that_hangs(tmp_path: Path, ready: Bench) -> None:
    ready.build.mode(compilefornpu="hang")
    with pytest.raises(ToolError, match="longer than 2 s"):
        ready.cut(tmp_path / "b", Runner("t", tmp_path / "log", 2))


def test_options_that_an_older_mnn_ignores(tmp_path: Path, ready: Bench, runner: Runner) -> None:
    for options, words in (
        ({"max_history_token": 64}, "no notice of KVCACHE_SIZE_LIMIT"),
        ({"graph_name": "graphllm"}, "no notice of graph_name"),
        ({"skips": ("/no/such",)}, "'/no/such', which the model does not have"),
    ):
        with pytest.raises(ToolError, match=words):
            ready.cut(tmp_path / "b", runner, **options)


def test_a_build_without_qnn_conversion_is_named(
    tmp_path: Path, ready: Bench, runner: Runner
) -> None:
    path = ready.build.folder / COMPILE
    text = path.read_text()
    try:
        path.write_text(text.replace("QnnModel_composeGraphs", ""))
        assert not mnnbuild.writes_sources(ready.build.folder)
        ready.build.mode(compilefornpu="silent")
        with pytest.raises(MnnqnnError, match="was built without QNN conversion"):
            ready.cut(tmp_path / "b", runner)
    finally:
        path.write_text(text)


def test_the_plan_says_what_the_native_one_says(tmp_path: Path, ready: Bench) -> None:
    """Pieces, their borders, and what they read of the weights."""
    project = exported(tmp_path / "p")
    native = json.loads((project.build / "plan.json").read_text())
    index = project.build / "model.json"
    stages.partition(
        folder=str(project.model),
        index=str(index),
        digests=str(tmp_path / "digests"),
        shapes=[1, 16],
        inputs=[str(path) for path in ready.inputs],
        options={"graph_name": "graph", "skips": [], "max_history_token": 0},
        out=str(tmp_path / "b"),
        tools={
            **{"label": "t", "log": str(tmp_path / "log"), "work": str(tmp_path / "w")},
            **{"limit_s": 120, "live": False, "stamps": {}, "mnn": str(ready.build.folder)},
        },
    )
    made = json.loads((tmp_path / "b" / "plan.json").read_text())
    jsonschema.validate(made, schema("plan"))
    pairs = list(zip(_npu(made), _npu(native), strict=True))
    assert len(pairs) == 5
    for mine, other in pairs:
        assert mine["binary"] == other["binary"]
        assert [g["graph"] for g in mine["graphs"]] == [g["graph"] for g in other["graphs"]]
        for side in ("inputs", "outputs"):
            assert [p["tensor"] for p in mine[side]] == [p["tensor"] for p in other[side]]
        assert [w for w in other["weights"] if w not in mine["weights"]] == []
    assert made["host_reads_weights"] == native["host_reads_weights"]


def _npu(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [piece for piece in plan["pieces"] if piece["place"] == "npu"]


# The SDK


def test_raws_are_packed_by_content_alone(tmp_path: Path) -> None:
    long = "x" * 150 + ".raw"
    for n, order in enumerate((("b.raw", "a.raw", long), (long, "a.raw", "b.raw"))):
        folder = tmp_path / str(n)
        folder.mkdir()
        for name in order:
            (folder / name).write_bytes(name.encode() * 1000)
            (folder / name).chmod(0o600 + 0o44 * n)
        (folder / "graph0.cpp").write_text("no raw")
        linking.pack_raws(folder, listed(folder), tmp_path / f"{n}.tar")
    assert (tmp_path / "0.tar").read_bytes() == (tmp_path / "1.tar").read_bytes()
    with tarfile.open(tmp_path / "0.tar") as tar:
        assert tar.getnames() == ["a.raw", "b.raw", long]
    with pytest.raises(ToolError, match="no raw files"):
        linking.pack_raws(tmp_path / "empty", {}, tmp_path / "t")
    files = listed(tmp_path / "0")
    (tmp_path / "0" / "b.raw").write_bytes(b"B" * 5000)
    with pytest.raises(StaleInputError, match="changed after it was made"):
        linking.pack_raws(tmp_path / "0", files, tmp_path / "t")


def listed(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in folder.iterdir()}


@dataclass
class Linker:
    """A doubled SDK, a graph's source, and its library."""

    tools: Tools
    sdk: Sdk
    source: Path
    library: Path

    def link(self, top: Path, runner: Runner, target: TargetOptions = TARGET) -> Path:
        out = top / "graph4.bin"
        pairs = [("graph4", self.library)]
        linking.make_binary(pairs, "graph4", self.sdk, target, top / "w", runner, out)
        return out


@pytest.fixture(scope="module")
def linker(tmp_path_factory: pytest.TempPathFactory) -> Linker:
    top = tmp_path_factory.mktemp("linker")
    source = exported(top / "p").build / "qnn" / "graph4"
    made = Linker(qnn_sdk(top / "sdk, 'x'"), Sdk(top / "sdk, 'x'"), source, top / "libgraph4.so")
    runner = Runner("t", top / "log", 120)
    files = listed(source)
    linking.compile_graph(source, "graph4", files, made.sdk, top / "a b", runner, made.library)
    return made


def test_a_binary_is_read_back(tmp_path: Path, linker: Linker, runner: Runner) -> None:
    linker.tools.mode()
    target = TargetOptions(57, "v75", vtcm_mb=4, optimization_level=2, hvx_threads=2)
    assert linker.link(tmp_path, runner, target).stat().st_size > 1000
    call = linker.tools.calls(CONTEXT)[-1]
    assert call["argv"][:2] == ["--model", "./libgraph4.so"]
    assert call["sdk"] == str(linker.sdk.root)


def test_a_temporary_folder_that_make_cannot_have(
    tmp_path: Path, linker: Linker, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    linker.tools.mode()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "a b"))
    files = listed(linker.source)
    out = tmp_path / "c d" / "x.so"
    linking.compile_graph(
        linker.source, "graph4", files, linker.sdk, tmp_path / "c d" / "w", runner, out
    )
    assert out.is_file()


LINK_FAILURES = {
    "nothing": "did not make graph4.bin",
    "other chip": "soc_id is 69, asked 57",
    "cut off": "not a QNN context binary",
    "segv": "ended by SIGSEGV",
}


@pytest.mark.parametrize("mode", LINK_FAILURES)
def test_a_bad_binary_is_not_taken(
    tmp_path: Path, linker: Linker, runner: Runner, mode: str
) -> None:
    linker.tools.mode(qnn_context_binary_generator=mode)
    (tmp_path / "graph4.bin").write_bytes(b"old")
    with pytest.raises((ToolError, NativeCrash, QnnError)) as caught:
        linker.link(tmp_path, runner)
    assert LINK_FAILURES[mode] in str(caught.value)
    assert (tmp_path / "graph4.bin").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("mode", "words"), [("nothing", "did not make libgraph4.so"), ("empty", "it is empty")]
)
def test_a_library_that_is_not_made(
    tmp_path: Path, linker: Linker, runner: Runner, mode: str, words: str
) -> None:
    linker.tools.mode(qnn_model_lib_generator=mode)
    with pytest.raises(ToolError) as caught:
        files = listed(linker.source)
        out = tmp_path / "x.so"
        linking.compile_graph(
            linker.source, "graph4", files, linker.sdk, tmp_path / "w", runner, out
        )
    assert words in str(caught.value)
    assert "exit code 0" in str(caught.value) and not (tmp_path / "x.so").exists()


def test_an_sdk_without_a_tool_or_of_unknown_version(tmp_path: Path) -> None:
    tools = qnn_sdk(tmp_path / "qairt" / "2.40.1", version="2.31.0.250130")
    sdk = Sdk(tmp_path / "qairt" / "2.40.1")
    assert sdk.version() == "2.31.0.250130"
    assert sdk.archs() == ["v75", "v79"]
    (sdk.root / "sdk.yaml").unlink()
    assert sdk.version() == "2.40.1"
    (tools.folder / MODEL_LIB).unlink()
    with pytest.raises(ToolMissing, match="qnn-model-lib-generator is not in the QAIRT SDK"):
        sdk.require()
    assert Sdk(tmp_path).version() is None


def test_configuration_files_are_those_of_npu_convert() -> None:
    target = TargetOptions(57, "v75", 4, 2, 3, False, False)
    config = linking.extensions_config(["graph0", "graph1_0"], target)
    assert config["graphs"] == [
        {
            "vtcm_mb": 4,
            "O": 2.0,
            "fp16_relaxed_precision": 0,
            "hvx_threads": 3,
            "graph_names": ["graph0", "graph1_0"],
        }
    ]
    (device,) = config["devices"]
    assert (device["soc_id"], device["dsp_arch"]) == (57, "v75")
    assert device["cores"][0]["perf_profile"] == "burst"
    assert config["context"] == {"weight_sharing_enabled": False}
    backend = linking.context_config(Sdk(Path("/s")))["backend_extensions"]
    assert backend["shared_library_path"].startswith("/s/lib/x86_64-linux-clang/libQnnHtpNetRun")


@pytest.mark.parametrize("part", ["graph4.cpp", ".raw"])
def test_a_source_that_was_altered_afterwards(
    tmp_path: Path, ready: Bench, linker: Linker, runner: Runner, part: str
) -> None:
    """The list of a source stands for it in keys, so whoever reads the files compares them."""
    out = tmp_path / "b"
    ready.cut(out, runner)
    source, index = out / "sources" / "graph4", out / "sources" / "graph4.json"
    path = max(path for path in source.iterdir() if path.name.endswith(part))
    data = bytearray(path.read_bytes())
    path.unlink()  # else the blob is altered as well
    data[-2] ^= 1
    path.write_bytes(data)
    net, blobs = tmp_path / "q" / "graph4_net.json", tmp_path / "blobs"
    with pytest.raises(StaleInputError, match=path.name):
        stages.translate(str(source), str(index), str(net), str(blobs))
    assert not net.exists()
    files = read_listing(index)
    with pytest.raises(StaleInputError, match="changed after it was made"):
        linking.compile_graph(
            source, "graph4", files, linker.sdk, tmp_path / "w", runner, tmp_path / "x.so"
        )
    assert not (tmp_path / "x.so").exists()


def test_what_a_build_consists_of(tmp_path: Path) -> None:
    """Asked of the loader, with real programs; of a script nobody can tell."""
    for name in (COMPILE, IO):
        shutil.copyfile("/bin/sh", tmp_path / name)
    assert mnnbuild.consists_of(tmp_path) == ([tmp_path / COMPILE, tmp_path / IO], True)
    htp = library.find() / "libQnnHtp.so"
    loaded = loads.libraries(htp)
    assert loaded is not None and all(path.is_file() for path in loaded)
    assert not [path for path in loaded if path.name.startswith(("libc.so", "libstdc++"))]
    for text in (b"#!/bin/sh\n", b"\x7fELF" + bytes(60)):
        (tmp_path / IO).write_bytes(text)
        assert loads.libraries(tmp_path / IO) is None
        assert mnnbuild.consists_of(tmp_path)[1] is False
    assert mnnbuild.consists_of(tmp_path / "nowhere") == ([], False)
