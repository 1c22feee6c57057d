"""Ops that move elements: slices, concatenation, gathers, permutations, reshapes."""

from __future__ import annotations

import numpy as np
from translate_graphs import Array, Net, check, half

RNG = np.random.default_rng(2)
A = RNG.standard_normal((2, 6, 4, 16)).astype(np.float32)
H = half(A)


def ints(*values: int) -> Array:
    return np.array(values, np.int32)


def test_strided_slices() -> None:
    net, expected = Net(), {}
    x = net.input(A)

    def tensorflow(lists: tuple[tuple[int, ...], ...], want: Array, **masks: int) -> None:
        consts = [net.const(ints(*values)) for values in lists]
        expected[net.op("StridedSlice", [x, *consts], want.shape, params=masks)] = want

    ones = (1, 1, 1, 1)
    tensorflow(((0, 1, 0, 2), (2, 5, 4, 10), ones), H[:, 1:5, :, 2:10])
    tensorflow(((0, 1, 0, 2), (2, -1, 4, 15), (1, 2, 1, 3)), H[:, 1:-1:2, :, 2:15:3])
    tensorflow(((0, 1, 0, 2), (2, 2, 3, 10), ones), H[:, 1, 0:3, 2:10], shrinkAxisMask=2)
    tensorflow(((1, 1, 1, 2), (1, 1, 1, 10), ones), H[1:, :1, 1:, :10], beginMask=10, endMask=5)
    onnx = {"fromType": 1}
    last = [net.const(ints(v)) for v in (8, 2147483647, -1, 1)]
    expected[net.op("StridedSlice", [x, *last], (2, 6, 4, 8), params=onnx)] = H[..., 8:]
    two = [net.const(ints(*v)) for v in ((0, -3), (8, 99), (3, 1), (1, 2))]
    out = net.op("StridedSlice", [x, *two], (2, 2, 4, 8), params=onnx)
    expected[out] = H[:, -3:99:2, :, 0:8]
    shapes = [(2, 2, 4, 16), (2, 1, 4, 16), (2, 3, 4, 16)]
    parts = {"axis": 1, "slicePoints": [2, 1, 3], "sourceType": "TENSORFLOW"}
    first = net.op("Slice", [x], shapes, params=parts)
    for number, (begin, end) in enumerate(((0, 2), (2, 3), (3, 6))):
        expected[first + number] = H[:, begin:end]
    check(net, expected, 100)


def test_concat_and_gather() -> None:
    net, expected = Net(), {}
    x, part = net.input(A), net.input(A[:, :3] * 2)
    whole = net.input(ints(1, 2, 3))
    out = net.op("Concat", [x, part], (2, 9, 4, 16), params={"axis": 1})
    expected[out] = np.concatenate([H, half(A[:, :3] * 2)], 1)
    out = net.op("Concat", [x, x], (2, 6, 4, 32), params={"axis": -1})
    expected[out] = np.concatenate([H, H], -1)
    tail = net.const(ints(7, 8))
    out = net.op("Concat", [whole, tail, whole], (8,), "int32", params={"axis": 0})
    expected[out] = ints(1, 2, 3, 7, 8, 1, 2, 3)
    table = RNG.standard_normal((50, 8)).astype(np.float32)
    rows, zero = net.input(ints(3, 49, 0, 7).reshape(2, 2)), net.const(ints(0))
    out = net.op("GatherV2", [net.const(table), rows, zero], (2, 2, 8))
    expected[out] = half(table)[[[3, 49], [0, 7]]]
    out = net.op("GatherV2", [x, net.const(ints(2).reshape(())), net.const(ints(1))], (2, 4, 16))
    expected[out] = H[:, 2]
    out = net.op("GatherV2", [x, net.const(ints(3, 1, 0)), net.const(ints(2))], (2, 6, 3, 16))
    expected[out] = H[:, :, [3, 1, 0]]
    big = np.arange(30, dtype=np.int32).reshape(10, 3) + 100000
    out = net.op("GatherV2", [net.input(big), net.input(ints(9, 0)), zero], (2, 3), "int32")
    expected[out] = big[[9, 0]]
    check(net, expected, 100)


def test_permutations_and_layouts() -> None:
    net, expected = Net(), {}
    x = net.input(A)
    for perm in ((0, 2, 1, 3), (0, 3, 1, 2), (3, 2, 1, 0), (0, 1, 3, 2)):
        want = H.transpose(perm)
        expected[net.op("Permute", [x], want.shape, params={"dims": list(perm)})] = want
    five = RNG.standard_normal((2, 1, 5, 3, 4)).astype(np.float32)
    order = net.const(ints(2, 0, 1, 4, 3))
    want = half(five).transpose(2, 0, 1, 4, 3)
    expected[net.op("Transpose", [net.input(five), order], want.shape)] = want
    for source, dest, perm in (("NCHW", "NHWC", (0, 2, 3, 1)), ("NHWC", "NC4HW4", (0, 3, 1, 2))):
        want = H.transpose(perm)
        layouts = {"source": source, "dest": dest}
        expected[net.op("ConvertTensor", [x], want.shape, params=layouts)] = want
    check(net, expected, 100)


def test_a_chain_of_shapes_costs_one_reshape() -> None:
    net = Net()
    x = net.input(A)
    value = net.op("Reshape", [x], (48, 16, 1, 1))
    value = net.op(
        "ConvertTensor", [value], (48, 16, 1, 1), params={"source": "NCHW", "dest": "NC4HW4"}
    )
    value = net.op("Squeeze", [value], (48, 16))
    value = net.op("Unsqueeze", [value], (1, 48, 16))
    net.output(value)
    graph = net.translated().graph
    assert [n.type for n in graph.nodes] == ["Cast", "Reshape", "Cast"]
    check(net_of_chain(), {3: H.reshape(1, 48, 16)}, 70)


def net_of_chain() -> Net:
    net = Net()
    value = net.op("Reshape", [net.input(A)], (48, 16, 1, 1))
    value = net.op("Squeeze", [value], (48, 16))
    net.op("Unsqueeze", [value], (1, 48, 16))
    return net


def test_an_output_may_be_a_renamed_input_or_integer() -> None:
    net = Net()
    whole = net.input(ints(1, 2, 100000, -4))
    out = net.op("Reshape", [whole], (2, 2), "int32")
    floats = net.op("Identity", [net.input(A)], A.shape)
    check(net, {out: ints(1, 2, 100000, -4).reshape(2, 2), floats: H}, 70)


def test_border_cases() -> None:
    """An input that nothing reads, constants as outputs, one value under two outputs."""
    net = Net()
    x, numbers = net.input(A), net.input(ints(5, 6, 7))
    net.input(A * 2)
    reals, whole = net.const(np.array([1.5, 2, 3], np.float32)), net.const(ints(1, 2, 3))
    negative = net.op("UnaryOp", [x], A.shape, params={"opType": "NEG"})
    check(
        net,
        {
            negative: -H,
            net.op("Reshape", [negative], (48, 16)): -H.reshape(48, 16),
            net.op("Reshape", [reals], (3, 1)): np.array([[1.5], [2], [3]]),
            net.op("Reshape", [whole], (3, 1), "int32"): ints(1, 2, 3).reshape(3, 1),
            net.op("BinaryOp", [numbers, whole], (3,), "int32"): ints(6, 8, 10),
        },
        100,
    )
