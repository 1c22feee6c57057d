"""What lies around the sources: ``npu_postreat.json``, raw files, tars, links out of the folder."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mnn_source_double import Double
from test_cppnet_fuzz import mnn_record
from translate_graphs import TARGET

from mnnqnn_tasks.errors import SourceFileError, StaleInputError
from mnnqnn_tasks.qnn import netjson, run
from mnnqnn_tasks.toolchain import native
from mnnqnn_tasks.toolchain.cppnet import merges, raws
from mnnqnn_tasks.toolchain.cppnet.sources import import_graph, import_sources
from mnnqnn_tasks.translate import blobstore

RAW = {"norm_gamma": b"norm_g", "conv_w": b"conv", "blocks": b"blocks_8", "conv_b": b"conv_b_8"}


def write_graph(root: Path, name: str) -> Path:
    """One graph as ``compilefornpu`` leaves it; returns its folder."""
    folder = root / "qnn" / name
    folder.mkdir(parents=True)
    record = {**mnn_record(), "graph": name}
    (folder / f"{name}.cpp").write_text(Double(record).text())
    for raw, data in RAW.items():
        (folder / f"{raw}.raw").write_bytes(data)
    return folder


def write_merges(root: Path, merge: Any = None, **more: Any) -> None:
    document = {
        "type": "QNN",
        "merge": {"qnn/graph0.bin": ["qnn/graph0", "qnn/graph1_0"]} if merge is None else merge,
        "cache": "qnn",
        **more,
    }
    (root / "npu_postreat.json").write_text(json.dumps(document, indent=1))


@pytest.fixture
def built(tmp_path: Path) -> Path:
    root = tmp_path / "built 'here'"
    for name in ("graph0", "graph1_0"):
        write_graph(root, name)
    write_merges(root)
    return root


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def refused(root: Path, says: str, kind: type[Exception] = SourceFileError) -> None:
    """An import fails with these words, and leaves nothing of a graph behind."""
    out = root.parent / "out"
    with pytest.raises(kind) as caught:
        import_sources(root, out)
    assert says in str(caught.value), str(caught.value)
    assert not list(out.rglob("*.json"))


def test_a_folder_becomes_nets_and_blobs(built: Path, tmp_path: Path) -> None:
    (binary,) = import_sources(built, tmp_path / "out")
    assert binary.path == "qnn/graph0.bin"
    assert [g.name for g in binary.graphs] == ["graph0", "graph1_0"]
    assert binary.graphs[0].blobs == binary.graphs[1].blobs and len(binary.graphs[0].blobs) == 4
    assert files(tmp_path / "out") == {
        *(f"blobs/{digest}" for digest in binary.graphs[0].blobs),
        *(f"qnn/{name}/{name}_net.json" for name in ("graph0", "graph1_0")),
    }
    assert all(netjson.load(g.net).name == g.name for g in binary.graphs)


def test_a_cache_on_the_npu_is_linked(tmp_path: Path) -> None:
    """With ``max_history_token`` MNN's graphs have float16 inputs and outputs of their own."""
    dims = [1, 2, 4, 16]

    def tensor(name: str, kind: str, dtype: str) -> dict[str, Any]:
        head = {"name": name, "type": kind, "dataType": dtype, "dims": dims}
        return {**head, "encoding": "UNDEFINED", "added": kind == "APP_WRITE"}

    def node(name: str, kind: str, inputs: list[str], output: str) -> dict[str, Any]:
        made = {"name": name, "type": kind, "inputs": inputs, "outputs": [output]}
        return {**made, "params": []}

    record = {
        "graph": "graph0",
        "tensors": [
            tensor("t0_cast", "NATIVE", "FLOAT_16"),
            tensor("t0", "APP_WRITE", "FLOAT_32"),
            tensor("_mnn_i0", "APP_WRITE", "FLOAT_16"),
            tensor("_mnn_o0", "APP_READ", "FLOAT_16"),
        ],
        "nodes": [
            node("Cast_I_1_O_0", "Cast", ["t0"], "t0_cast"),
            node("add", "ElementWiseAdd", ["t0_cast", "_mnn_i0"], "_mnn_o0"),
        ],
    }
    folder = tmp_path / "qnn" / "graph0"
    folder.mkdir(parents=True)
    (folder / "graph0.cpp").write_text(Double(record).text())
    write_merges(tmp_path, {"qnn/graph0.bin": ["qnn/graph0"]})
    (binary,) = import_sources(tmp_path, tmp_path)
    out = tmp_path / "graph0.bin"
    nets, blobs = [str(g.net) for g in binary.graphs], str(tmp_path / "blobs")
    native.link(nets, blobs, TARGET.to_json(), str(out), f"{out}.json", ask=True)
    (graph,) = run.inspect(out).graphs
    found = [(t.name, t.dtype, list(t.dims)) for t in (*graph.inputs, *graph.outputs)]
    halves = [("_mnn_i0", "FLOAT_16", dims), ("_mnn_o0", "FLOAT_16", dims)]
    assert found == [("t0", "FLOAT_32", dims), *halves]


def test_the_build_folder_itself_may_take_them(built: Path) -> None:
    before = files(built)
    import_sources(built, built)
    assert before < files(built)


def test_what_is_the_same_is_not_written_again(built: Path, tmp_path: Path) -> None:
    (first,) = import_sources(built, tmp_path / "out")
    stamp = first.graphs[0].net.stat().st_mtime_ns
    source = built / "qnn" / "graph1_0" / "graph1_0.cpp"
    source.write_text(source.read_text().replace("0.001573", "0.001574"))
    (second,) = import_sources(built, tmp_path / "out")
    assert second.graphs[0] == first.graphs[0]
    assert second.graphs[1].sha256 != first.graphs[1].sha256
    assert first.graphs[0].net.stat().st_mtime_ns == stamp


def bad_merges() -> Iterator[tuple[str, Any, str]]:
    many = {f"qnn/graph{i}.bin": [f"qnn/graph{i}"] for i in range(merges.MAX_BINARIES + 1)}
    yield "many", many, "4097 binaries are more than 4096"
    more = [f"qnn/graph{i}" for i in range(merges.MAX_GRAPHS + 1)]
    yield "graphs", {"qnn/graph0.bin": more}, "expected a list of 1 to 256 graphs"
    yield "none", {}, "'merge' must name binaries"
    yield "list", [], "'merge' must name binaries"
    yield "no graphs", {"qnn/graph0.bin": []}, "expected a list of 1 to 256 graphs"
    yield "text", {"qnn/graph0.bin": "qnn/graph0"}, "expected a list"
    yield "number", {"qnn/graph0.bin": [7]}, "a path is needed"
    yield "twice", {"qnn/graph0.bin": ["qnn/graph0", "qnn/graph0"]}, "'graph0' is there twice"
    both = {"qnn/graph0.bin": ["qnn/graph0"], "qnn/graph1.bin": ["other/graph0"]}
    yield "shared", both, "'graph0' is there twice"
    yield "suffix", {"qnn/graph0": ["qnn/graph0"]}, "expected a name and .bin"
    yield "folder", {"graph0.bin": ["qnn/graph0"]}, "is not in the folder 'qnn'"
    for path in ("../qnn/graph0", "/etc/graph0", "qnn/../../graph0", "qnn//graph0", "./qnn/graph0"):
        yield path, {"qnn/graph0.bin": [path]}, "is no path inside the build folder"
        yield f"{path}.bin", {f"{path}.bin": ["qnn/graph0"]}, "is no path inside the build folder"
    for name in ("gra ph", "graph'0", 'graph"0', "graph\n0", "图0", "a\\b", "a\0b", "$(id)"):
        yield repr(name), {"qnn/graph0.bin": [f"qnn/{name}"]}, "is no path inside the build folder"
    yield "symbol", {"qnn/graph0.bin": ["qnn/0graph"]}, "expected a C++ name"
    yield "long", {"qnn/graph0.bin": ["qnn/" + "g" * 100_000]}, "100004 characters"
    yield "deep", {"qnn/graph0.bin": ["a/" * 300 + "graph0"]}, "606 characters"


@pytest.mark.parametrize(("name", "merge", "says"), list(bad_merges()), ids=lambda v: str(v)[:16])
def test_merges_that_are_refused(built: Path, name: str, merge: Any, says: str) -> None:
    write_merges(built, merge)
    refused(built, says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "Expecting value"),
        (b"[]", "an object is needed"),
        (b'{"type": "QNN", "merge": {', "Expecting"),
        (b'{"type": "QNN", "type": "QNN"}', "a key is there twice"),
        (b"[" * 200_000, ""),
        (b'{"type": ' + b"9" * 10_000 + b"}", ""),
        (b"\xff\xfe{}", ""),
        (b'{"type": "COREML", "merge": {"qnn/a.bin": ["qnn/a"]}}', "expected type 'QNN'"),
        (b'{"type": "QNN", "merge": {"qnn/a.bin": ["qnn/a"]}, "x": 1}', "unknown key 'x'"),
        (b'{"type": "QNN", "cache": "..", "merge": {"../a.bin": ["qnn/a"]}}', "no path inside"),
        (b'{"type": "QNN", "cache": 5, "merge": {"../a.bin": ["qnn/a"]}}', "a path is needed"),
        (b" " * (17 << 20), "more than 16777216 bytes"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_text_that_is_no_list_of_merges(built: Path, text: bytes, says: str) -> None:
    (built / "npu_postreat.json").write_bytes(text)
    refused(built, says)


def test_damaged_merges_give_no_other_error(built: Path) -> None:
    whole, random_ = (built / "npu_postreat.json").read_bytes(), random.Random(6)
    for _ in range(500):
        changed = bytearray(whole)
        for _ in range(random_.randint(1, 3)):
            changed[random_.randrange(len(whole))] = random_.randrange(256)
        try:
            found = merges.parse_merges(bytes(changed[: random_.choice((len(whole), 30))]), "x")
        except SourceFileError:
            continue
        for merge in found:
            for path in (merge.binary, *merge.graphs):
                assert (built / path).resolve().is_relative_to(built.resolve())


def test_there_is_no_list_of_merges(built: Path) -> None:
    path = built / "npu_postreat.json"
    path.unlink()
    refused(built, "npu_postreat.json cannot be read")
    os.mkfifo(path)
    refused(built, "it is no plain file")


def test_graphs_that_were_listed_but_not_written_are_all_named(built: Path) -> None:
    write_merges(built, {"qnn/graph0.bin": ["qnn/graph0", "qnn/graph2_0", "qnn/graph3_0"]})
    refused(built, "2 of 3 graphs have no source")
    refused(built, "qnn/graph2_0, qnn/graph3_0")


def test_links_do_not_lead_out_of_the_folder(built: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(built / "qnn" / "graph0", elsewhere)
    (built / "qnn" / "graph0").symlink_to(elsewhere)
    refused(built, "is not in the build folder")


def test_the_source_is_of_another_graph(built: Path) -> None:
    folder = built / "qnn"
    text = (folder / "graph0" / "graph0.cpp").read_bytes()
    (folder / "graph1_0" / "graph1_0.cpp").write_bytes(text)
    with pytest.raises(SourceFileError, match="the source is of the graph 'graph0'"):
        import_sources(built, built.parent / "out")


def _remove(path: Path) -> None:
    path.unlink()


def _shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".old"))
    path.symlink_to(path.with_suffix(".old"))


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_remove, "conv_w.raw cannot be read"),
        (_shorter, "3 bytes for SFIXED_POINT_8 [1, 1, 2, 2], 4 bytes"),
        (_longer, "5 bytes for SFIXED_POINT_8"),
        (_link, "it is no plain file"),
        (_pipe, "it is no plain file"),
        (_folder, "it is no plain file"),
    ],
)
def test_raw_data_that_is_not_what_the_source_says(
    built: Path, change: Callable[[Path], None], says: str
) -> None:
    change(built / "qnn" / "graph0" / "conv_w.raw")
    refused(built, says)


def test_raw_data_that_changes_while_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(StaleInputError, match="changed while it was read"):
        blobstore.put_pieces(tmp_path / "blobs", "0" * 64, [b"other"], "some.raw")
    assert not list((tmp_path / "blobs").iterdir())
    path = tmp_path / "short.raw"
    path.write_bytes(b"1234")
    with pytest.raises(SourceFileError, match="2 bytes shorter"):
        list(raws.chunks(raws.Range(path, 0, 6)))


Entry = tuple[str, bytes | None, dict[str, Any]]


def pack(folder: Path, entries: list[Entry] | None = None, **how: Any) -> Path:
    """``<graph>.bin`` in place of the raw files of ``folder``."""
    if entries is None:
        entries = [(f"{name}.raw", data, {}) for name, data in RAW.items()]
    for path in folder.glob("*.raw"):
        path.unlink()
    tar = folder / f"{folder.name}.bin"
    with tarfile.open(tar, "w", **how) as archive:
        for name, data, more in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            for key, value in more.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data) if data is not None else None)
    return tar


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_every_kind(built: Path, tmp_path: Path, format: int) -> None:
    (plain,) = import_sources(built, tmp_path / "plain")
    long = ("x" * 150 + ".raw", b"unused", {"mtime": 1.5})
    entries: list[Entry] = [(f"./{name}.raw", data, {}) for name, data in RAW.items()]
    entries += [] if format == tarfile.USTAR_FORMAT else [long]
    pack(built / "qnn" / "graph0", entries, format=format)
    (packed,) = import_sources(built, tmp_path / "packed")
    assert [g.sha256 for g in packed.graphs] == [g.sha256 for g in plain.graphs]


def test_two_names_of_one_file_in_a_tar(built: Path, tmp_path: Path) -> None:
    entries: list[Entry] = [
        ("norm_gamma.raw", b"123456", {}),
        ("blocks.raw", b"87654321", {}),
        ("conv_b.raw", b"12345678", {}),
        ("other.raw", b"1234", {}),
        ("conv_w.raw", None, {"type": tarfile.LNKTYPE, "linkname": "other.raw"}),
    ]
    pack(built / "qnn" / "graph0", entries)
    made = import_graph(built / "qnn" / "graph0", tmp_path / "net.json", tmp_path / "blobs")
    assert (tmp_path / "blobs" / made.blobs[1]).read_bytes() == b"1234"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (("../conv_w.raw", b"1234", {}), "is no name of a raw file"),
        (("/tmp/conv_w.raw", b"1234", {}), "is no name of a raw file"),
        (("conv_w.txt", b"1234", {}), "is no name of a raw file"),
        (("norm_gamma.raw", b"123456", {}), "is there twice"),
        (("conv_w.raw", None, {"type": tarfile.SYMTYPE, "linkname": "x"}), "is no plain file"),
        (("conv_w.raw", None, {"type": tarfile.FIFOTYPE}), "is no plain file"),
        (("conv_w.raw", None, {"type": tarfile.LNKTYPE, "linkname": "x.raw"}), "is not there"),
        (("conv_w.raw", None, {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}), "no name"),
        (("conv_w.raw", b"12345", {}), "5 bytes for SFIXED_POINT_8"),
        (("more.raw", b"", {}), "conv_w.raw cannot be read"),
        (("conv_w.raw", None, {"size": 1 << 50}), "it ends inside conv_w.raw"),
        (("x", None, {"type": b"x", "size": 1 << 32}), "a header of"),
        (("x", None, {"type": b"L", "size": 1 << 32}), "a header of"),
    ],
)
def test_tars_with_other_things_in_them(built: Path, entry: Entry, says: str) -> None:
    first: Entry = ("norm_gamma.raw", b"123456", {})
    last: list[Entry] = [(f"{name}.raw", RAW[name], {}) for name in ("blocks", "conv_b")]
    pack(built / "qnn" / "graph0", [first, entry, *last])
    refused(built, says)


def test_damaged_tars_give_no_other_error(built: Path, tmp_path: Path) -> None:
    folder = built / "qnn" / "graph0"
    tar = pack(folder, format=tarfile.PAX_FORMAT)
    whole, random_, outcomes = tar.read_bytes(), random.Random(7), []
    for _ in range(250):
        changed = bytearray(whole)
        for _ in range(random_.randint(1, 4)):
            changed[random_.randrange(3000)] = random_.randrange(256)
        tar.write_bytes(changed[: random_.choice((len(whole), len(whole), 700, 2000))])
        try:
            import_graph(folder, tmp_path / "net.json", tmp_path / "blobs")
            outcomes.append(True)
        except SourceFileError:
            outcomes.append(False)
    assert True in outcomes and False in outcomes
