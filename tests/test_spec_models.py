"""Models by pattern: which folders become models, under which names, with which values."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from mnnqnn_tasks.errors import PipelineError
from mnnqnn_tasks.spec.load import load_pipeline
from mnnqnn_tasks.spec.pipeline import Pipeline

TARGETS = "targets: [{name: a, soc_id: 57}, {name: b, soc_id: 69}]\n"


def load(folder: Path, models: str, more: str = "") -> Pipeline:
    path = folder / "p.yaml"
    path.write_text(f"version: 1\nmodels:\n{models}\n{TARGETS}{more}", "utf-8")
    return load_pipeline(path)


def refusal(folder: Path, models: str, more: str = "") -> str:
    with pytest.raises(PipelineError) as caught:
        load(folder, models, more)
    return str(caught.value).replace(f"{folder}/", "")


def model(*folders: Path, mark: str = "llm_config.json") -> None:
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / mark).touch()


def names(pipeline: Pipeline) -> list[str]:
    return [m.name for m in pipeline.models]


def test_a_pattern_is_every_model_folder_that_it_matches(tmp_path: Path) -> None:
    top = tmp_path / "models"
    model(top / "b", top / "a", top / ".hidden", top / "deep" / "c")
    model(top / "half", mark="llm.mnn")
    (top / "notes").mkdir()
    (top / "README.md").touch()
    pipeline = load(tmp_path, "  - path: models/*\n    chunk_sizes: [64]")
    assert names(pipeline) == ["a", "b", "half"]
    assert [m.path for m in pipeline.models] == [top / "a", top / "b", top / "half"]
    assert {m.chunk_sizes for m in pipeline.models} == {(64,)}
    assert {m.where for m in pipeline.models} == {f"{tmp_path}/p.yaml:3:5"}
    assert names(load(tmp_path, f"  - path: '{top}/[a-b]'")) == ["a", "b"]
    assert names(load(tmp_path, "  - path: models/**")) == ["a", "b", "c", "half"]


def test_bundles_and_build_folders_are_no_models(tmp_path: Path) -> None:
    model(tmp_path / "m", tmp_path / "dist" / "m" / "a", tmp_path / "build" / "x")
    assert names(load(tmp_path, "  - path: '**'")) == ["m"]


def test_an_own_entry_overrides_a_pattern_key_by_key(tmp_path: Path) -> None:
    model(*(tmp_path / "models" / n for n in ("one", "two", "three")))
    (tmp_path / "alias").symlink_to("models/two")
    pipeline = load(
        tmp_path,
        """\
  - {path: alias, name: renamed, chunk_sizes: [512]}
  - {path: "models/*", chunk_sizes: [64], targets: [a]}
  - {path: "models/t*", targets: [b]}""",
        "defaults: {chunk_sizes: [32]}\n",
    )
    found = {m.name: (m.chunk_sizes, [t.name for t in m.targets]) for m in pipeline.models}
    assert found == {
        "renamed": ((512,), ["b"]),
        "one": ((64,), ["a"]),
        "three": ((64,), ["b"]),
    }
    assert names(pipeline) == ["renamed", "one", "three"]
    assert pipeline.models[0].path == tmp_path / "models" / "two"


def test_two_entries_of_one_folder_are_two_models(tmp_path: Path) -> None:
    model(tmp_path / "m")
    both = "  - {path: m}\n  - {path: m, name: long, chunk_sizes: [512]}\n  - {path: '*'}"
    assert names(load(tmp_path, both)) == ["m", "long"]


def test_the_name_is_the_folders(tmp_path: Path) -> None:
    inner = tmp_path / "real"
    inner.mkdir()
    (tmp_path / "link").symlink_to(inner)
    assert names(load(tmp_path, "  - path: sub/folder-1.5/")) == ["folder-1.5"]
    assert names(load(tmp_path, "  - path: link")) == ["link"]
    assert names(load(inner, "  - path: .", "build_dir: ../b\ndist_dir: ../d\n")) == ["real"]


def test_a_folder_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    model(tmp_path / "m[1]", tmp_path / "m1")
    assert load(tmp_path, "  - {path: 'm[1]', name: x}").models[0].path == tmp_path / "m[1]"


REFUSED = {
    "nothing matches": (
        "  - path: 'models/x*'",
        r"^p\.yaml:3:11: models\[0\]\.path: 'models/x\*' matches no model folder.*nothing in",
    ),
    "no model among them": (
        "  - {name: m, path: m}\n  - path: 'plain/*'",
        r"^p\.yaml:4:11: models\[1\]\.path: .*the 2 that it matches hold no llm_config\.json",
    ),
    "no regular pattern": ("  - path: 'models/[]*'", r"matches no model folder"),
    "a name for many": (
        "  - {path: 'models/*', name: m}",
        r"^p\.yaml:3:30: models\[0\]\.name: a pattern cannot give one name",
    ),
    "a name that is none": (
        "  - path: models/*",
        r"^p\.yaml:3:11: models\[0\]\.path: the folder's name 'b c' cannot be the model's"
        r".*ASCII.*an entry with a 'name' of its own: path: models/b c",
    ),
    "a plain name that is none": (
        "  - path: my model",
        r"^p\.yaml:3:11: models\[0\]\.path: the folder's name 'my model'.*add a 'name'",
    ),
    "a file of the run": (
        "  - path: report.json",
        r"^p\.yaml:3:5: models\[0\]: a file of a run is called 'report\.json'",
    ),
    "two folders of one name": (
        "  - path: 'models/a'\n  - path: 'other/*'",
        r"^p\.yaml:4:5: models\[1\]: the name 'A' is already taken by models\[0\]"
        r".*models/a and other/A",
    ),
    "unknown target": (
        "  - {path: 'models/*', targets: [c]}",
        r"^p\.yaml:3:34: models\[0\]\.targets\[0\]: there is no target 'c'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_place_and_reason(tmp_path: Path, case: str) -> None:
    model(tmp_path / "models" / "a", tmp_path / "models" / "b c", tmp_path / "other" / "A")
    for name in ("1", "2"):
        (tmp_path / "plain" / name).mkdir(parents=True)
    models, pattern = REFUSED[case]
    message = refusal(tmp_path, models)
    assert re.search(pattern, message, re.S), message


def test_folders_that_overlap_are_found_among_many(tmp_path: Path) -> None:
    model(*(tmp_path / "models" / f"m{i:03}" for i in range(300)))
    assert len(load(tmp_path, "  - path: models/*").models) == 300
    message = refusal(tmp_path, "  - path: models/*", "dist_dir: models/m123/x\n")
    assert re.search(r"^p\.yaml:5:11: dist_dir: .*models/m123 .*overlap", message), message


@pytest.mark.parametrize(
    ("text", "number"),
    [("4 GB", 4 * 10**9), ("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("0 MB", 0)],
)
def test_max_memory(tmp_path: Path, text: str, number: int) -> None:
    models = "  - {name: m, path: m}"
    assert load(tmp_path, models, f"max_memory: {text}\n").max_memory == number
    assert load(tmp_path, models).max_memory is None


@pytest.mark.parametrize("text", ["4", "'4'", "4 kB", "-1 GB", "4 gb", "GB", "1e9 GB", "4 GB/s"])
def test_no_max_memory(tmp_path: Path, text: str) -> None:
    message = refusal(tmp_path, "  - {name: m, path: m}", f"max_memory: {text}\n")
    assert re.search(r"^p\.yaml:5:13: max_memory: .*a number and MB, GB", message, re.S), message


def test_links_that_go_round_end(tmp_path: Path) -> None:
    model(tmp_path / "models" / "a")
    os.symlink("..", tmp_path / "models" / "up")
    assert names(load(tmp_path, "  - path: models/**/a")) == ["a"]
