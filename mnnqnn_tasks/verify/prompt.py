"""A question to the model: the CPU's greedy answer, and the NPU's next tokens along it.

The NPU chain is judged by teacher forcing: it runs once over the prompt and the CPU's
answer, and at every position of the answer its most likely next token must be the one
that the CPU chose.  One pass is enough, because attention is causal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.mnn.cpu import CpuWorker, output_names
from mnnqnn_tasks.verify.cpumodel import CpuModel
from mnnqnn_tasks.verify.metrics import Array
from mnnqnn_tasks.verify.report import PromptResult
from mnnqnn_tasks.verify.sample import TextMaker
from mnnqnn_tasks.verify.template import render


@dataclass(frozen=True)
class Question:
    """A prompt that the CPU has answered.

    Attributes:
        prompt: the user's message.
        text: the answer, without the token that ends it.
        shape: tokens per call of the NPU graphs.
        count: tokens of the templated prompt.
        tokens: the prompt's and the answer's tokens that fit into ``shape``.
        expected: the CPU's next token at every position of the answer, the one that
            ends it included.
    """

    prompt: str
    text: str
    shape: int
    count: int
    tokens: tuple[int, ...]
    expected: tuple[int, ...]

    def judge(self, logits: Array | None) -> PromptResult:
        """Compare with the chain's logits, ``[..., shape, vocabulary]``.

        Without logits, the NPU chose nothing anywhere: -1.
        """
        if logits is None:
            got = (-1,) * len(self.expected)
        else:
            rows = logits.reshape(self.shape, -1)
            first = self.count - 1
            got = tuple(int(row.argmax()) for row in rows[first : first + len(self.expected)])
        return PromptResult(self.prompt, self.shape, self.count, self.text, self.expected, got)


def ask(maker: TextMaker, weight: Path | None, prompt: str, shape: int, most: int) -> Question:
    """Let the CPU model answer ``prompt`` greedily.

    Args:
        shape: tokens per call; prompt and answer must fit.
        most: the answer's largest number of tokens.

    Raises:
        VerifyError: the prompt does not fit.
        ModelFileError, NativeCrash, ToolMissing: the model cannot be run.
    """
    folder = maker.folder
    name = str(folder.path / "llm_config.json")
    tokens = maker.tokens(render(folder.llm_config, prompt, where=name))
    count = len(tokens)
    if count > shape:
        raise VerifyError(
            "the prompt does not fit into one call",
            where=repr(prompt),
            why=f"it has {count} tokens with its chat template, the largest chunk {shape}",
            todo="ask something shorter, or export with a larger chunk size",
        )
    expected: list[int] = []
    logits = output_names(maker.net)[0]
    with CpuWorker() as worker:
        cpu = CpuModel(worker, folder.path / folder.model, weight)
        # The answer's last next token needs no room: it is chosen, not read.
        while len(expected) < most and count + len(expected) <= shape:
            context = [*tokens, *expected]
            inputs = cpu.learn(maker.inputs(context, len(context)))
            rows = cpu(inputs, [logits])[logits]
            expected.append(int(rows.reshape(len(context), -1)[-1].argmax()))
            if expected[-1] in maker.tokenizer.stop:
                break
    answer = [token for token in expected if token not in maker.tokenizer.stop]
    return Question(
        prompt,
        maker.tokenizer.decode(answer),
        shape,
        count,
        tuple([*tokens, *expected][:shape]),
        tuple(expected),
    )
