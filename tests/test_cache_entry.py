"""Entries: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

from mnnqnn_tasks.cache.entry import Damaged, Entry, File, check_name, from_bytes, to_bytes
from mnnqnn_tasks.files import sha256_bytes

KEY = "ab" * 32
A, B = sha256_bytes(b"a"), sha256_bytes(b"b")


def entry(**changes: object) -> Entry:
    files = (File("graph0.bin", A, 1), File("qnn/图 'x'.raw", B, 1))
    whole = Entry(KEY, "link/1", files, {"made": [1, "ü", None, 0.1]}, 2.5)
    return dataclasses.replace(whole, **changes)


def signed(body: bytes) -> bytes:
    return sha256_bytes(body).encode() + b"\n" + body + b"\n"


def test_an_entry_is_read_back() -> None:
    data = to_bytes(entry())
    assert from_bytes(data, KEY) == entry()
    assert data == to_bytes(from_bytes(data, KEY))
    assert data.endswith(b"}\n") and data.count(b"\n") == 2


def test_every_flipped_bit_is_damage() -> None:
    data = to_bytes(entry())
    for bit in random.Random(1).sample(range(8 * len(data)), 400):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            from_bytes(bytes(bad), KEY)


def test_every_truncation_and_extension_is_damage() -> None:
    data = to_bytes(entry())
    for bad in [data[:n] for n in range(len(data))] + [data + b"\n", b"\n" + data, data * 2]:
        with pytest.raises(Damaged):
            from_bytes(bad, KEY)


def test_another_keys_entry_is_damage() -> None:
    with pytest.raises(Damaged, match="another key"):
        from_bytes(to_bytes(entry()), "cd" * 32)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"more": 1},
        {"files": [["a", A]]},
        {"files": [["a", A, True]]},
        {"files": [["a", A, -1]]},
        {"files": [["a", A, 1.0]]},
        {"files": [["../a", A, 1]]},
        {"files": [["a", "../" + A, 1]]},
        {"files": [["b", A, 1], ["a", A, 1]]},
        {"files": [["a", A, 1], ["a", A, 1]]},
        {"files": [["a", A, 1], ["a/b", A, 1]]},
        {"files": [["a", A, 1], ["b", A, 2]]},
        {"files": None},
        {"values": []},
        {"cost_seconds": -1},
        {"cost_seconds": "1"},
        {"cost_seconds": None},
        {"action": ""},
        {"key": 7},
    ],
    ids=str,
)
def test_a_wrong_form_is_damage_even_with_the_right_checksum(change: dict[str, object]) -> None:
    raw = json.loads(to_bytes(entry()).split(b"\n")[1])
    assert from_bytes(signed(json.dumps(raw).encode()), KEY) == entry()
    with pytest.raises(Damaged):
        from_bytes(signed(json.dumps({**raw, **change}).encode()), KEY)


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"{", b"[" * 100_000, b'{"a":\xff}', b"nan"])
def test_no_entry_at_all(body: bytes) -> None:
    with pytest.raises(Damaged):
        from_bytes(signed(body), KEY)


@pytest.mark.parametrize(
    "name", ["a", "a/b.bin", "图/b c", "..a", "a.", "-x", "~", "'q\"", "a" * 255]
)
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\\b", "a\0", "a\nb", "\x7f"),
        *("\ud800", "a" * 256, "图" * 86, "/".join(["a" * 100] * 50), "a\u2028b", 7, None),
    ],
)
def test_bad_names(name: object) -> None:
    with pytest.raises(ValueError):
        check_name(name)
