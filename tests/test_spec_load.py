"""Pipelines: what a YAML file means, and what is refused with which words."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import jsonschema
import pytest

from mnnqnn_tasks.errors import PipelineError
from mnnqnn_tasks.spec.load import check_together, load_pipeline
from mnnqnn_tasks.spec.pipeline import Target
from mnnqnn_tasks.spec.schemas import schema

REPO = Path(__file__).resolve().parent.parent
BASE = """\
version: 1
models:
  - name: m
    path: model
targets:
  - soc_id: 57
"""


def write(folder: Path, text: str | bytes, name: str = "p.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(folder: Path, text: str | bytes) -> str:
    with pytest.raises(PipelineError) as caught:
        load_pipeline(write(folder, text))
    return str(caught.value).replace(f"{folder}/", "")


def test_the_demo_loads_and_is_valid() -> None:
    pipeline = load_pipeline(REPO / "pipelines" / "demo.yaml")
    assert [m.name for m in pipeline.models] == ["tiny-qwen3-w8"]
    assert (pipeline.models[0].path / "llm.mnn").is_file()
    assert pipeline.build_dir == REPO / "build"
    assert pipeline.dist_dir == REPO / "dist"
    assert pipeline.warnings == ()


def test_every_default(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, BASE))
    (model,) = pipeline.models
    assert pipeline.targets == (Target("SM8650-v75", 57, "SM8650", "v75", 8, 3, 4, True, True),)
    assert model.chunk_sizes == (128,)
    assert model.shapes == (1, 128)
    assert model.targets == pipeline.targets
    assert model.path == tmp_path / "model"
    assert pipeline.build_dir == tmp_path / "build"
    assert pipeline.dist_dir == tmp_path / "dist"
    assert pipeline.runtime == {}
    assert model.where.endswith("p.yaml:3:5")
    assert pipeline.targets[0].where.endswith("p.yaml:6:5")
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline


def test_defaults_in_code_and_schema_agree() -> None:
    declared = schema("pipeline")["$defs"]["target"]["properties"]
    target = Target("n", 57, None, "v75")
    for key, value in target.identity().items():
        if key not in ("soc_id", "dsp_arch"):
            assert declared[key]["default"] == value, key


def test_defaults_narrowing_and_own_values(tmp_path: Path) -> None:
    pipeline = load_pipeline(
        write(
            tmp_path,
            """\
version: 1
defaults: {chunk_sizes: [64, 16], targets: [b, a], vtcm_mb: 4, weight_sharing: false}
models:
  - {name: one, path: m1}
  - {name: two, path: m2, chunk_sizes: [32], targets: [a]}
targets:
  - {name: a, soc: sm8650}
  - {name: b, soc: snapdragon 8 ELITE, vtcm_mb: 2, fp16_relaxed_precision: false}
  - {name: c, soc: SM8550, dsp_arch: V73}
runtime: {thread_num: 2, mllm: {precision: normal}, list: [1, 2.5, null, true]}
build_dir: out/build
dist_dir: /abs/dist
""",
        )
    )
    one, two = pipeline.models
    a, b, c = pipeline.targets
    assert (one.chunk_sizes, two.chunk_sizes) == ((64, 16), (32,))  # the user's order
    assert (one.targets, two.targets) == ((a, b), (a,))
    assert (a.soc_id, a.vtcm_mb, a.weight_sharing) == (57, 4, False)
    assert (b.soc_id, b.dsp_arch, b.vtcm_mb, b.fp16_relaxed_precision) == (69, "v79", 2, False)
    assert (c.soc_id, c.dsp_arch) == (43, "v73")
    assert pipeline.runtime["list"] == [1, 2.5, None, True]
    assert pipeline.build_dir == tmp_path / "out/build"
    assert pipeline.dist_dir == Path("/abs/dist")
    assert [(m.name, t.name) for m, t in pipeline.pairs()] == [
        ("one", "a"),
        ("one", "b"),
        ("two", "a"),
    ]


@pytest.mark.parametrize(
    ("soc", "soc_id"),
    [("8 Gen 1", 36), ("8gen2", 43), ("Snapdragon 8 Gen 3", 57), ("8 elite", 69), ("sm8850", 87)],
)
def test_names_of_socs(tmp_path: Path, soc: str, soc_id: int) -> None:
    text = BASE.replace("soc_id: 57", f"soc: {soc}")
    assert load_pipeline(write(tmp_path, text)).targets[0].soc_id == soc_id


def test_an_unknown_soc_id_needs_its_architecture_and_warns_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, BASE.replace("57", "4711"))
    assert "p.yaml:6:13" in message and "4711" in message and "dsp_arch" in message
    pipeline = load_pipeline(
        write(tmp_path, BASE.replace("57", "4711, dsp_arch: v90}").replace("- soc", "- {soc"))
    )
    assert pipeline.targets[0].name == "soc4711-v90"
    (warning,) = pipeline.warnings
    assert "4711" in warning and "v90" in warning and "p.yaml:6" in warning


def test_paths_with_spaces_quotes_and_chinese(tmp_path: Path) -> None:
    folder = tmp_path / "我的 'models' \"x\" $HOME; #1"
    text = BASE.replace("path: model", 'path: "模型 \'a\' \\"b\\"/./x/"')
    pipeline = load_pipeline(write(folder, text, "流水线 1.yaml"))
    assert pipeline.models[0].path == folder / "模型 'a' \"b\"" / "x"


def test_one_model_folder_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to("model")
    spellings = ["model", "./model/", f"{tmp_path}/model", "link", "../" + tmp_path.name + "/link/"]
    pipelines = {
        load_pipeline(write(tmp_path, BASE.replace("path: model", f"path: {s}"))).models[0].path
        for s in spellings
    }
    assert pipelines == {(tmp_path / "model").resolve()}


def test_a_link_to_the_yaml_file_means_the_same(tmp_path: Path) -> None:
    real = write(tmp_path / "a", BASE)
    link = tmp_path / "b" / "link.yaml"
    link.parent.mkdir()
    link.symlink_to(real)
    assert load_pipeline(link) == load_pipeline(real)


REFUSED = {
    "unknown key": (
        BASE.replace("models:", "modles:"),
        r"^p\.yaml:2:1: modles: unknown key.*did you mean 'models'",
    ),
    "unknown key in a model": (
        BASE.replace("path: model", "path: model\n    chunk_size: [16]"),
        r"^p\.yaml:5:5: models\[0\]\.chunk_size: unknown key.*did you mean 'chunk_sizes'",
    ),
    "unknown key in a target": (
        BASE + "    vtcm: 8\n",
        r"^p\.yaml:7:5: targets\[0\]\.vtcm: unknown key.*did you mean 'vtcm_mb'",
    ),
    "unknown key in defaults": (
        BASE + "defaults:\n  dsp_arch: v75\n",
        r"^p\.yaml:8:3: defaults\.dsp_arch: unknown key.*known keys: chunk_sizes",
    ),
    "missing key": (
        BASE.replace("version: 1\n", ""),
        r"^p\.yaml:1:1: the key 'version' is missing",
    ),
    "missing path": (
        BASE.replace("    path: model\n", ""),
        r"^p\.yaml:3:5: models\[0\]: the key 'path' is missing",
    ),
    "version": (BASE.replace("version: 1", "version: 2"), r"^p\.yaml:1:10: version: must be 1"),
    "version true": (
        BASE.replace(": 1", ": true"),
        r"version: must be 1, not the truth value true",
    ),
    "duplicate key": (
        BASE + "    soc_id: 69\n",
        r"^p\.yaml:7:5: targets\[0\]\.soc_id: the key is already on line 6",
    ),
    "duplicate top key": (BASE + "version: 1\n", r"^p\.yaml:7:1: version: .* line 1"),
    "syntax": (BASE + "  - [1,\n", r"^p\.yaml:8:1: not readable as YAML"),
    "tab": (BASE + "\tx: 1\n", r"^p\.yaml:7:1: not readable as YAML.*tab|character"),
    "control character": (BASE + "# \x07\n", r"^p\.yaml:7: not readable as YAML"),
    "python tag": (
        BASE.replace("model\n", "!!python/name:os.system\n"),
        r"^p\.yaml:4:11: not readable",
    ),
    "not utf-8": (BASE.encode() + b"# \xff\n", r"^p\.yaml:7: the file is not UTF-8"),
    "empty": ("# nothing\n", r"^p\.yaml: the file is empty"),
    "two documents": (BASE + "---\n" + BASE, r"^p\.yaml:7:1: not readable as YAML"),
    "a list": ("- 1\n", r"^p\.yaml:1:1: must be a mapping, not a list"),
    "a word": ("hello\n", r"^p\.yaml:1:1: must be a mapping, not the text 'hello'"),
    "models not a list": (
        BASE.replace("  - name: m\n    path: model", "  name: m\n  path: model"),
        r"^p\.yaml:3:3: models: must be a list, not a mapping",
    ),
    "no models": (
        re.sub(r"models:\n.*\n.*\n", "models: []\n", BASE),
        r"^p\.yaml:2:9: models: .*empty",
    ),
    "null models": (
        re.sub(r"models:\n.*\n.*\n", "models:\n", BASE),
        r"models: must be a list, not nothing",
    ),
    "no targets": (BASE.replace("\n  - soc_id: 57", " []"), r"^p\.yaml:5:10: targets: .*empty"),
    "name is a number": (
        BASE.replace("name: m", "name: 8"),
        r"^p\.yaml:3:11: models\[0\]\.name: must be text, not the number 8.*quotes",
    ),
    "key is a number": (
        BASE + "runtime: {8: 1}\n",
        r"^p\.yaml:7:10: runtime: a key must be text.*8",
    ),
    "key is a list": (BASE + "runtime: {[8]: 1}\n", r"^p\.yaml:7:10: runtime: a key must be text"),
    "infinity": (BASE + "runtime: {a: [.inf]}\n", r"^p\.yaml:7:15: runtime\.a\[0\]: infinity"),
    "binary": (
        BASE + "runtime: {a: !!binary aGk=}\n",
        r"^p\.yaml:7:14: runtime\.a: a value of type bytes",
    ),
    "set": (BASE + "runtime: {a: !!set {x}}\n", r"^p\.yaml:7:14: runtime\.a: a value of type set"),
    "endless anchor": (BASE + "runtime: &a {a: *a}\n", r"^p\.yaml: too many values"),
    "key of the export": (
        BASE + "runtime: {chunk_limits: [1]}\n",
        r"^p\.yaml:7:11: runtime\.chunk_limits",
    ),
    "no chunks": (
        BASE + "defaults: {chunk_sizes: []}\n",
        r"^p\.yaml:7:25: defaults\.chunk_sizes: .*empty",
    ),
    "chunk of 1": (
        BASE + "defaults: {chunk_sizes: [16, 1]}\n",
        r"^p\.yaml:7:30: defaults\.chunk_sizes\[1\]: must be at least 2.*decode",
    ),
    "negative chunk": (
        BASE + "defaults: {chunk_sizes: [-4]}\n",
        r"must be at least 2, not the number -4",
    ),
    "fraction": (BASE + "defaults: {chunk_sizes: [16.5]}\n", r"must be a whole number"),
    "chunk is text": (
        BASE + "defaults: {chunk_sizes: ['16']}\n",
        r"must be a whole number, not the text",
    ),
    "chunk is true": (
        BASE + "defaults: {chunk_sizes: [yes]}\n",
        r"whole number, not the truth value",
    ),
    "same chunk twice": (
        BASE + "defaults: {chunk_sizes: [16, 32, 16.0]}\n",
        r"^p\.yaml:7:34: defaults\.chunk_sizes\[2\]: .*twice",
    ),
    "chunk is no list": (
        BASE + "defaults: {chunk_sizes: 16}\n",
        r"must be a list, not the number 16",
    ),
    "contradiction": (
        BASE + "    dsp_arch: v79\n",
        r"^p\.yaml:7:15: targets\[0\]\.dsp_arch: dsp_arch v79 contradicts soc_id 57 \(SM.* v75",
    ),
    "soc contradiction": (
        BASE + "    soc: SM8750\n",
        r"soc 'SM8750' is soc_id 69, but soc_id says 57",
    ),
    "unknown soc": (
        BASE.replace("soc_id: 57", "soc: SM8560"),
        r"^p\.yaml:6:10: targets\[0\]\.soc: the SoC table has no 'SM8560'.*did you mean 'SM8\d5?0'",
    ),
    "no soc": (
        BASE.replace("soc_id: 57", "name: x"),
        r"^p\.yaml:6:5: targets\[0\]: a target needs",
    ),
    "arch form": (BASE + "    dsp_arch: hexagon\n", r"dsp_arch: the text 'hexagon' is not allowed"),
    "arch is a number": (BASE + "    dsp_arch: 75\n", r"dsp_arch: must be text, not the number 75"),
    "option range": (
        BASE + "    optimization_level: 4\n",
        r"optimization_level: must be at most 3",
    ),
    "option type": (BASE + "    weight_sharing: 1\n", r"weight_sharing: must be true or false"),
    "same target twice": (
        BASE + "  - soc: SM8650\n    vtcm_mb: 2\n",
        r"^p\.yaml:7:5: targets\[1\]: the name 'SM8650-v75' is already taken by targets\[0\]",
    ),
    "same model twice": (
        BASE.replace("targets:", "  - {name: M, path: other}\ntargets:"),
        r"^p\.yaml:5:5: models\[1\]: the name 'M' is already taken by models\[0\]",
    ),
    "unknown target": (
        BASE.replace("path: model", "path: model\n    targets: [SM8650-v57]"),
        r"^p\.yaml:5:15: models\[0\]\.targets\[0\]: there is no target.*did you mean 'SM8650-v75'",
    ),
    "unknown default target": (
        BASE + "defaults: {targets: [x]}\n",
        r"^p\.yaml:7:22: defaults\.targets\[0\]: there is no target 'x'",
    ),
    "empty path": (BASE.replace("path: model", "path: ''"), r"path: must not be empty"),
    "nul in path": (
        BASE.replace("path: model", 'path: "a\\0b"'),
        r"path: the text .* is not allowed",
    ),
    "build and dist in one": (BASE + "dist_dir: build\n", r"^p\.yaml:7:11: dist_dir: .*overlap"),
    "dist in a model's build": (
        BASE + "dist_dir: build/m/x\n",
        r"overlap.*choose another dist_dir",
    ),
    "build in the model": (BASE + "build_dir: model/b\n", r"^p\.yaml:7:12: build_dir: .*overlap"),
    "build is the model": (
        BASE.replace("path: model", "path: build/m"),
        r"^p\.yaml:1:1: build/m \(build_dir.*overlap",
    ),
    "deep": (BASE + "runtime: " + "[" * 3000 + "]" * 3000, r"^p\.yaml"),
    "endless number": (
        BASE + "runtime: {a: " + "1" * 9000 + "}",
        r"^p\.yaml: a value is out of bounds",
    ),
    "half a character": (BASE + 'runtime: {a: "\\ud800"}\n', r"^p\.yaml"),
    "many copies": (
        "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
        "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n",
        r"^p\.yaml: too many values",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_place_and_reason(tmp_path: Path, case: str) -> None:
    text, pattern = REFUSED[case]
    message = refusal(tmp_path, text)
    assert re.search(pattern, message, re.S), message


@pytest.mark.parametrize(
    "name",
    [
        *("..", ".", "a/b", "a\\b", "a:b", "a b", "-a", ".a", "a.", "_a", "a\n", "a\x07", "a*"),
        *("a=b", "", "x" * 65, "模型", "a'b", 'a"b', "$a", "a\u2028"),
    ],
)
@pytest.mark.parametrize("place", ["model", "target"])
def test_bad_names(tmp_path: Path, name: str, place: str) -> None:
    quoted = '"' + "".join(f"\\u{ord(c):04x}" for c in name) + '"'
    old = "name: m" if place == "model" else "soc_id: 57"
    text = BASE.replace(
        old, f"name: {quoted}" if place == "model" else f"{{soc_id: 57, name: {quoted}}}"
    )
    message = refusal(tmp_path, text)
    assert re.search(r"p\.yaml:[36]:\d+: (models|targets)\[0\]\.name", message), message
    assert "ASCII letters" in message


def test_files_that_are_no_files(tmp_path: Path) -> None:
    for path in [tmp_path, tmp_path / "missing.yaml", Path("/dev/zero"), tmp_path / "n\0"]:
        with pytest.raises(PipelineError) as caught:
            load_pipeline(path)
        assert str(path) in str(caught.value)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(PipelineError, match="not a file"):
        load_pipeline(tmp_path / "fifo")
    with pytest.raises(PipelineError, match="too large"):
        load_pipeline(write(tmp_path, BASE + "#" * (1 << 20)))


def test_pipelines_side_by_side(tmp_path: Path) -> None:
    one = load_pipeline(write(tmp_path, BASE, "one.yaml"))
    two = load_pipeline(write(tmp_path, BASE, "two.yaml"))
    other = load_pipeline(write(tmp_path, BASE.replace("name: m", "name: n"), "three.yaml"))
    check_together([one, other])
    with pytest.raises(PipelineError, match="two pipelines") as caught:
        check_together([one, other, two])
    assert "one.yaml:3:5" in str(caught.value) and "two.yaml:3:5" in str(caught.value)


def test_merge_keys_and_anchors(tmp_path: Path) -> None:
    text = """\
version: 1
models: [{name: m, path: x}]
targets:
  - &base {soc_id: 57, vtcm_mb: 4, name: a}
  - {<<: *base, name: b, vtcm_mb: 2}
"""
    a, b = load_pipeline(write(tmp_path, text)).targets
    assert (a.vtcm_mb, b.vtcm_mb, b.soc_id) == (4, 2, 57)
    message = refusal(tmp_path, text.replace("vtcm_mb: 2", "vtcm_mb: 200"))
    assert message.startswith("p.yaml:5:35: targets[1].vtcm_mb")


def test_the_schema_itself_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(schema("pipeline"))
