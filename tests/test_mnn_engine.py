"""Our reading of a model against MNN's own LLM engine, which the wheel carries.

The engine reads tokenizer, embeddings and model by itself and keeps a KV cache, so it
is a witness for token ids, for embedding rows and inputs, and for one pass over n tokens
being what n decode steps are.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnnqnn_tasks.mnn import cpu, inputs, reader
from mnnqnn_tasks.mnn.folder import open_folder
from mnnqnn_tasks.mnn.tokenizer import open_tokenizer

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ROOT / "models" / "tiny-qwen3-w8"
OTHERS = sorted((ROOT.parent / "shared" / "models").glob("*"))
MODELS = [BUNDLED, *(path for path in OTHERS if path.name != BUNDLED.name)]

TEXTS = [
    "the quick brown fox",
    "What is the capital of France?",
    "\u4f60\u597d \u00e9 123 don't  x\n\n y",
    "<|im_start|>user\nhi<|im_end|>\n",
    "  lead and trail  ",
    "tab\t x\r\n",
    "We'LL 12 \u00bd\u00b2 \u00b2x _a__b (\u0661\u0662) \U0001f600",
]

ENGINE = """
import json, os, sys, numpy, MNN
folder, result = sys.argv[1:3]
request = json.load(sys.stdin)
engine = MNN.llm.create(folder + "/config.json")
engine.set_config(json.dumps({"precision": "high", "memory": "high", "tmp_path": folder}))
engine.load()
ids = [list(engine.tokenizer_encode(text)) for text in request["texts"]]
tokens = request["tokens"]
last = []
last.append(numpy.array(engine.forward(tokens[:4]).read()).reshape(-1))
for token in tokens[4:]:
    last.append(numpy.array(engine.forward([token]).read()).reshape(-1))
numpy.save(result + ".npy", numpy.stack(last))
json.dump(ids, open(result, "w"))
"""


@pytest.fixture(scope="module", params=MODELS, ids=lambda path: path.name)
def witness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[int], list[list[int]], np.ndarray[Any, Any]]:
    """Folder, tokens, ids of `TEXTS`, and logits after tokens 4, 5, ... by decode steps."""
    folder: Path = request.param
    temp = tmp_path_factory.mktemp("engine")
    shutil.copytree(folder, temp / "model")  # the engine may write beside the model
    tokenizer = open_tokenizer(open_folder(folder))
    assert tokenizer is not None
    tokens = tokenizer.encode("the quick brown fox jumps over the lazy dog")
    subprocess.run(
        [sys.executable, "-c", ENGINE, str(temp / "model"), str(temp / "result")],
        input=json.dumps({"texts": TEXTS, "tokens": tokens}),
        capture_output=True,
        text=True,
        cwd=temp,
        check=True,
    )
    ids = json.loads((temp / "result").read_text())
    return folder, tokens, ids, np.load(temp / "result.npy")


def test_token_ids_are_the_engine_s(witness: Any) -> None:
    folder, _, ids, _ = witness
    tokenizer = open_tokenizer(open_folder(folder))
    assert tokenizer is not None
    assert [tokenizer.encode(text) for text in TEXTS] == ids


def test_one_pass_is_what_the_engine_decodes_step_by_step(witness: Any) -> None:
    folder, tokens, _, expected = witness
    net = reader.read(folder / "llm.mnn")
    given = inputs.token_samples(open_folder(folder), net, tokens)
    model, weight = folder / "llm.mnn", folder / "llm.mnn.weight"
    logits = cpu.run_model(model, weight, given, ["logits"])["logits"].values[0]
    assert len(expected) == len(tokens) - 3
    scale = np.abs(expected).max()
    assert scale > 0.1
    assert np.abs(logits[3:] - expected).max() < 1e-5 * scale
