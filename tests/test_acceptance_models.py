"""Every model of ``../shared/models`` exports and verifies; the large one and most chunk
sizes take minutes and run with ``-m slow``.
"""

from __future__ import annotations

import functools
import io
from pathlib import Path

import pytest
from verify_build import SHARED, build

from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.verify.report import Report
from mnnqnn_tasks.verify.run import Options, Subject, run
from mnnqnn_tasks.verify.template import render

FLOAT = ("tiny-qwen3-w8", "tiny-qwen2-w8", "tiny-llama-w4b64", "tiny-qwen3-w4asym")
FIXED = "tiny-qwen3-smooth"
LARGE = "smollm2-135m-w8"
CHUNKS = (16, 48, 100, 128)

#: What the 16-bit model was calibrated on.
CALIBRATED = (
    "the quick brown fox jumps over the lazy dog",
    "hello world this is a tiny model",
    "the lazy dog jumps over the quick brown fox",
)

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="there is no ../shared/models")
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> functools.partial[Subject]:
    """Gives the translated graphs of a model at one chunk size, made once."""

    @functools.cache
    def make(model: str, chunk: int) -> Subject:
        root: Path = tmp_path_factory.mktemp(model) / str(chunk)
        return build(SHARED / model, root, [chunk])

    return make


def verified(subject: Subject, options: Options) -> Report:
    out = io.StringIO()
    report = run(subject, options, out=out)  # raises what fails, by name
    print(out.getvalue())
    return report


def _cases() -> list[object]:
    """One chunk size per model by default: every size is there, the rest is slow."""
    quick = dict(zip(FLOAT, CHUNKS, strict=True))
    return [
        pytest.param(model, chunk, marks=() if quick[model] == chunk else slow)
        for model in FLOAT
        for chunk in CHUNKS
    ]


@pytest.mark.parametrize(("model", "chunk"), _cases())
def test_float_activations(model: str, chunk: int, subject) -> None:  # type: ignore[no-untyped-def]
    report = verified(subject(model, chunk), Options())
    assert report.not_exercised() == []
    assert min(o.found.snr_db for g in report.graphs for o in g.outputs) >= 50
    assert min(o.found.cosine for c in report.chains for o in c.outputs) >= 0.999
    assert {g.activations for g in report.graphs} == {"float"}
    assert {c.shape for c in report.chains} == {1, chunk}


@pytest.mark.parametrize(
    ("chunk", "line"),
    [
        pytest.param(chunk, line, marks=() if chunk == 48 and number == 0 else slow)
        for chunk in CHUNKS
        for number, line in enumerate(CALIBRATED)
    ],
)
def test_16_bit_activations(chunk: int, line: str, subject) -> None:  # type: ignore[no-untyped-def]
    # Calibration saw chat messages: the text begins as they do.
    text = render(open_folder(SHARED / FIXED).llm_config, line)
    report = verified(subject(FIXED, chunk), Options(text=text))
    judged = [o for g in report.graphs for o in g.outputs if o.status != "not exercised"]
    assert min(o.found.cosine for o in judged) >= 0.99
    # Decode and prefill graphs of every piece are among what was judged.
    assert all(any(o.status == "passed" for o in g.outputs) for g in report.graphs)
    chains = [o for c in report.chains for o in c.outputs]
    assert [o.status for o in chains] == ["passed", "passed"]
    assert min(o.found.cosine for o in chains) >= 0.99
    assert "fixed" in {g.activations for g in report.graphs}


@slow
@pytest.mark.parametrize("chunk", [64])
def test_the_large_model_answers_as_on_the_cpu(chunk: int, subject) -> None:  # type: ignore[no-untyped-def]
    if not (SHARED / LARGE).is_dir():
        pytest.skip(f"there is no ../shared/models/{LARGE}")
    options = Options(prompt="What is the capital of France?", answer_tokens=16)
    report = verified(subject(LARGE, chunk), options)
    assert report.prompt is not None
    assert "Paris" in report.prompt.answer
    assert report.prompt.expected == report.prompt.got
    assert min(o.found.snr_db for g in report.graphs for o in g.outputs) >= 50
    assert min(o.found.cosine for c in report.chains for o in c.outputs) >= 0.999


@slow
@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_large_model(chunk: int, subject) -> None:  # type: ignore[no-untyped-def]
    if not (SHARED / LARGE).is_dir():
        pytest.skip(f"there is no ../shared/models/{LARGE}")
    report = verified(subject(LARGE, chunk), Options(shapes=(chunk,)))
    assert min(o.found.snr_db for g in report.graphs for o in g.outputs) >= 50
    assert report.chains[0].outputs[0].found.cosine >= 0.999
