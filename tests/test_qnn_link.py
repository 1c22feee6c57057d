"""Linking, reading back and executing with the real library."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from qnn_graphs import NO_TRANSPOSE, Weights, fixed16_matmul, matmul, rms_norm, save, snr

from mnnqnn_tasks.errors import DiskError, NetFileError, QnnError, ToolMissing
from mnnqnn_tasks.files import sha256_file
from mnnqnn_tasks.qnn import run
from mnnqnn_tasks.qnn.link import differences
from mnnqnn_tasks.qnn.options import TargetOptions

TARGET = TargetOptions(57, "v75")


@pytest.fixture
def shared(tmp_path: Path) -> list[Path]:
    """Two graphs, for 1 and 16 rows, that share a weight of 1 MiB."""
    weights = Weights(1024, 1024)
    blobs = tmp_path / "blobs"
    return [
        save(tmp_path, matmul(name, rows, weights, blobs))
        for name, rows in (("graph0", 1), ("graph1_0", 16))
    ]


def test_two_graphs_share_one_weight(tmp_path: Path, shared: list[Path]) -> None:
    both = tmp_path / "out dir 中文" / "both.bin"
    info = run.link(shared, tmp_path / "blobs", TARGET, both, tmp_path / "both.json")
    assert [graph.name for graph in info.graphs] == ["graph0", "graph1_0"]
    assert info.soc_id == 57
    assert info.dsp_arch == "v75"
    assert info.graphs[1].inputs[0].dims == (16, 1024)
    assert info.graphs[1].outputs[0].name == "t1"
    assert {(g.optimization_level, g.hvx_threads, g.vtcm_bytes) for g in info.graphs} == {
        (3, 4, 8 << 20)
    }
    assert replace(run.inspect(both), dsp_arch="v75") == info
    assert '"graph1_0"' in (tmp_path / "both.json").read_text()
    assert os.listdir(both.parent) == ["both.bin"]
    apart = [
        run.link([net], tmp_path / "blobs", TARGET, tmp_path / f"{net.stem}.bin").size
        for net in shared
    ]
    assert info.size < sum(apart) - 900_000


def test_order_is_kept_and_options_change_the_bytes(tmp_path: Path, shared: list[Path]) -> None:
    blobs, out = tmp_path / "blobs", tmp_path / "a.bin"
    info = run.link(shared[::-1], blobs, TARGET, out)
    assert [graph.name for graph in info.graphs] == ["graph1_0", "graph0"]
    reversed_bytes = sha256_file(out)
    options = replace(TARGET, vtcm_mb=2, optimization_level=2, hvx_threads=2)
    info = run.link(shared[::-1], blobs, options, out)
    assert {(g.optimization_level, g.hvx_threads, g.vtcm_bytes) for g in info.graphs} == {
        (2, 2, 2 << 20)
    }
    assert sha256_file(out) != reversed_bytes


def test_same_bytes_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for name in ("one", "another place"):
        folder = tmp_path / name
        folder.mkdir()
        net = save(folder, matmul("graph0", 16, Weights(64, 128), folder / "blobs"))
        monkeypatch.chdir(folder)
        monkeypatch.setenv("LC_ALL", "de_DE.UTF-8" if name == "one" else "C")
        run.link([Path(net.name)], Path("blobs"), TARGET, Path("graph0.bin"))
        digests.add(sha256_file(folder / "graph0.bin"))
    assert len(digests) == 1


@pytest.mark.parametrize("bits", [8, 4])
def test_execute_equals_numpy(tmp_path: Path, bits: int) -> None:
    weights = Weights(128, 96, bits)
    net = save(tmp_path, matmul("graph1_0", 16, weights, tmp_path / "blobs"))
    rng = np.random.default_rng(5)
    sets = [rng.standard_normal((16, 128)).astype(np.float32) for _ in range(3)]
    inputs = [{"t0": x.tobytes()} for x in sets]
    results = run.execute(net, tmp_path / "blobs", TARGET, inputs)
    for x, result in zip(sets, results, strict=True):
        assert snr(x @ weights.real, result["t1"]) > 55


def test_execute_rms_norm(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    gamma = rng.uniform(0.5, 1.5, 64).astype(np.float16).astype(np.float32)
    net = save(tmp_path, rms_norm("graph0", 48, gamma, 1e-5, tmp_path / "blobs"))
    x = rng.standard_normal((1, 48, 64)).astype(np.float32)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gamma
    (result,) = run.execute(net, tmp_path / "blobs", TARGET, [{"t0": x.tobytes()}])
    assert snr(expected, result["t1"]) > 55


def test_execute_fixed_point(tmp_path: Path) -> None:
    weights = Weights(128, 96)
    net = save(tmp_path, fixed16_matmul("graph0", weights, tmp_path / "blobs", NO_TRANSPOSE))
    x = np.random.default_rng(7).uniform(-2, 2, (16, 128)).astype(np.float32)
    (result,) = run.execute(net, tmp_path / "blobs", TARGET, [{"t0": x.tobytes()}])
    assert snr(x @ weights.real, result["t1"]) > 55


def test_execute_refuses_an_input_of_another_size(tmp_path: Path) -> None:
    net = save(tmp_path, matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs"))
    with pytest.raises(QnnError, match="t0 needs 256 bytes"):
        run.execute(net, tmp_path / "blobs", TARGET, [{"t0": bytes(255)}])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"soc_id": 9999}, "does not accept soc_id 9999"),
        ({"dsp_arch": "v73"}, "soc_id 57 is v75, not v73"),
        ({"hvx_threads": 99}, "hvx_threads of graph0 is 4, asked 99"),
        ({"optimization_level": 5}, "optimization_level of graph0 is 2, asked 5"),
    ],
)
def test_target_that_the_library_does_not_follow(
    tmp_path: Path, change: dict[str, int], message: str
) -> None:
    net = save(tmp_path, matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs"))
    out = tmp_path / "graph0.bin"
    out.write_bytes(b"what was built before")
    with pytest.raises(QnnError, match=message):
        run.link([net], tmp_path / "blobs", replace(TARGET, **change), out)
    assert out.read_bytes() == b"what was built before"


def test_refused_op_is_named(tmp_path: Path) -> None:
    graph = matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs")
    graph.nodes[1] = replace(graph.nodes[1], type="NoSuchOp", params=())
    net = save(tmp_path, graph)
    with pytest.raises(QnnError, match=r"graph0: QNN refuses op mm \(NoSuchOp\)") as caught:
        run.link([net], tmp_path / "blobs", TARGET, tmp_path / "a.bin")
    assert caught.value.tail
    assert not (tmp_path / "a.bin").exists()


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_damaged_blob_store(tmp_path: Path, damage: str) -> None:
    graph = matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs")
    net = save(tmp_path, graph)
    (blob,) = graph.blobs()
    path = tmp_path / "blobs" / blob.sha256
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.unlink()
    if damage != "missing":
        path.write_bytes(b"abc" if damage == "short" else data)
    with pytest.raises(QnnError, match=blob.sha256):
        run.link([net], tmp_path / "blobs", TARGET, tmp_path / "a.bin")


def test_bad_net_file_is_named(tmp_path: Path) -> None:
    net = tmp_path / "graph0_net.json"
    net.write_text("{")
    with pytest.raises(NetFileError, match=r"graph0_net\.json: not JSON"):
        run.link([net], tmp_path, TARGET, tmp_path / "a.bin")


def test_binary_that_cannot_be_written(tmp_path: Path) -> None:
    net = save(tmp_path, matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError):
        run.link([net], tmp_path / "blobs", TARGET, tmp_path / "file" / "a.bin")


def test_no_library_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match=r"libQnnHtp\.so is not in the QNN library folder"):
        run.inspect(tmp_path / "a.bin", lib_dir=tmp_path)


def test_every_difference_is_reported(tmp_path: Path) -> None:
    graph = matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs")
    info = run.link([save(tmp_path, graph)], tmp_path / "blobs", TARGET, tmp_path / "a.bin")
    assert list(differences([graph], TARGET, info)) == []
    built = info.graphs[0]
    t0 = built.inputs[0]
    for change, word in (
        (replace(built, name="other"), "graphs are"),
        (replace(built, inputs=()), "inputs are"),
        (replace(built, inputs=(replace(t0, dtype="INT_32"),)), "INT_32"),
        (replace(built, inputs=(replace(t0, dims=(2, 64)),)), "(2, 64)"),
        (replace(built, outputs=(replace(t0, name="t9"),)), "t9"),
        (replace(built, vtcm_bytes=1), "vtcm_bytes"),
        (replace(built, hvx_threads=1), "hvx_threads"),
        (replace(built, optimization_level=1), "optimization_level"),
    ):
        found = list(differences([graph], TARGET, replace(info, graphs=(change,))))
        assert len(found) == 1 and word in found[0]
    other = list(differences([graph], replace(TARGET, soc_id=69, dsp_arch="v79"), info))
    assert len(other) == 2


@pytest.mark.parametrize("kind", ["empty", "text", "truncated", "garbled", "python"])
def test_file_that_is_no_binary(tmp_path: Path, kind: str) -> None:
    net = save(tmp_path, matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs"))
    good = tmp_path / "good.bin"
    run.link([net], tmp_path / "blobs", TARGET, good)
    data = good.read_bytes()
    content = {
        "empty": b"",
        "text": b"not a binary\n" * 100,
        "truncated": data[: len(data) // 2],
        "garbled": data[:64] + bytes(reversed(data[64:])),
        "python": Path(sys.executable).read_bytes()[:100_000],
    }[kind]
    bad = tmp_path / "bad.bin"
    bad.write_bytes(content)
    with pytest.raises(QnnError, match=r"bad\.bin"):
        run.inspect(bad)


def test_inspect_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(QnnError, match=r"nothing\.bin"):
        run.inspect(tmp_path / "nothing.bin")
