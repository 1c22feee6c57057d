"""Damaged and altered sources: refused with the line, or read as exactly what they say."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from mnn_source_double import Double
from test_cppnet_roundtrip import every_kind

from mnnqnn_tasks.errors import SourceFileError
from mnnqnn_tasks.qnn.floats import f32_tuple
from mnnqnn_tasks.qnn.ir import Blob, BlockwiseExpansion, BwAxisScaleOffset, Graph
from mnnqnn_tasks.toolchain.cppnet.parse import parse
from mnnqnn_tasks.translate import emit_cpp

_TOKEN = re.compile(rb'//[^\n]*|/\*.*?\*/|"[^"]*"|[\w.]+(?:(?<=e)[+-]\d+\w*)?|\S', re.DOTALL)
_FLOAT = re.compile(rb"\d+\.\d+(e[+-]\d+)?f?")
_OF_NODE = re.compile(rb"^((?:in|out)puts|params?)_\w+$")
_LITERAL = re.compile(rb'-|-?\d[\w.+-]*|"[^"]*"')


CONV = ("stride", "pad_amount", "dilation", "group")


def mnn_record() -> dict[str, Any]:
    """A small graph as the record has it, with every encoding that MNN writes."""

    def tensor(name: str, kind: str, dtype: str, *dims: int, **more: Any) -> dict[str, Any]:
        added = kind == "APP_WRITE" or "raw" in more
        base = {"name": name, "type": kind, "dataType": dtype, "dims": list(dims), "added": added}
        return {"encoding": "UNDEFINED", **base, **more}

    axis = {"encoding": "AXIS_SCALE_OFFSET", "axis": 0, "scaleOffset": [[0.25, 0], [0.001573, 0]]}
    bits = {"encoding": "BW_AXIS_SCALE_OFFSET", "axis": 3, "bitwidth": 4, "scales": [0.5, 8e-06]}
    bits["offsets"] = [0, -1]
    blocks = {"encoding": "BLOCKWISE_EXPANSION", "axis": 3, "bitwidth": 4}
    blocks |= {"scaleOffset": [[0.25, 0], [0.5, 0]], "blockScales": [1, 16, 7, 16]}
    one = {"encoding": "SCALE_OFFSET", "scale": 6.4e-05, "offset": -32768}
    tensors = [
        tensor("t0", "APP_WRITE", "FLOAT_32", 1, 2, 1, 3),
        tensor("unused_stage", "NATIVE", "FLOAT_16", 1, 2),
        tensor("norm_axes_PARAM", "STATIC", "UINT_32", 1),
        tensor("norm_gamma", "STATIC", "FLOAT_16", 3, raw="norm_gamma"),
        tensor("t5", "NATIVE", "FLOAT_16", 1, 2, 1, 3, **one),
        tensor("turn_perm_PARAM", "STATIC", "UINT_32", 4),
        tensor("t6", "NATIVE", "FLOAT_16", 1, 1, 3, 2),
        tensor("conv_stride_PARAM", "STATIC", "UINT_32", 2),
        tensor("conv_pad_amount_PARAM", "STATIC", "UINT_32", 2, 2),
        tensor("conv_dilation_PARAM", "STATIC", "UINT_32", 2),
        tensor("conv_w", "STATIC", "SFIXED_POINT_8", 1, 1, 2, 2, raw="conv_w", **bits),
        tensor("blocks", "STATIC", "SFIXED_POINT_8", 1, 1, 4, 2, raw="blocks", **blocks),
        tensor("conv_b", "STATIC", "SFIXED_POINT_32", 2, raw="conv_b", **axis),
        tensor("t7", "APP_READ", "FLOAT_32", 1, 1, 3, 2),
    ]
    for one_tensor in tensors:
        if one_tensor["name"] == "t5":
            one_tensor["dataType"] = "UFIXED_POINT_16"

    def node(name: str, kind: str, inputs: str, output: str, *params: str) -> dict[str, Any]:
        made = {"name": name, "type": kind, "inputs": inputs.split(), "outputs": [output]}
        return {**made, "params": list(params)}

    nodes = [
        node("norm", "RmsNorm", "t0 norm_gamma", "t5", "epsilon", "axes"),
        node("turn", "Transpose", "t5", "t6", "perm"),
        node(
            "conv",
            "Conv2d",
            "t6 conv_w conv_b blocks",
            "t7",
            "stride",
            "pad_amount",
            "dilation",
            "group",
        ),
    ]
    return {"graph": "graph1_0", "tensors": tensors, "nodes": nodes, "raw": {}}


MNN = Double(mnn_record()).text().encode()
OURS = emit_cpp.source(every_kind(3)).encode()
SOURCES = {"mnn": MNN, "ours": OURS}
form = pytest.mark.parametrize("form", SOURCES)


def tokens(source: bytes) -> list[bytes]:
    """What is left without space and comments; of a float, the float32 that it gives.

    Of a variable that is called after a node only what it is for: the call may name another.
    """
    found = [t for t in _TOKEN.findall(source) if not t.startswith((b"//", b"/*"))]
    found = [_OF_NODE.sub(rb"\1", t) for t in found]
    return [struct.pack("<f", float(t.rstrip(b"f"))) if _FLOAT.fullmatch(t) else t for t in found]


def read(source: bytes) -> Graph:
    found = parse(source, "g.cpp")
    return found.with_blobs({t.name: Blob("0" * 64, t.size) for t in found.statics})


def says_something_else(source: bytes, of: bytes, graph: Graph) -> bool:
    """Whether a source is as well formed as ``of``, and ``graph`` all that it says."""
    if of is OURS:  # in another order if declarations were moved
        return sorted(tokens(emit_cpp.source(graph).encode())) == sorted(tokens(source))
    found, old = _TOKEN.findall(source), _TOKEN.findall(of)
    return len(found) == len(old) and all(
        a == b or (_LITERAL.fullmatch(a) and _LITERAL.fullmatch(b))
        for a, b in zip(found, old, strict=True)
    )


def judge(source: bytes, of: bytes) -> str:
    """Read a changed source; anything but the three honest outcomes fails."""
    try:
        graph = read(source)
    except SourceFileError as error:
        place = re.fullmatch(r"g\.cpp:(\d+)", error.where or "")
        assert place and 1 <= int(place[1]) <= source.count(b"\n") + 1
        assert error.why and len(str(error)) < 1000
        return "refused"
    if graph == read(of):
        return "same"
    assert says_something_else(source, of, graph), source
    return "other"


def lines_of(form: str) -> list[bytes]:
    return SOURCES[form].splitlines(keepends=True)


def test_the_form_of_mnn_is_read() -> None:
    graph = read(MNN)
    assert [t.name for t in graph.tensors] == [
        *("t0", "norm_gamma", "t5", "t6", "conv_w", "blocks", "conv_b", "t7")
    ]
    assert graph.tensors[4].quant == BwAxisScaleOffset(3, 4, f32_tuple((0.5, 8e-06)), (0, -1))
    expected = BlockwiseExpansion(3, (0.25, 0.5), (0, 0), 2, 4, (1, 16, 7, 16))
    assert graph.tensors[5].quant == expected
    assert [n.type for n in graph.nodes] == ["RmsNorm", "Transpose", "Conv2d"]
    assert [p.name for p in graph.nodes[2].params] == list(CONV)
    assert graph.name == "graph1_0"


@form
def test_a_source_that_is_cut_off_is_refused(form: str) -> None:
    source = SOURCES[form]
    last = source.rstrip()
    for end in random.Random(1).sample(range(len(last)), 250):
        assert judge(source[:end], source) == "refused", end
    with pytest.raises(SourceFileError, match="the file ends here") as caught:
        parse(last[:-1], "g.cpp")
    assert caught.value.where == f"g.cpp:{len(last.splitlines())}"


@form
def test_a_missing_line_is_refused_or_says_nothing(form: str) -> None:
    lines = lines_of(form)
    for at in range(len(lines)):
        outcome = judge(b"".join(lines[:at] + lines[at + 1 :]), SOURCES[form])
        empty = not tokens(lines[at])
        assert (outcome == "same") == empty, lines[at]


@form
def test_a_line_that_is_there_twice_is_refused_or_says_nothing(form: str) -> None:
    lines = lines_of(form)
    for at in range(len(lines)):
        outcome = judge(b"".join(lines[: at + 1] + lines[at:]), SOURCES[form])
        assert (outcome == "same") == (not tokens(lines[at])), lines[at]


@form
def test_lines_that_changed_places(form: str) -> None:
    lines, random_ = lines_of(form), random.Random(2)
    for _ in range(150):
        one, other = random_.sample(range(len(lines)), 2)
        changed = lines[:]
        changed[one], changed[other] = changed[other], changed[one]
        judge(b"".join(changed), SOURCES[form])


@form
def test_flipped_bits(form: str) -> None:
    source, random_ = SOURCES[form], random.Random(3)
    outcomes = []
    for _ in range(600):
        changed = bytearray(source)
        for _ in range(random_.choice((1, 1, 1, 2, 5))):
            changed[random_.randrange(len(source))] ^= 1 << random_.randrange(8)
        outcomes.append(judge(bytes(changed), source))
    assert outcomes.count("refused") > 400


@form
def test_parts_that_are_missing_or_moved(form: str) -> None:
    source, random_ = SOURCES[form], random.Random(4)
    for _ in range(200):
        start, end = sorted(random_.sample(range(len(source)), 2))
        end = min(end, start + random_.choice((1, 5, 50, 2000)))
        judge(source[:start] + source[end:], source)
        judge(source[:start] + source[start:end] + source[start:], source)


@form
def test_space_and_comments_say_nothing(form: str) -> None:
    source = SOURCES[form]
    places = [found.end() for found in re.finditer(rb"[;,{]\n", source)]
    for added in (b"\n", b" \t ", b"// a comment\n", b"/* QnnModel x; */", b"\r\n"):
        for at in random.Random(5).sample(places, 10):
            assert judge(source[:at] + added + source[at:], source) == "same", (added, at)
    assert judge(source.replace(b"\n", b"\r\n"), source) == "same"


def altered() -> Iterator[tuple[str, bytes, bytes, str]]:
    """What is changed, from, to, and what the error says."""
    yield "float", b"0.001573", b"nan", "expected a finite decimal number, found nan"
    yield "scale of zero", b"0.000008", b"0.000000", "six decimals"
    yield "negative scale", b".scale= 0.250000", b".scale= -0.250000", "expected scales above 0"
    yield "huge", b"0.500000", b"9" * 39 + b".0", "a number that float32 can hold"
    yield "count", b"numScaleOffsets = 2", b"numScaleOffsets = 3", "expected 2, the number of pairs"
    yield "absurd", b"numElements = 2", b"numElements = 4294967296", "between 0 and 4294967295"
    yield "long number", b"v1.rank = 4", b"v1.rank = 44444444444", "expected an integer"
    yield "octal", b"= {1, 1, 3, 2}", b"= {1, 1, 03, 2}", "expected an integer or }"
    yield "dims", b"= {1, 1, 3, 2}", b"= {1, 1, 0, 2}", "v1.dimensions"
    yield "much", b"= {1, 1, 3, 2}", b"= {99999, 99999, 99999, 2}", "v1.dimensions"
    yield "deep", b"= {1, 1, 3, 2}", b"= {" + b"1, " * 9999 + b"}", "the number of dimensions"
    yield "rank", b"v1.rank = 4", b"v1.rank = 5", "expected 4, the number of dimensions"
    yield "type", b"_TYPE_APP_READ", b"_TYPE_NATIVE", "graph: has no output"
    yield "dtype", b"DATATYPE_FLOAT_16", b"DATATYPE_FLOAT_64", "QNN_DATATYPE_... as QNN has it"
    yield "version", b"_VERSION_1", b"_VERSION_2", "expected QNN_TENSOR_VERSION_1"
    yield "name", b'"t6"', b'"t9"', "t9"
    yield "escape", b'"t0"', b'"../t0"', "expected tensor_../t0"
    yield "raw", b"BINVARSTART(conv_w)", b"BINVARSTART(conv_b)", "BINVARSTART and BINLEN of conv_w"
    yield "path", b"BINVARSTART(conv_w)", b"BINVARSTART(../conv_w)", "nullptr, BINVARSTART(name)"
    yield "zero byte", b'"epsilon"', b'"\\000"', "expected a name"
    yield "input", b'{"t6", "conv_w"', b'{"t8", "conv_w"', "that are in the graph, found t8"
    yield "output", b"{tensor_t7}", b"{tensor_t0}", "output t0 of conv is APP_WRITE"
    yield "number of inputs", b"inputs_conv, 4", b"inputs_conv, 2", "expected 4, the number"
    yield (
        "parameter twice",
        b"{param_stride_conv, ",
        b"{param_stride_conv, param_stride_conv, ",
        "5",
    )
    yield "bool", b"uint32Value = 1", b"bool8Value = 1", "scalarParam.uint32Value"
    yield (
        "blocks",
        b"{\n    1, 16, 7",
        b"{\n    1, 17, 7",
        "a block scale of 4 bits is not in 0..16",
    )
    yield "number of blocks", b"{\n    1, 16, 7", b"{\n    1, 7", "3 block scales, not 4"
    yield "byte", b"{\n    1, 16, 7", b"{\n    1, 256, 7", "expected a number between 0 and 255"
    yield "axis", b"axis = 3", b"axis = 7", "quantization axis 7 of a tensor of rank 4"
    yield "bits", b"bitwidth = 4", b"bitwidth = 9", "bitwidth 9"
    yield "graph", b'"graph1_0", graphsConfigInfo', b'"graph1_1", graphsConfigInfo', '"graph1_1"'
    yield "directive", b"#define DO_GRAPH", b"#undef DO_GRAPH", "#define DO_GRAPH_NODE_VALIDATIONS"
    yield "more code", b"  return err;", b'  system("rm");\n  return err;', "found system"
    yield "comment", b"// PREPARE_GRAPHS", b"/* PREPARE_GRAPHS", "expected QNN_API, found /"
    yield "continued", b"Tensor for t6.", b"Tensor for t6.\\", "found /"
    yield "quotes", b'"axes"', b'"axes', "expected a string"
    yield "byte", b"Qnn_Tensor_t tensor_t6", b"\xffQnn_Tensor_t tensor_t6", r"found \xff"
    yield "end", b"}  // FREEGRAPHINFO\n}", b"}  // FREEGRAPHINFO\n}\nint x;", "the end of the file"


@pytest.mark.parametrize(("what", "old", "new", "says"), list(altered()), ids=lambda v: str(v)[:20])
def test_an_altered_source_is_refused_with_the_reason(
    what: str, old: bytes, new: bytes, says: str
) -> None:
    assert old in MNN, what
    with pytest.raises(SourceFileError) as caught:
        parse(MNN.replace(old, new, 1), "g.cpp")
    assert says in str(caught.value), str(caught.value)


def test_the_line_is_that_of_the_change() -> None:
    lines = MNN.splitlines(keepends=True)
    for at, line in enumerate(lines):
        if line.endswith(b";\n") and b"= " in line:
            changed = [*lines[:at], line.replace(b";", b"@", 1), *lines[at + 1 :]]
            with pytest.raises(SourceFileError) as caught:
                parse(b"".join(changed), "g.cpp")
            assert caught.value.where == f"g.cpp:{at + 1}", line


@pytest.mark.parametrize(
    "text", [b"", b"\0" * 100_000, b"/*" * 50_000, b"{" * 100_000, b'"' * 99_999, b"-" * 99_999]
)
def test_what_is_no_source_at_all(text: bytes) -> None:
    for source in (text, MNN[:3000] + text, MNN + text):
        if source == MNN:
            continue
        with pytest.raises(SourceFileError):
            parse(source, "g.cpp")


def test_a_name_as_long_as_the_source_does_not_fill_the_error() -> None:
    for old in (b'"t6"', b"tensor_t6", b'"Conv2d"', b"dimensions_t6"):
        with pytest.raises(SourceFileError) as caught:
            parse(MNN.replace(old, old[:-1] + b"x" * 1_000_000 + old[-1:], 1), "g.cpp")
        assert len(str(caught.value)) < 1000


def test_long_arrays_take_time_in_proportion() -> None:
    """A vocabulary's worth of scales, and as many that are damaged at the end."""
    pairs = b", ".join(b"{.scale= 0.001573, .offset= 0}" for _ in range(300_000))
    old = b"{.scale= 0.250000, .offset= 0}, {.scale= 0.001573, .offset= 0}"
    assert old in MNN
    many = MNN.replace(old, pairs)
    with pytest.raises(SourceFileError, match=r"expected 300000, the number of pairs, found 2"):
        parse(many, "g.cpp")
    with pytest.raises(SourceFileError, match=r"expected , or }, found \["):
        parse(MNN.replace(old, pairs + b"["), "g.cpp")
