"""The tokenizer: known ids of SmolLM2, round trips, and damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.tokenizer import Tokenizer, load, open_tokenizer

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ROOT / "models" / "tiny-qwen3-w8"
SMOLLM = ROOT.parent / "shared" / "models" / "smollm2-135m-w8"


def opened(folder: Path) -> Tokenizer:
    tokenizer = open_tokenizer(open_folder(folder))
    assert tokenizer is not None
    return tokenizer


TINY = opened(BUNDLED)


@pytest.mark.skipif(not SMOLLM.is_dir(), reason=f"no {SMOLLM}")
def test_known_ids_of_smollm2() -> None:
    """Ids of the published tokenizer.json of HuggingFaceTB/SmolLM2-135M-Instruct."""
    tokenizer = opened(SMOLLM)
    assert len(tokenizer.tokens) == 49152
    assert tokenizer.stop == (2,)
    assert tokenizer.special["<|im_start|>"] == 1
    question = "What is the capital of France?"
    assert tokenizer.encode(question) == [1780, 314, 260, 3575, 282, 4649, 47]
    turn = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n")
    assert turn == [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198]
    assert tokenizer.decode(turn) == f"<|im_start|>user\n{question}<|im_end|>\n"
    assert tokenizer.encode(" 2024")[-4:] == tokenizer.encode("2024")


def test_words_of_the_tiny_tokenizer_are_tokens() -> None:
    ids = TINY.encode("the quick brown fox jumps over the lazy dog")
    assert len(ids) == 9
    assert TINY.tokens[ids[1]] == "\u0120quick"
    assert TINY.decode(ids) == "the quick brown fox jumps over the lazy dog"


def test_special_tokens_stand_anywhere() -> None:
    start, end = TINY.special["<|im_start|>"], TINY.special["<|im_end|>"]
    ids = TINY.encode("a<|im_start|><|im_end|>b<|im_start")
    assert ids[1:3] == [start, end]
    assert ids.count(start) == 1
    assert TINY.decode(ids) == "a<|im_start|><|im_end|>b<|im_start"


def test_merges_take_the_lowest_rank_first() -> None:
    pair = min(TINY.ranks, key=lambda key: TINY.ranks[key])
    left, right = (TINY.tokens[token] for token in pair)
    merged = TINY.ids[left + right]
    assert TINY._merge(list(pair)) == [merged]
    assert TINY._merge([merged]) == [merged]


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    assert TINY.decode(TINY.encode(text)) == text


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    data = (BUNDLED / "tokenizer.mtok").read_bytes()
    path = tmp_path / "tokenizer.mtok"
    whole = 0
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        try:
            assert load(path) is not None
            whole += 1
        except ModelFileError as error:
            assert error.where == str(path)
    assert whole < 60  # the end, with flags and template, is optional


def test_foreign_and_unknown_files(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.txt"
    for data in (b"", b"\n", b"hello world", b"430\n", b"1 4\n0 0 0\n\n"):
        path.write_bytes(data)
        with pytest.raises(ModelFileError):
            load(path)
    path.write_bytes(b"430 1\n0 0 0\n\n1\nYQ==\n")  # a kind that is not implemented
    assert load(path) is None
    path.write_bytes(b"430 4\n0 0 0\n\n" + bytes([0, 5]))  # a splitter that is not
    assert load(path) is None
    with pytest.raises(ModelFileError):
        load(tmp_path / "missing")
