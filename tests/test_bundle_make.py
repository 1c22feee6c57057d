"""Bundles: what is in them, and that they appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mnnqnn_tasks.errors import BundleError, DiskError, MnnqnnError, StaleInputError
from mnnqnn_tasks.files import write_json
from mnnqnn_tasks.mnn.index import index_model
from mnnqnn_tasks.mnn.inputs import write_inputs
from mnnqnn_tasks.partition.write import partition_model
from mnnqnn_tasks.spec.schemas import schema
from mnnqnn_tasks.toolchain import wholefolder
from mnnqnn_tasks.toolchain.bundle import make_bundle
from mnnqnn_tasks.toolchain.wholefolder import whole_folder

MODEL = Path(__file__).resolve().parent.parent / "models" / "tiny-qwen3-w8"
TARGET = {"name": "SM8650-v75", "soc_id": 57, "soc_model": "SM8650", "dsp_arch": "v75"}


class Parts:
    """Everything that a bundle is made of: a model, its plan and as many binaries."""

    def __init__(self, base: Path, keep: str | None = None) -> None:
        self.base = base
        self.model = base / "模型 'm'"
        self.build = base / "build"
        self.out = base / "dist" / "m" / "t"
        shutil.copytree(MODEL, self.model)
        self.reindex()
        sample = self.build / "input.mnn"
        write_inputs(self.model, 16, sample)
        partition_model(
            self.model,
            index_model(self.model),
            {16: sample},
            (),
            self.build,
            supported=lambda op, _: "kept for the test" if op.name == keep else None,
        )
        plan = json.loads((self.build / "plan.json").read_text())
        pieces = [p for p in plan["pieces"] if p["place"] == "npu"]
        self.binaries = [self.build / f"graph{i}.bin" for i in range(len(pieces))]
        for path in self.binaries:  # a bundle does not look into them
            path.write_bytes(path.name.encode() * 1000)

    def reindex(self) -> None:
        write_json(self.build / "model.json", index_model(self.model).to_json())

    def make(self, **changes: Any) -> list[Path]:
        arguments: dict[str, Any] = {
            "model_dir": self.model,
            "index": self.build / "model.json",
            "host_model": self.build / "qnn" / "llm.mnn",
            "binaries": self.binaries,
            "chunk_sizes": [16, 128, 64],
            "runtime": {},
            "target": TARGET,
            "library": "QNN 2.51.0",
            "out_dir": self.out,
        }
        return make_bundle(**arguments | changes)

    def config(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.out / "config_qnn.json").read_text("utf-8"))
        return value


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_the_whole_bundle(parts: Parts) -> None:
    made = parts.make(runtime={"thread_num": 2, "sampler_type": "greedy", "new": {"a": [1]}})
    files = tree(parts.out)
    assert sorted(made) == sorted(parts.out / name for name in files)
    assert set(files) == {
        *("bundle.json", "config_qnn.json", "llm_config.json", "qnn/llm.mnn"),
        *("tokenizer.mtok", "embeddings_bf16.bin"),
        *(f"qnn/{path.name}" for path in parts.binaries),
    }
    config = parts.config()
    jsonschema.validate(config, schema("config_qnn"))
    original = json.loads((MODEL / "config.json").read_text())
    assert config == original | {
        "llm_model": "qnn/llm.mnn",
        "llm_weight": "qnn/llm.mnn",
        "chunk_limits": [128, 64, 16, 1],
        "backend_type": "cpu",
        "thread_num": 2,
        "sampler_type": "greedy",
        "new": {"a": [1]},
    }
    manifest = json.loads(files.pop("bundle.json"))
    jsonschema.validate(manifest, schema("bundle"))
    assert manifest["target"] == TARGET
    assert manifest["files"] == {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        for name, data in files.items()
    }
    assert os.listdir(parts.out.parent) == ["t"]  # nothing is left beside it


def load_with_mnn(config: Path) -> str:
    code = "import sys, MNN.llm; MNN.llm.create(sys.argv[1]).load()"
    command = [sys.executable, "-c", code, str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    return done.stdout + done.stderr


def test_mnn_accepts_the_config_and_would_refuse_it_without_a_weight_file(parts: Parts) -> None:
    parts.make()
    assert "[Error]" not in load_with_mnn(parts.out / "config_qnn.json")
    config = parts.config()
    del config["llm_weight"]
    other = parts.out / "other.json"
    other.write_text(json.dumps(config))
    assert "LLM weight file not found" in load_with_mnn(other)


def test_the_weight_file_comes_along_where_the_cpu_reads_it(tmp_path: Path) -> None:
    parts = Parts(tmp_path, keep="/layers.1/mlp/up_proj/Linear")
    parts.make()
    assert parts.config()["llm_weight"] == "llm.mnn.weight"
    weight = (parts.out / "llm.mnn.weight").read_bytes()
    assert weight == (MODEL / "llm.mnn.weight").read_bytes()


TIED = {"weight_offset": 4096, "alpha_offset": 28672, "alpha_size": 1536, "quant_bit": 8}


@pytest.mark.parametrize("tied", [[4096, 28672, 1536, 8, 0], TIED])
def test_tied_embeddings_live_in_the_weight_file(parts: Parts, tied: object) -> None:
    path = parts.model / "llm_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_embeddings": tied}))
    (parts.model / "embeddings_bf16.bin").unlink()
    parts.reindex()
    parts.make()
    assert parts.config()["llm_weight"] == "llm.mnn.weight"
    assert (parts.out / "llm.mnn.weight").is_file()
    assert not (parts.out / "embeddings_bf16.bin").exists()


def test_folders_of_the_config_do_not_reach_the_bundle(parts: Parts) -> None:
    path = parts.model / "config.json"
    keys = {"base_dir": "/somewhere/", "npu_model_dir": "x"}
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    parts.reindex()
    parts.make()
    assert not keys.keys() & parts.config().keys()


def test_a_model_without_config_json(parts: Parts) -> None:
    (parts.model / "config.json").unlink()
    (parts.model / "tokenizer.mtok").rename(parts.model / "tokenizer.txt")
    parts.reindex()
    parts.make()
    jsonschema.validate(parts.config(), schema("config_qnn"))


def test_the_same_bytes_in_another_folder(tmp_path: Path) -> None:
    one, two = Parts(tmp_path / "a"), Parts(tmp_path / "另一个 folder")
    one.make()
    two.make()
    assert tree(one.out) == tree(two.out)


def test_nothing_stale_and_nothing_foreign_stays(parts: Parts) -> None:
    parts.make()
    before = tree(parts.out)
    (parts.out / "qnn" / "graph99.bin").write_bytes(b"of an older cut")
    (parts.out / "notes.txt").write_bytes(b"")
    parts.make()
    assert tree(parts.out) == before


def test_editing_the_bundle_leaves_its_sources_alone(parts: Parts) -> None:
    parts.make()
    sources = [parts.model, parts.build]
    before = [tree(s) for s in sources]
    for path in parts.out.rglob("*"):
        if path.is_file():
            with open(path, "r+b") as stream:
                stream.write(b"edited")
    assert [tree(s) for s in sources] == before


def change_tokenizer(parts: Parts) -> dict[str, Any]:
    (parts.model / "tokenizer.mtok").write_bytes(b"another")
    return {}


def remove_tokenizer(parts: Parts) -> dict[str, Any]:
    (parts.model / "tokenizer.mtok").unlink()
    return {}


def remove_embeddings(parts: Parts) -> dict[str, Any]:
    (parts.model / "embeddings_bf16.bin").unlink()
    parts.reindex()
    return {}


def override(parts: Parts) -> dict[str, Any]:
    path = parts.model / "llm_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chunk_limits": [1, 2]}))
    parts.reindex()
    return {}


def foreign_host_model(parts: Parts) -> dict[str, Any]:
    return {"host_model": parts.model / "config.json"}


def binary_too_few(parts: Parts) -> dict[str, Any]:
    return {"binaries": parts.binaries[:-1]}


def binary_too_many(parts: Parts) -> dict[str, Any]:
    extra = parts.build / "graph77.bin"
    extra.write_bytes(b"x")
    return {"binaries": [*parts.binaries, extra]}


def missing_binary(parts: Parts) -> dict[str, Any]:
    parts.binaries[0].unlink()
    return {}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (change_tokenizer, "changed while"),
        (remove_tokenizer, "missing"),
        (remove_embeddings, "no embeddings"),
        (override, "sets 'chunk_limits'"),
        (foreign_host_model, "not a readable MNN model"),
        (binary_too_few, "no binary for qnn/graph"),
        (binary_too_many, "no Plugin op for qnn/graph77.bin"),
        (missing_binary, "cannot be read"),
    ],
)
def test_trouble_is_named_and_keeps_the_old_bundle(
    parts: Parts, damage: Callable[[Parts], dict[str, Any]], words: str
) -> None:
    parts.make()
    before = tree(parts.out)
    with pytest.raises(MnnqnnError) as caught:
        parts.make(**damage(parts))
    assert words in str(caught.value)
    assert tree(parts.out) == before
    assert os.listdir(parts.out.parent) == ["t"]


def test_a_changed_model_is_a_stale_input(parts: Parts) -> None:
    with pytest.raises(StaleInputError):
        parts.make(**change_tokenizer(parts))
    assert not parts.out.exists()


def test_only_a_bundle_is_ever_replaced(parts: Parts) -> None:
    parts.out.mkdir(parents=True)
    parts.make()  # an empty folder is fine
    shutil.rmtree(parts.out)
    parts.out.mkdir()
    (parts.out / "thesis.tex").write_bytes(b"years of work")
    with pytest.raises(BundleError, match="no bundle"):
        parts.make()
    assert tree(parts.out) == {"thesis.tex": b"years of work"}
    shutil.rmtree(parts.out)
    parts.out.write_bytes(b"a file")
    with pytest.raises(BundleError, match="no bundle"):
        parts.make()


def test_a_full_disk_keeps_the_old_bundle(parts: Parts) -> None:
    """A file size limit stands in for the full disk: both fail in write(2)."""
    parts.make()
    before = tree(parts.out)
    parts.binaries[0].write_bytes(b"another" * 1000)
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(DiskError):
            parts.make()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert tree(parts.out) == before
    assert os.listdir(parts.out.parent) == ["t"]


def test_what_did_not_change_is_kept_and_what_was_edited_is_not(parts: Parts) -> None:
    parts.make()
    before = tree(parts.out)
    kept, edited, other = (parts.out / "qnn" / path.name for path in parts.binaries[:3])
    inode = kept.stat().st_ino
    data = edited.read_bytes()
    edited.write_bytes(data[:-1] + b"!")
    other.unlink()
    other.symlink_to(parts.binaries[2])
    parts.make()
    assert tree(parts.out) == before
    assert kept.stat().st_ino == inode
    assert kept.stat().st_nlink == 1
    assert not other.is_symlink()


@pytest.mark.parametrize("exchange", [True, False])
def test_without_an_exchange_two_renames_do_it(
    tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(wholefolder, "_renameat2", lambda: None)
    goal = tmp_path / "t"
    for text in ("one", "two", "three"):
        with whole_folder(goal) as new:
            (new / text).write_text(text)
        assert tree(goal) == {text: text.encode()}
        assert os.listdir(tmp_path) == ["t"]


def test_a_crash_between_the_two_renames_is_mended(tmp_path: Path) -> None:
    old = tmp_path / ".old-t"
    old.mkdir()
    (old / "one").write_text("one")
    goal = tmp_path / "t"
    with pytest.raises(RuntimeError), whole_folder(goal):
        raise RuntimeError
    assert tree(tmp_path) == {"t/one": b"one"}


CHILD = """
import sys
from pathlib import Path
from mnnqnn_tasks.toolchain import wholefolder
if sys.argv[2] == "renames":
    wholefolder._renameat2 = lambda: None
number = 0
while True:
    number += 1
    with wholefolder.whole_folder(sys.argv[1]) as new:
        for i in range(5):
            (new / str(i)).write_text(f"{number}")
    print(number, flush=True)
"""


@pytest.mark.parametrize("way", ["exchange", "renames"])
def test_kill_at_any_moment(tmp_path: Path, way: str) -> None:
    goal = tmp_path / "t"
    for round_ in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(goal), way],
            cwd=MODEL.parent.parent,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.01 + 0.007 * round_)
        child.kill()
        child.wait()
        child.stdout.close()
        with pytest.raises(RuntimeError), whole_folder(goal):
            raise RuntimeError  # the next run mends before it does anything else
        contents = tree(goal)
        assert set(contents) == {"0", "1", "2", "3", "4"}
        assert len(set(contents.values())) == 1
        assert os.listdir(tmp_path) == ["t"]
