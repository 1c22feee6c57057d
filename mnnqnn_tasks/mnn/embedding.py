"""The model's token embeddings, read row by row from disk.

``tie_embeddings`` of ``llm_config.json`` describes quantized rows, in a file of their own
or shared with the output layer in the weight file; without it the file holds bfloat16.
Layouts are those of MNN's ``diskembedding.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn import idst
from mnnqnn_tasks.mnn.configs import EXPORT_AGAIN, is_tied
from mnnqnn_tasks.mnn.folder import ModelFolder

#: What MNN reads where no config names another file of embeddings.
EMBEDDINGS = "embeddings_bf16.bin"

Float32s = npt.NDArray[np.float32]

_TIE_KEYS = ("weight_offset", "alpha_offset", "alpha_size", "quant_bit", "quant_block")
_QUANT_BITS = (2, 3, 4, 8)


@dataclass(frozen=True)
class Embedding:
    """Embedding rows of a model.

    Attributes:
        path: the file that holds the rows.
        hidden: values per row.
        count: number of rows, the vocabulary's size.
        bits: 16 for bfloat16 or float16, else the width of a quantized value.
        half: whether 16 bits are float16 rather than bfloat16.
        offset: byte offset of row 0.
        alpha: float32 [count, blocks, 1 or 2]: scale, or minimum and scale, of quantized
            rows; ``None`` for 16 bits.
    """

    path: Path
    hidden: int
    count: int
    bits: int
    half: bool
    offset: int
    alpha: Float32s | None

    def rows(self, ids: Sequence[int]) -> Float32s:
        """The embeddings of the tokens ``ids``, float32 [len(ids), hidden].

        Raises:
            ModelFileError: when the file cannot be read or ends early.
            IndexError: when a token is not in the vocabulary.
        """
        size = self.hidden * self.bits // 8
        result = np.empty((len(ids), self.hidden), np.float32)
        with _open(self.path) as stream:
            for place, token in enumerate(ids):
                if not 0 <= token < self.count:
                    raise IndexError(f"token {token} of a vocabulary of {self.count}")
                stream.seek(self.offset + token * size)
                result[place] = self._row(_exactly(stream, size, self.path), token)
        return result

    def _row(self, data: bytes, token: int) -> Float32s:
        if self.alpha is None:
            if self.half:
                return np.frombuffer(data, "<f2").astype(np.float32)
            return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        blocks = self.alpha.shape[1]
        raw = idst.split_bits(np.frombuffer(data, np.uint8), self.hidden, self.bits)
        half = 1 << (self.bits - 1)
        signed = raw.astype(np.float32).reshape(blocks, -1) - np.float32(half)
        row = signed * self.alpha[token, :, -1:]
        if self.alpha.shape[2] == 2:
            row += self.alpha[token, :, :1]
        return row.reshape(-1)


def _open(path: Path) -> Any:
    try:
        return open(path, "rb")
    except OSError as error:
        raise ModelFileError(
            "cannot read the embeddings", where=str(path), why=error.strerror
        ) from error


def _exactly(stream: Any, size: int, path: Path) -> bytes:
    data: bytes = stream.read(size)
    if len(data) != size:
        raise ModelFileError(
            "the embeddings are cut short",
            where=str(path),
            why=f"{size} bytes were needed, {len(data)} are left",
            todo=EXPORT_AGAIN,
        )
    return data


def open_embedding(folder: ModelFolder, expected: int | None = None) -> Embedding | None:
    """The embeddings of the model in ``folder``, or ``None`` if it has no file of them.

    Args:
        expected: how many rows there should be, if that is known; for messages alone.

    Raises:
        ModelFileError: when the configuration and the file contradict each other.
    """
    settings = folder.settings
    hidden = int(settings["hidden_size"])
    name = str(settings.get("embedding_file", EMBEDDINGS))
    if not is_tied(settings):
        path = folder.path / name
        if not os.path.isfile(path):
            return None
        count = _count(path, 0, os.stat(path).st_size, 16, hidden, expected)
        return Embedding(path, hidden, count, 16, False, 0, None)
    tie = settings["tie_embeddings"]
    values, half_alpha = _tie_values(folder, tie)
    offset, alpha_offset, alpha_size, bits, block = values
    path = folder.path / (folder.weight if offset else name)
    if not os.path.isfile(path):
        return None
    file_size = os.stat(path).st_size
    end = alpha_offset or (file_size if bits == 16 else 0)
    if end <= offset:
        raise _contradiction(folder, f"tie_embeddings is {tie}")
    if max(end, alpha_offset + alpha_size) > file_size:
        raise ModelFileError(
            "the embeddings are cut short",
            where=str(path),
            why=f"tie_embeddings of llm_config.json says that they end at byte "
            f"{max(end, alpha_offset + alpha_size)}; the file has {file_size}",
            todo=EXPORT_AGAIN,
        )
    count = _count(path, offset, end, bits, hidden, expected)
    if bits == 16:
        return Embedding(path, hidden, count, 16, True, offset, None)
    blocks = hidden // block if block else 1
    if blocks < 1 or hidden % blocks:
        raise _contradiction(folder, f"tie_embeddings is {tie}")
    with _open(path) as stream:
        stream.seek(alpha_offset)
        data = _exactly(stream, alpha_size, path)
    kind = np.dtype("<f2" if half_alpha else "<f4")
    numbers, odd = divmod(alpha_size, kind.itemsize)
    per_block, rest = divmod(numbers, count * blocks)
    if odd or rest or per_block not in (1, 2):
        raise _contradiction(
            folder, f"{alpha_size} bytes of scales for {count} rows of {blocks} blocks"
        )
    alpha = np.frombuffer(data, kind).astype(np.float32).reshape(count, blocks, per_block)
    return Embedding(path, hidden, count, bits, False, offset, alpha)


def _count(path: Path, start: int, end: int, bits: int, hidden: int, expected: int | None) -> int:
    """How many rows lie between two byte offsets of a file."""
    count, rest = divmod((end - start) * 8, bits * hidden)
    if rest or not count:
        whole = f"; all {expected} take {expected * bits * hidden // 8}" if expected else ""
        raise ModelFileError(
            "the embeddings are cut short or of another model",
            where=str(path),
            why=f"a row of {hidden} values takes {bits * hidden / 8:g} bytes; "
            f"the {end - start} bytes there are no whole number of rows{whole}",
            todo=EXPORT_AGAIN,
        )
    return count


def _tie_values(folder: ModelFolder, tie: object) -> tuple[list[int], bool]:
    """The five numbers of ``tie_embeddings`` and whether the scales are float16."""
    if isinstance(tie, Mapping):
        raw = [tie.get(key, 0) for key in _TIE_KEYS]
        half = tie.get("alpha_dtype") == "fp16"
    else:
        raw = list(tie) if isinstance(tie, list) else []
        half = len(raw) > 5 and bool(raw[5])
        raw = raw[:5]
    good = len(raw) == 5 and all(type(v) is int and v >= 0 for v in raw)
    if not good or (raw[3] != 16 and raw[3] not in _QUANT_BITS):
        raise _contradiction(folder, f"tie_embeddings is {tie}")
    return raw, half


def _contradiction(folder: ModelFolder, why: str) -> ModelFileError:
    return ModelFileError(
        "the embeddings do not fit their description in llm_config.json",
        where=str(folder.path),
        why=why,
        todo=EXPORT_AGAIN,
    )
