"""The chat template: from a user's question to the text that the model was trained on.

MNN's exporter keeps the tokenizer's Jinja template in ``llm_config.json`` under
``jinja``: ``chat_template`` with ``bos`` and ``eos`` texts.  Rendering follows what
Hugging Face's ``apply_chat_template`` does with it, because that is what templates are
written for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mnnqnn_tasks.errors import ModelFileError, ToolMissing

#: What an expression of a template can raise while it is rendered.
_TROUBLE = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError)


def render(llm_config: Mapping[str, Any], prompt: str, *, where: str = "llm_config.json") -> str:
    """The text of one user message with the assistant's turn opened.

    Args:
        llm_config: the content of ``llm_config.json``.
        prompt: the user's message; returned as it is if the model has no template.
        where: the file, for messages.

    Raises:
        ToolMissing: the model has a template and Jinja2 is not installed.
        ModelFileError: the template is malformed or refuses the message.
    """
    spec = llm_config.get("jinja")
    source = spec.get("chat_template") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(source, str):
        return prompt
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ToolMissing(
            "the model has a chat template and Jinja2 is not installed",
            where=where,
            todo='pip install "mnnqnn[prompt]", or give the whole text with --text',
        ) from error
    # The template comes with the model, from whoever made it: hence the sandbox.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(source).render(
            messages=[{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            bos_token=spec.get("bos", ""),
            eos_token=spec.get("eos", ""),
        )
    except (TemplateError, _Refused, *_TROUBLE) as error:
        raise ModelFileError(
            "the model's chat template cannot be rendered",
            where=where,
            why=f"{type(error).__name__}: {error}",
            todo="give the whole text with --text instead of --prompt",
        ) from error


class _Refused(Exception):
    """The template itself called ``raise_exception``."""


def _refuse(message: object) -> None:
    raise _Refused(str(message))
