"""Which ops translate, why others do not, and names."""

from __future__ import annotations

import numpy as np
import pytest
from translate_graphs import Array, Net

from mnnqnn_tasks.errors import TranslateError, UnsupportedOp
from mnnqnn_tasks.translate.names import NamePool, boundary_name, sanitize
from mnnqnn_tasks.translate.registry import translates, translators, unsupported_reason

A = np.ones((1, 6, 4, 16), np.float32)


def reason(net: Net) -> str | None:
    return unsupported_reason(net.ops[-1], net.subgraph())


def one(type: str, *inputs: Array, dims: tuple[int, ...] = A.shape, **more: object) -> Net:
    net = Net()
    net.op(type, [net.input(i) for i in inputs], dims, **more)  # type: ignore[arg-type]
    return net


def test_every_op_of_an_llm_is_known() -> None:
    wanted = {
        *("Convolution", "LayerNorm", "Reshape", "ConvertTensor", "BinaryOp", "UnaryOp"),
        *("StridedSlice", "Slice", "Concat", "Unsqueeze", "Squeeze", "GatherV2", "Permute"),
        *("Transpose", "Cast", "MatMul", "BatchMatMul", "Softmax", "Reduction", "Select"),
        *("Const", "ReLU", "ReLU6"),
    }
    assert wanted <= set(translators())


REFUSED = {
    "no translation for MNN op Attention": one("Attention", A),
    "UnaryOp ERFINV": one("UnaryOp", A, params={"opType": "ERFINV"}),
    "BinaryOp FLOORMOD of floats": one("BinaryOp", A, A, params={"opType": "FLOORMOD"}),
    "BinaryOp BITWISE_AND": one("BinaryOp", A, A, params={"opType": "BITWISE_AND"}),
    "does not broadcast": one("BinaryOp", A, A[:, :3], params={"opType": "ADD"}),
    "Reduction PROD": one("Reduction", A, params={"operation": "PROD", "dim": [1]}),
    "begin, end or step is not constant": one(
        "StridedSlice", A, *[np.zeros(4, np.int32)] * 3, dims=(1, 1, 1, 1)
    ),
    "integers above 2048": one(
        "Cast", np.ones(3, np.int32), dims=(3,), params={"srcT": "DT_INT32", "dstT": "DT_FLOAT"}
    ),
    "6 dimensions": one("Reshape", A, dims=(1, 2, 3, 4, 4, 4)),
    "a tensor of shape [0]": one("Reshape", A, dims=(0,)),
    "2 groups": one("LayerNorm", A, params={"axis": [-1], "group": 2}),
    "axes [1] that are not the last ones": one("LayerNorm", A, params={"axis": [1]}),
}


@pytest.mark.parametrize("type", sorted(translators()))
def test_an_op_with_too_few_or_too_many_inputs_stays_on_the_cpu(type: str) -> None:
    least, most = translators()[type].inputs
    net = Net()
    if least > 0:
        net.op(type, [net.input(A)] * (least - 1), A.shape)
        assert reason(net) == f"{least - 1} inputs and 1 outputs"
        net.op(type, [-1] * least, A.shape)
        assert reason(net) is not None
    if most < 100:
        net.op(type, [net.input(A)] * (most + 1), A.shape)
        assert reason(net) == f"{most + 1} inputs and 1 outputs"


@pytest.mark.parametrize("why", REFUSED)
def test_unsupported_ops_say_why(why: str) -> None:
    found = reason(REFUSED[why])
    assert found is not None and why in found


def test_translating_an_unsupported_op_names_it() -> None:
    net = Net()
    x = net.input(A)
    net.output(net.op("UnaryOp", [x], A.shape, params={"opType": "ERFINV"}, name="/odd one"))
    with pytest.raises(UnsupportedOp, match="/odd one"):
        net.translated()


def test_a_subgraph_that_contradicts_itself_is_an_error_that_names_the_op() -> None:
    net = Net()
    x = net.input(A)
    ghost = net.tensor(A.shape)
    net.output(net.op("BinaryOp", [x, ghost], A.shape, params={"opType": "ADD"}, name="/sum"))
    with pytest.raises(TranslateError, match="/sum"):
        net.translated()
    net = Net()
    gamma = net.blob(np.ones(3, np.float32))
    out = net.op(
        "LayerNorm", [net.input(A)], A.shape, params={"axis": [-1]}, weights={"gamma": gamma}
    )
    net.output(out)
    with pytest.raises(TranslateError, match="gamma has 3 values"):
        net.translated()


def test_one_translator_for_an_op() -> None:
    translators()
    with pytest.raises(ValueError, match="two translators"):
        translates("Convolution")(lambda builder, op: None)


def test_names_are_identifiers_and_never_a_border() -> None:
    assert sanitize("/layers.0/q_proj/Linear") == "_layers_0_q_proj_Linear"
    assert sanitize("中文") == "__" and sanitize("") == "_" and sanitize("0a") == "_0a"
    assert sanitize("t12") == "_t12" and sanitize("t12_cast") == "_t12_cast"
    assert sanitize("t12x") == "t12x" and boundary_name(12) == "t12"
    long = [sanitize("a" * 300 + end) for end in "xy"]
    assert len(set(long)) == 2 and all(len(name) <= 120 for name in long)


def test_a_pool_gives_each_name_once() -> None:
    pool = NamePool()
    pool.reserve("t1")
    names = [pool.take(n) for n in ("a", "a", "a_2", "a", "t1")]
    assert names == ["a", "a_2", "a_2_2", "a_3", "t1_2"]
    with pytest.raises(ValueError):
        pool.reserve("a")


def test_nodes_and_tensors_of_equal_ops_are_named_apart() -> None:
    net = Net()
    x = net.input(A)
    for _ in range(3):
        x = net.op("UnaryOp", [x], A.shape, params={"opType": "NEG"}, name="/same")
    net.output(x)
    graph = net.translated().graph
    assert len({t.name for t in graph.tensors}) == len(graph.tensors)
    assert len({n.name for n in graph.nodes}) == len(graph.nodes)
    assert [t.name for t in graph.inputs() + graph.outputs()] == ["t0", "t1003"]
