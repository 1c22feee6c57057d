"""What the model is fed: the IO samples, a text of the user's, or a prompt and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.mnn import samples
from mnnqnn_tasks.mnn.folder import ModelFolder
from mnnqnn_tasks.mnn.inputs import token_samples
from mnnqnn_tasks.mnn.samples import Sample
from mnnqnn_tasks.mnn.table import Table
from mnnqnn_tasks.mnn.tokenizer import Tokenizer, open_tokenizer

Samples = dict[str, Sample]


def io_sample(testdir: Path, shape: int) -> Samples:
    """What ``testdir/<shape>/input.mnn`` holds, by name.

    Raises:
        ModelFileError: when the file is missing or no sample.
    """
    return samples.read(testdir / str(shape) / "input.mnn")


@dataclass(frozen=True)
class TextMaker:
    """Makes inputs from tokens.

    Attributes:
        net: the decoded ``llm.mnn``.
    """

    folder: ModelFolder
    net: Table
    tokenizer: Tokenizer

    def tokens(self, text: str) -> list[int]:
        """Token ids of ``text``.

        Raises:
            VerifyError: when there are none.
        """
        found = self.tokenizer.encode(text)
        if not found:
            raise VerifyError(
                "the text has no tokens",
                where=repr(text),
                why="it is empty, or the tokenizer knows none of its characters",
                todo="give a longer text",
            )
        return found

    def inputs(self, tokens: Sequence[int], shape: int) -> Samples:
        """The inputs of one call of ``shape`` tokens.

        Args:
            tokens: at most ``shape`` are used; fewer are repeated from the start until
                the call is full, which no earlier position can see: attention is causal.

        Raises:
            ModelFileError: when the model takes other inputs than a text LLM.
        """
        repeats = -(-shape // len(tokens))
        return token_samples(self.folder, self.net, (list(tokens) * repeats)[:shape])


def text_maker(folder: ModelFolder, net: Table) -> TextMaker:
    """Open the model's tokenizer.

    Raises:
        VerifyError: when the model has none that is known here.
    """
    tokenizer = open_tokenizer(folder)
    if tokenizer is None:
        raise VerifyError(
            "the model's tokenizer cannot be used",
            where=str(folder.path),
            why="it is missing, or of a kind other than byte-pair encoding",
            todo="verify with the IO samples, without --text and --prompt",
        )
    return TextMaker(folder, net, tokenizer)


def read_text(value: str) -> str:
    """The text that ``--text`` names: a file's content, or the value itself.

    Raises:
        VerifyError: when the file cannot be read as UTF-8.
    """
    path = Path(value)
    try:
        if not path.is_file():
            return value
        return path.read_text("utf-8").strip("\n")
    except UnicodeDecodeError as error:
        raise VerifyError(
            "the text file is not UTF-8", where=value, why=str(error), todo="convert it"
        ) from error
    except (OSError, ValueError):
        return value  # too long for a path, or with a zero byte: it is the text itself
