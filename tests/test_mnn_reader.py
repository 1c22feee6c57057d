"""The reader: what is in a file, and nothing but `ModelFileError` for what is no file."""

from __future__ import annotations

import random
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn import reader, samples
from mnnqnn_tasks.mnn.samples import Sample
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.mnn.writer import encode

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen3-w8" / "llm.mnn"


def small_file() -> bytes:
    arrays = {
        "input_ids": Sample(np.arange(6, dtype=np.float32).reshape(2, 1, 3)),
        "position_ids": Sample(np.arange(2, dtype=np.int32).reshape(1, 2), "NHWC"),
    }
    return encode(samples.to_table(arrays))


def handmade(*, op_code: int, format_code: int) -> bytes:
    """Net{oplists: [Op{name, type, defaultDimentionFormat}]} by way of the plain library."""
    builder = flatbuffers.Builder(0)
    name = builder.CreateString("an op")
    builder.StartObject(8)
    builder.PrependUOffsetTRelativeSlot(3, name, 0)
    builder.PrependInt32Slot(5, op_code, -1)
    builder.PrependInt8Slot(6, format_code, -1)
    op = builder.EndObject()
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(op)
    ops = builder.EndVector()
    builder.StartObject(12)
    builder.PrependUOffsetTRelativeSlot(3, ops, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def test_reads_what_the_flatbuffers_library_wrote() -> None:
    net = reader.decode(handmade(op_code=11, format_code=2))
    (op,) = net.oplists
    assert (op.name, op.type, op.defaultDimentionFormat) == ("an op", "Const", "NC4HW4")
    assert list(op) == ["name", "type", "defaultDimentionFormat"]
    assert "inputIndexes" not in op
    assert op.inputIndexes is None


def test_absent_fields_have_the_schema_s_default() -> None:
    net = reader.decode(handmade(op_code=11, format_code=2))
    assert net.sourceType == "CAFFE"
    with pytest.raises(AttributeError, match="no field nonsense"):
        _ = net.nonsense


def test_unknown_enum_numbers_stay_numbers() -> None:
    (op,) = reader.decode(handmade(op_code=7654, format_code=99)).oplists
    assert (op.type, op.defaultDimentionFormat) == (7654, 99)


def test_check_ops_names_index_name_and_code() -> None:
    net = reader.decode(handmade(op_code=7654, format_code=1))
    with pytest.raises(ModelFileError) as caught:
        reader.check_ops(net, "some/llm.mnn")
    text = str(caught.value)
    for part in ("some/llm.mnn", "op 0", "an op", "7654", "MNN that this tool knows"):
        assert part in text
    reader.check_ops(reader.read(MODEL), "llm.mnn")


def test_check_ops_looks_into_subgraphs() -> None:
    net = reader.decode(handmade(op_code=11, format_code=1))
    bad = Table("Op", {"type": 7654})
    net.fields["subgraphs"] = [Table("SubGraphProto", {"name": "body", "nodes": [bad]})]
    with pytest.raises(ModelFileError, match="does not know") as caught:
        reader.check_ops(net, "")
    assert "body" in str(caught.value)


def test_number_vectors_are_views_and_read_only() -> None:
    vector = reader.read(MODEL).oplists[0].outputIndexes
    assert not vector.flags.writeable
    assert vector.base is not None


def test_missing_empty_and_foreign_files(tmp_path: Path) -> None:
    cases = {"empty.mnn": b"", "text.mnn": b"version https://git-lfs.github.com/spec/v1\n"}
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
    for name in (*cases, "missing.mnn", "."):
        with pytest.raises(ModelFileError) as caught:
            reader.read(tmp_path / name)
        assert caught.value.where == str(tmp_path / name)
        assert caught.value.why


def survives(data: bytes) -> bool:
    """Whether ``data`` decodes; anything but `ModelFileError` escapes."""
    try:
        reader.decode(data, name="x")
    except ModelFileError:
        return False
    return True


def test_a_file_cut_short_at_any_length() -> None:
    data = small_file()
    assert survives(data)
    # The last three bytes may be padding.
    assert [n for n in range(len(data) - 3) if survives(data[:n])] == []


def test_flipped_bits_in_a_small_file() -> None:
    data = small_file()
    results = []
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << (bit % 8)
        results.append(survives(bytes(changed)))
    assert not all(results)  # some damage is seen
    assert any(results)  # some is in values, which nothing can tell


def test_flipped_bytes_in_a_model() -> None:
    data = MODEL.read_bytes()
    chance = random.Random(7)
    for _ in range(40):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 20, 2000))):
            changed[chance.randrange(len(data))] = chance.randrange(256)
        survives(bytes(changed))


@given(st.binary(max_size=300))
@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
def test_any_bytes(data: bytes) -> None:
    survives(data)


@given(st.data())
@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
def test_any_change_of_words(data: st.DataObject) -> None:
    changed = bytearray(small_file())
    places = st.integers(0, len(changed) // 4 - 1)
    words = st.one_of(st.binary(min_size=4, max_size=4), st.integers(-64, 64).map(word))
    for place, value in data.draw(st.lists(st.tuples(places, words), max_size=6)):
        changed[4 * place : 4 * place + 4] = value
    survives(bytes(changed))


def word(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


def test_offsets_that_repeat_do_not_fill_the_memory() -> None:
    """Vectors of a thousand names that are all one long name, and of one vector."""
    builder = flatbuffers.Builder(0)
    long_name = builder.CreateString("x" * 100_000)
    builder.StartVector(4, 30_000, 4)
    for _ in range(30_000):
        builder.PrependUOffsetTRelative(long_name)
    names = builder.EndVector()
    builder.StartObject(12)
    builder.PrependUOffsetTRelativeSlot(7, names, 0)
    builder.Finish(builder.EndObject())
    assert not survives(bytes(builder.Output()))


def test_offsets_that_lead_nowhere() -> None:
    data = encode(Table("Net", {"oplists": [Table("Op", {"name": "a", "type": "Const"})]}))
    for place in range(0, len(data) - 4, 4):
        for target in (0, 0xFFFFFFFC, 0x7FFFFFFF, 0x80000000):
            changed = bytearray(data)
            changed[place : place + 4] = target.to_bytes(4, "little")
            survives(bytes(changed))
