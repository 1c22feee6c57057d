"""A cut made without the weights: filled in, it is the cut made with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mnnqnn_tasks.errors import ModelFileError, PartitionError
from mnnqnn_tasks.mnn.index import ModelIndex, index_model
from mnnqnn_tasks.mnn.inputs import write_inputs
from mnnqnn_tasks.partition.fill import PLAN, SOURCES, Template, fill, range_digests, read_template
from mnnqnn_tasks.partition.partition import Partition, load_partition
from mnnqnn_tasks.partition.template import make_template, stand_in_index
from mnnqnn_tasks.partition.write import partition_model, take_over, write_files
from mnnqnn_tasks.toolchain import native
from mnnqnn_tasks.translate.registry import unsupported_reason

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen3-w8"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("samples")
    found = {seq: folder / f"{seq}.mnn" for seq in (1, 16)}
    for seq, path in found.items():
        write_inputs(MODEL, seq, path)
    return found


def structure(folder: Path, to: Path) -> Path:
    paths = [str(to / name) for name in ("model.json", "structure.json", "spans.json")]
    native.index(str(folder), *paths, code="test", digests=str(to / "digests"))
    return to / "structure.json"


@pytest.fixture(scope="module")
def made(samples: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> Partition:
    """A cut with stand-ins."""
    text = structure(MODEL, tmp_path_factory.mktemp("structure")).read_text()
    index = stand_in_index(json.loads(text))
    return load_partition(MODEL, index, samples, supported=unsupported_reason)


def changed(folder: Path, index: ModelIndex) -> None:
    """A weight byte more, and two ranges of the same bytes where there were two."""
    shutil.copytree(MODEL, folder, copy_function=shutil.copyfile)
    spans = sorted(index.ranges)
    pairs = [(a, b) for a in spans for b in spans if a < b and a[1] == b[1] > 1000]
    (first, size), (second, _) = pairs[0]
    with open(folder / "llm.mnn.weight", "r+b") as stream:
        stream.seek(first)
        data = stream.read(size)
        stream.seek(second)
        stream.write(data)
        offset, size = spans[-1]
        stream.seek(offset + size - 1)
        byte = stream.read(1)[0]
        stream.seek(offset + size - 1)
        stream.write(bytes([byte ^ 1]))


def test_other_weights_need_no_other_cut(
    tmp_path: Path, samples: dict[int, Path], made: Partition
) -> None:
    old = index_model(MODEL)
    changed(tmp_path / "model", old)
    new = index_model(tmp_path / "model")
    assert len(set(new.ranges.values())) < len(set(old.ranges.values()))
    template = Template.from_json(json.loads(json.dumps(make_template(made).to_json())))
    for index, folder in ((old, MODEL), (new, tmp_path / "model")):
        out = tmp_path / index.ranges[max(index.ranges)]
        partition_model(folder, index, samples, (), out, unsupported_reason)
        files = fill(template, index.ranges)
        assert list(files)[-1] == PLAN
        written = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
        assert files == {n: data for n, data in written.items() if n != "qnn/llm.mnn"}
    assert fill(template, old.ranges)[SOURCES] != files[SOURCES]


def test_only_files_that_change_are_written(tmp_path: Path, made: Partition) -> None:
    index = index_model(MODEL)
    template = make_template(made)
    (tmp_path / "qnn" / "graph99").mkdir(parents=True)
    write_files(template, fill(template, index.ranges), tmp_path)
    assert not (tmp_path / "qnn" / "graph99").exists()
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.json")}
    last = max(index.ranges)
    write_files(template, fill(template, {**index.ranges, last: "ab" * 32}), tmp_path)
    rewritten = {path.name for path, inode in before.items() if path.stat().st_ino != inode}
    stand_in = made.index.ranges[last]
    readers = {
        f"{graph.graph}.json"
        for graph in made.subgraphs
        if any(ref.sha256 == stand_in for op in graph.ops for ref in op.weights.values())
    }
    assert readers
    assert rewritten == readers | {PLAN, SOURCES}


def test_the_host_model_is_taken_over_if_it_differs(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b" / "c"
    source.write_bytes(b"one")
    take_over(source, target)
    target.unlink()
    target.write_bytes(b"one")
    inode = target.stat().st_ino
    take_over(source, target)
    assert target.stat().st_ino == inode
    target.write_bytes(b"two")
    take_over(source, target)
    assert target.read_bytes() == b"one"


@pytest.mark.parametrize("value", [{}, [], 3, None, {"version": 2}, {"version": 1, "graphs": 3}])
def test_files_that_are_no_cut(tmp_path: Path, value: object) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(value))
    with pytest.raises(PartitionError, match="not a cut"):
        read_template(path)
    with pytest.raises(PartitionError, match="not a structure"):
        stand_in_index(value)  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match=r"not a model\.json"):
        range_digests(path)
    path.write_text("{")
    with pytest.raises(PartitionError, match="cannot read the cut"):
        read_template(path)


def test_a_range_that_the_model_lost(made: Partition) -> None:
    ranges = dict(index_model(MODEL).ranges)
    del ranges[min(ranges)]
    with pytest.raises(ModelFileError, match="weight range"):
        fill(make_template(made), ranges)


def test_the_samples_need_not_be_there(samples: dict[int, Path], tmp_path: Path) -> None:
    """The cut of the inputs that will be made is that of the inputs that were made."""
    index = stand_in_index(json.loads(structure(MODEL, tmp_path).read_text()))
    made, expected = (
        load_partition(MODEL, index, inputs, supported=unsupported_reason)
        for inputs in (samples, dict.fromkeys(samples))
    )
    assert make_template(made).to_json() == make_template(expected).to_json()
    for was, said in zip(made.facts, expected.facts, strict=True):
        for one, other in zip(was, said, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert (one.dims, one.dtype, one.format) == (other.dims, other.dtype, other.format)
                assert np.array_equal(one.value, other.value)
