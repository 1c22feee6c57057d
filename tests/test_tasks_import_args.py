"""doit import_args: pasted commands of MNN's script become pipelines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mnnqnn_tasks.errors import PipelineError
from mnnqnn_tasks.spec.load import load_pipeline
from mnnqnn_tasks.spec.pipeline import Pipeline
from mnnqnn_tasks.tasks.importargs import import_args

REPO = Path(__file__).resolve().parents[1]
CHIP = ["--soc_id", "57", "--dsp_arch", "v75"]


def call(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    here = {name: value for name, value in os.environ.items() if name != "QNN_SDK_ROOT"}
    done = subprocess.run(
        [sys.executable, "-m", "doit", "import_args", *args],
        cwd=folder,
        env={**here, "PYTHONPATH": str(REPO), **env},
        capture_output=True,
        encoding="utf-8",
    )
    assert "Traceback" not in done.stderr
    return done


def loaded(folder: Path, text: str) -> Pipeline:
    path = folder / "pipelines" / "p.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    return load_pipeline(path)


def test_a_pasted_command_is_a_pipeline(tmp_path: Path) -> None:
    words = (
        "python3 npu/generate_llm_qnn.py --model models/Qwen3-1.7B-MNN --soc_id 69"
        " --dsp_arch v79 --mnn_path ../build/ --cache_path tmp --chunk_size 256 --vtcm_mb 4"
    )
    done = call(tmp_path, "--", *words.split())
    assert done.returncode == 0
    assert "QNN_SDK_ROOT is not set" in done.stderr
    made = loaded(tmp_path, done.stdout)
    (model,), (target,), chain = made.models, made.targets, made.toolchain
    assert model.name == "Qwen3-1.7B-MNN"
    assert model.path == tmp_path / "models" / "Qwen3-1.7B-MNN"
    assert model.chunk_sizes == (256,)
    assert (target.soc_id, target.dsp_arch, target.vtcm_mb) == (69, "v79", 4)
    assert (chain.io, chain.partition, chain.link) == ("external", "external", "native")
    assert chain.mnn_path == tmp_path.parent / "build"
    assert made.build_dir == tmp_path / "tmp"
    assert made.dist_dir == tmp_path / "dist"


def test_with_an_sdk_all_of_it_is_external(tmp_path: Path) -> None:
    done = call(tmp_path, "--", "--model", "m", *CHIP, "--mnn_path", "b", QNN_SDK_ROOT="/opt/qairt")
    assert "link: external" in done.stdout


def test_an_sdk_on_the_command_line_is_kept(tmp_path: Path) -> None:
    words = ["QNN_SDK_ROOT=/opt/q 1", "python3", "npu/generate_llm_qnn.py", "--model", "m", *CHIP]
    done = call(tmp_path, "--", *words, "--mnn_path", "b")
    chain = loaded(tmp_path, done.stdout).toolchain
    assert (chain.link, chain.qnn_sdk_root) == ("external", Path("/opt/q 1"))
    assert "NOTE" not in done.stderr


def test_without_tools_everything_is_native(tmp_path: Path) -> None:
    for args in (["--"], ["--native", "--"]):
        more = ["--mnn_path", "b"] if "--native" in args else []
        done = call(tmp_path, *args, "--model", "m", *CHIP, *more)
        assert done.returncode == 0 and "toolchain" not in done.stdout
    assert loaded(tmp_path, done.stdout).models[0].chunk_sizes == (128,)


def test_a_file_is_written_but_never_over_another(tmp_path: Path) -> None:
    args = ("-o", "p/x.yaml", "--", "--model", "m", *CHIP)
    assert call(tmp_path, *args).returncode == 0
    path = tmp_path / "p" / "x.yaml"
    assert load_pipeline(path).models[0].path == tmp_path / "m"
    path.write_text("mine")
    done = call(tmp_path, *args)
    assert done.returncode == 3 and "x.yaml exists; add --force" in done.stderr
    assert path.read_text() == "mine"
    assert call(tmp_path, "--force", *args).returncode == 0
    assert load_pipeline(path).models[0].name == "m"


@pytest.mark.parametrize(
    "name", ["a b", "it's", 'q"', "模型", "yes", "1.5", "a: b #c", "-x", "'", "{a}", "\\t", "~"]
)
def test_any_path_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"--model=./{name}", *CHIP, f"--mnn_path={tmp_path}/{name}/b"]
    made = loaded(tmp_path, import_args(words, Path("pipelines"), False, False).text)
    assert made.models[0].path == tmp_path / name
    assert made.toolchain.mnn_path == tmp_path / name / "b"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there are no options"),
        (["--model", "m", "--soc_id", "57"], "--dsp_arch"),
        (["--model", "m", "--dsp_arch", "v75", "--soc_id", "x"], "invalid int value: 'x'"),
        (["--model", "m", *CHIP, "--chnk_size", "3"], "unrecognized arguments: --chnk_size"),
        (["--model", "m", *CHIP, "--model_name", "visual.mnn"], "only LLMs"),
        (["--model", "m", *CHIP, "--input_json", "x.json"], "only LLMs"),
        (["--model", "m", *CHIP, "--max_history_token", "9"], "add --mnn_path"),
    ],
)
def test_mistakes(words: list[str], message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        import_args(words, Path("pipelines"), False, False)
    assert message in caught.value.what + str(caught.value.todo)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--soc_id", "69", "--dsp_arch", "v75"], "dsp_arch v75 contradicts soc_id 69"),
        ([*CHIP, "--chunk_size", "1"], "must be at least 2"),
        ([*CHIP, "--mnn_path", "a\udcff"], "cannot be written into a YAML file"),
        ([*CHIP, "a=b"], "a=b does not belong to an option"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    done = call(tmp_path, "--", "--model", "m", *words)
    assert done.returncode == 3 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert message in line
