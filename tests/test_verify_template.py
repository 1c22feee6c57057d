"""Chat templates: the known ones, broken ones, none."""

from __future__ import annotations

import pytest

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.verify.template import render

pytest.importorskip("jinja2", reason="Jinja2 is not installed (extra 'prompt')")

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_chatml() -> None:
    assert render({"jinja": {"chat_template": CHATML}}, "Hi {{ x }}?") == (
        "<|im_start|>system\nBe kind<|im_end|>\n"
        "<|im_start|>user\nHi {{ x }}?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_line_breaks_after_blocks_are_dropped() -> None:
    # As Hugging Face renders them: the break after %} is not part of the text.
    template = (
        "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n{% endif %}\n{% endfor %}"
    )
    assert render({"jinja": {"chat_template": template}}, "a") == "a\n"


def test_special_tokens() -> None:
    config = {"jinja": {"chat_template": "{{ bos_token }}x{{ eos_token }}", "bos": "<s>"}}
    assert render(config, "a") == "<s>x"


@pytest.mark.parametrize("config", [{}, {"jinja": {}}, {"jinja": None}, {"jinja": "text"}])
def test_no_template_leaves_the_prompt(config: dict[str, object]) -> None:
    assert render(config, "as it is") == "as it is"


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ messages[0].nothing.more }}",
        "{{ raise_exception('only one role') }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 'a' + 1 }}",
    ],
)
def test_bad_template_is_a_named_error(template: str) -> None:
    with pytest.raises(ModelFileError, match="chat template") as caught:
        render({"jinja": {"chat_template": template}}, "a")
    assert caught.value.why
