"""The CPU model: MNN's numbers, the same ones every time, and a process that may die."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mnnqnn_tasks.errors import ModelFileError, NativeCrash, ToolMissing
from mnnqnn_tasks.mnn import inputs, reader, samples, worker
from mnnqnn_tasks.mnn.cpu import CpuWorker, check_model, forward, run_model, run_pieces
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.samples import Sample
from mnnqnn_tasks.mnn.segments import split
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.mnn.writer import write

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
BUNDLED = ROOT / "models" / "tiny-qwen3-w8"
OTHERS = [path for path in sorted((SHARED / "models").glob("tiny-*")) if path.name != BUNDLED.name]
MODELS = [BUNDLED, *OTHERS]
GOLDEN = sorted((SHARED / "golden").glob("*/testdir/*/input.mnn"))
MODEL, WEIGHT = BUNDLED / "llm.mnn", BUNDLED / "llm.mnn.weight"


def given(folder: Path, seq: int) -> dict[str, Sample]:
    tokens = [5 + 7 * place % 300 for place in range(seq)]
    return inputs.token_samples(open_folder(folder), reader.read(folder / "llm.mnn"), tokens)


@pytest.mark.skipif(not GOLDEN, reason=f"no golden data in {SHARED}")
@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: "-".join(p.parts[-4:-1]))
def test_forward_gives_what_mnn_s_tool_recorded(path: Path, tmp_path: Path) -> None:
    forward(SHARED / "models" / path.parts[-4], {path: tmp_path / "output.mnn"})
    ours, theirs = samples.read(tmp_path / "output.mnn"), samples.read(path.parent / "output.mnn")
    assert list(ours) == list(theirs)
    for name, sample in theirs.items():
        assert ours[name].values.shape == sample.values.shape
        assert ours[name].values.dtype == sample.values.dtype
        assert ours[name].format == sample.format
        # Another processor may add in another order.
        assert np.allclose(ours[name].values, sample.values, rtol=0, atol=1e-5)
    assert os.path.getsize(tmp_path / "output.mnn") == os.path.getsize(path.parent / "output.mnn")


def test_forward_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    inputs.write_inputs(BUNDLED, 16, tmp_path / "input.mnn")
    for name in ("a.mnn", "b.mnn"):
        forward(BUNDLED, {tmp_path / "input.mnn": tmp_path / name})
    assert (tmp_path / "a.mnn").read_bytes() == (tmp_path / "b.mnn").read_bytes()
    logits = samples.read(tmp_path / "a.mnn")["logits"].values
    assert logits.shape == (1, 16, 384)
    assert logits.std() > 0.01


def test_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/nonutf\xff\xe9"))
    shutil.copytree(BUNDLED, folder)
    inputs.write_inputs(BUNDLED, 16, tmp_path / "input.mnn")
    for place, name in ((BUNDLED, "a.mnn"), (folder, "b.mnn")):
        forward(place, {tmp_path / "input.mnn": tmp_path / name})
    assert (tmp_path / "a.mnn").read_bytes() == (tmp_path / "b.mnn").read_bytes()
    with pytest.raises(ModelFileError), CpuWorker() as process:
        process.run(folder / "gone.mnn", None, given(BUNDLED, 2), ["logits"])


@pytest.mark.parametrize("folder", MODELS, ids=lambda p: p.name)
def test_threads_do_not_matter(folder: Path) -> None:
    results = []
    for threads in (1, 2, 4):
        with CpuWorker(threads=threads) as process:
            model, weight = folder / "llm.mnn", folder / "llm.mnn.weight"
            result = process.run(model, weight, given(folder, 48), ["logits"])
            results.append(result["logits"].values.tobytes())
    assert len(set(results)) == 1


def test_a_pass_leaves_nothing_behind() -> None:
    """MNN's KV cache is empty at the start of every pass, whatever ran before."""
    with CpuWorker() as process:
        first = process.run(MODEL, WEIGHT, given(BUNDLED, 9), ["logits"])["logits"].values
        again = process.run(MODEL, WEIGHT, given(BUNDLED, 9), ["logits"])["logits"].values
        one = process.run(MODEL, WEIGHT, given(BUNDLED, 1), ["logits"])["logits"].values
    with CpuWorker() as process:
        fresh = process.run(MODEL, WEIGHT, given(BUNDLED, 1), ["logits"])["logits"].values
    assert np.array_equal(first, again)
    assert np.array_equal(one, fresh)
    # The mask is causal: one token alone is the first token of nine.
    assert np.allclose(first[0, 0], one[0, 0], atol=1e-5)


def tensors(net: Table) -> list[str]:
    kinds = ("Convolution", "Attention", "LayerNorm")
    return [net.tensorName[i] for op in net.oplists if op.type in kinds for i in op.outputIndexes]


@pytest.mark.parametrize("folder", MODELS, ids=lambda p: p.name)
def test_pieces_compute_what_the_whole_computes(folder: Path) -> None:
    model, weight = folder / "llm.mnn", folder / "llm.mnn.weight"
    net, x = check_model(model, weight), given(folder, 16)
    names = ["logits", *tensors(net)]
    with CpuWorker() as process:
        whole = process.run(model, weight, x, names)
        budgets = ((1 << 17, 2), (1, 20)) if folder == BUNDLED else ((1 << 15, 10),)
        for budget, fewest in budgets:
            assert len(split(net, list(x), names, budget)) >= fewest
            pieces = dict(run_pieces(process, net, model, weight, x, names, budget))
            assert set(pieces) == set(names)
            for name in names:
                assert pieces[name].format == whole[name].format
                assert np.array_equal(pieces[name].values, whole[name].values), name


def test_from_any_tensor_to_any_tensor() -> None:
    net = reader.read(MODEL)
    conv = next(op for op in net.oplists if op.type == "Convolution")
    source, target = net.tensorName[conv.inputIndexes[0]], net.tensorName[conv.outputIndexes[0]]
    both = run_model(MODEL, WEIGHT, given(BUNDLED, 16), [source, target])
    assert both[source].format == "NC4HW4"
    assert both[source].values.shape == (16, 64, 1, 1)
    alone = run_model(MODEL, WEIGHT, {source: both[source]}, [target])
    assert np.array_equal(alone[target].values, both[target].values)


def test_every_tensor_of_the_model_at_once() -> None:
    net = reader.read(MODEL)
    names = [
        net.tensorName[i]
        for op in net.oplists
        if op.type not in ("Const", "Input")
        for i in op.outputIndexes
    ]
    results = run_model(MODEL, WEIGHT, given(BUNDLED, 3), names)
    assert list(results) == names
    assert {sample.values.dtype.name for sample in results.values()} == {"float32", "int32"}


def test_a_model_that_shares_kv_caches_is_one_piece() -> None:
    net = reader.read(MODEL)
    attention = next(op for op in net.oplists if op.type == "Attention")
    attention.main.fields["kv_shared_layer_index"] = 0
    assert len(split(net, ["input_ids"], ["logits"], 1)) == 1


@pytest.mark.parametrize(
    ("names", "change", "words"),
    [
        (["nonsense"], {}, "no tensor nonsense"),
        (["logits"], {"nonsense": np.zeros(1, np.float32)}, "no tensor nonsense"),
        (["logits"], {"input_ids": np.zeros((16, 1, 63), np.float32)}, "could not run"),
        (["logits"], {"position_ids": np.zeros((1, 17), np.int32)}, "could not run"),
        (["logits"], {"position_ids": None}, "cannot load"),
    ],
)
def test_what_mnn_cannot_do_is_said(
    names: list[str], change: dict[str, np.ndarray | None], words: str
) -> None:
    changed = {**given(BUNDLED, 16), **change}
    x = {name: value for name, value in changed.items() if value is not None}
    with pytest.raises(ModelFileError, match=words):
        run_model(MODEL, WEIGHT, x, names)


def test_nothing_to_run_is_said() -> None:
    with CpuWorker() as process, pytest.raises(ModelFileError, match="could not run"):
        process.run(MODEL, WEIGHT, {}, ["logits"])


def test_a_worker_survives_a_refusal() -> None:
    with CpuWorker() as process:
        with pytest.raises(ModelFileError):
            process.run(MODEL, WEIGHT, given(BUNDLED, 2), ["nonsense"])
        assert process.run(MODEL, WEIGHT, given(BUNDLED, 2), ["logits"])


def test_weights_are_checked_before_mnn_sees_them(tmp_path: Path) -> None:
    short = tmp_path / "short.weight"
    short.write_bytes(WEIGHT.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="past the end"):
        check_model(MODEL, short)
    for missing in (tmp_path / "missing", None):
        with pytest.raises(ModelFileError, match="weight file of the model is missing"):
            check_model(MODEL, missing)


def test_an_input_file_that_does_not_fit(tmp_path: Path) -> None:
    samples.write(tmp_path / "input.mnn", {"input_ids": given(BUNDLED, 2)["input_ids"]})
    with pytest.raises(ModelFileError, match="does not fit") as caught:
        forward(BUNDLED, {tmp_path / "input.mnn": tmp_path / "output.mnn"})
    assert "attention_mask" in str(caught.value) or "position_ids" in str(caught.value)
    assert not (tmp_path / "output.mnn").exists()
    with pytest.raises(ModelFileError, match="not an IO sample"):
        forward(BUNDLED, {MODEL: tmp_path / "output.mnn"})


def test_a_crash_in_mnn_costs_one_process(tmp_path: Path) -> None:
    net = reader.read(MODEL)
    net.oplists[50].fields["inputIndexes"] = np.array([99_999_999], np.int32)
    write(tmp_path / "bad.mnn", net)
    with CpuWorker() as process, pytest.raises(NativeCrash) as caught:
        process.run(tmp_path / "bad.mnn", WEIGHT, given(BUNDLED, 2), ["logits"])
    assert caught.value.where == str(tmp_path / "bad.mnn")
    assert "signal SIG" in str(caught.value)
    assert "device supports" in str(caught.value.tail)  # what MNN said last


def test_a_killed_worker_is_a_crash() -> None:
    with CpuWorker() as process:
        process.run(MODEL, WEIGHT, given(BUNDLED, 2), ["logits"])
        assert process._process is not None
        process._process.send_signal(signal.SIGKILL)
        with pytest.raises(NativeCrash, match="ended") as caught:
            process.run(MODEL, WEIGHT, given(BUNDLED, 2), ["logits"])
    assert "SIGKILL" in str(caught.value)


def test_leaving_early_ends_the_worker() -> None:
    with pytest.raises(KeyboardInterrupt), CpuWorker() as process:
        handle = process._process
        raise KeyboardInterrupt
    assert handle is not None
    assert handle.wait(timeout=5) is not None


def without_mnn(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put another MNN before the installed one, as a broken or old installation is."""
    (folder / "MNN").mkdir()
    (folder / "MNN" / "__init__.py").write_text(text)
    for name in ("expr", "nn"):
        (folder / "MNN" / f"{name}.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import a_module_that_is_missing", "a_module_that_is_missing"),
        ("version = lambda: '3.5.0'", "version 3.5.0 is installed, 3.6.1 or newer"),
    ],
)
def test_a_missing_or_old_mnn_is_said(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_mnn(tmp_path, text, monkeypatch)
    with CpuWorker() as process, pytest.raises(ToolMissing) as caught:
        process.run(MODEL, WEIGHT, given(BUNDLED, 2), ["logits"])
    assert words in str(caught.value)
    assert "pip install" in str(caught.value)


def test_versions_are_numbers() -> None:
    assert worker._parse_version("3.10.0rc1") > worker.MIN_VERSION > worker._parse_version("3.5")


def test_a_run_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the home, the current nor the temporary folder, nor beside the model."""
    folders = {name: tmp_path / name for name in ("home", "here", "temp", "model")}
    for name in ("home", "here", "temp"):
        folders[name].mkdir()
    shutil.copytree(BUNDLED, folders["model"])
    before = sorted(path.name for path in folders["model"].iterdir())
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(folders["home"]))
    monkeypatch.setenv("TMPDIR", str(folders["temp"]))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(folders["here"])
    inputs.write_inputs(folders["model"], 4, tmp_path / "input.mnn")
    forward(folders["model"], {tmp_path / "input.mnn": tmp_path / "output.mnn"})
    for name in ("home", "here", "temp"):
        assert list(folders[name].iterdir()) == []
    assert sorted(path.name for path in folders["model"].iterdir()) == before


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_worker_opens_no_socket() -> None:
    with CpuWorker() as process:
        process.run(MODEL, WEIGHT, given(BUNDLED, 2), ["logits"])
        assert process._process is not None
        descriptors = Path(f"/proc/{process._process.pid}/fd")
        links = [os.readlink(item) for item in descriptors.iterdir()]
        modules = Path(f"/proc/{process._process.pid}/maps").read_text()
    assert not [link for link in links if link.startswith("socket:")]
    assert "_tools." not in modules  # the part of the wheel that reports usage


def test_relative_paths_are_those_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BUNDLED)
    assert run_model("llm.mnn", "llm.mnn.weight", given(BUNDLED, 2), ["logits"])


def test_a_short_run_is_short() -> None:
    """A second run in the same worker loads nothing again."""
    x = given(BUNDLED, 2)
    with CpuWorker() as process:
        start = time.perf_counter()
        process.run(MODEL, WEIGHT, x, ["logits"])
        first = time.perf_counter() - start
        times = []
        for _ in range(5):
            start = time.perf_counter()
            process.run(MODEL, WEIGHT, x, ["logits"])
            times.append(time.perf_counter() - start)
    assert min(times) < first / 2
