"""The toolchain section of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnnqnn_tasks.errors import PipelineError
from mnnqnn_tasks.spec.load import load_pipeline
from mnnqnn_tasks.spec.pipeline import Toolchain

BASE = "version: 1\nmodels: [{name: m, path: model}]\ntargets: [{soc_id: 57}]\n"


@pytest.fixture(autouse=True)
def _no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)


def load(folder: Path, toolchain: str) -> Toolchain:
    (folder / "p.yaml").write_text(f"{BASE}toolchain: {toolchain}\n")
    return load_pipeline(folder / "p.yaml").toolchain


def test_everything_is_native_unless_said(tmp_path: Path) -> None:
    chain = load(tmp_path, "{}")
    assert (chain.io, chain.partition, chain.link) == ("native",) * 3
    assert chain == Toolchain()


def test_paths_count_from_the_file(tmp_path: Path) -> None:
    text = "{io: external, link: external, mnn_path: ../mnn, qnn_sdk_root: sdk}"
    chain = load(tmp_path, text)
    assert chain.mnn_path == tmp_path.parent / "mnn"
    assert chain.qnn_sdk_root == tmp_path / "sdk"
    assert chain.partition == "native"


def test_the_sdk_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_SDK_ROOT", "/opt/qairt")
    assert load(tmp_path, "{link: external}").qnn_sdk_root == Path("/opt/qairt")
    assert load(tmp_path, "{link: external, qnn_sdk_root: /other}").qnn_sdk_root == Path("/other")


def test_what_compilefornpu_is_told(tmp_path: Path) -> None:
    chain = load(
        tmp_path,
        "{partition: external, mnn_path: b, graph_name: graphllm, skips: [/a/b, c],"
        " max_history_token: 4096.0, time_limit_s: 60}",
    )
    assert (chain.graph_name, chain.skips) == ("graphllm", ("/a/b", "c"))
    assert (chain.max_history_token, chain.time_limit_s) == (4096, 60)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{io: external}", "toolchain.io: io is external, but nothing says where MNN's tools are"),
        ("{partition: external}", "add mnn_path"),
        ("{link: external}", "set QNN_SDK_ROOT"),
        ("{io: extrenal}", "did you mean 'external'?"),
        ("{io: 3}", "must be text, not the number 3"),
        ("{mnn_pth: x}", "did you mean 'mnn_path'?"),
        ("{skips: [a]}", "add partition: external, or remove skips"),
        ("{max_history_token: 1}", "is for compilefornpu"),
        ("{partition: external, mnn_path: b, graph_name: g7}", "graph_name"),
        ("{partition: external, mnn_path: b, graph_name: ../g}", "graph_name"),
        ("{time_limit_s: 0}", "must be at least 1"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(PipelineError) as caught:
        load(tmp_path, text)
    assert words in str(caught.value)
    assert "p.yaml:4:" in str(caught.value)
