"""The options of MNN's ``generate_llm_qnn.py`` as a pipeline.

Its options are those of MNN's ``transformers/llm/export/npu/generate_llm_qnn.py``, of both
generations; ``argparse`` abbreviates them as it does there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mnnqnn_tasks.errors import PipelineError

#: Options that export something else than an LLM, and the values that do not.
_OTHER_MODELS = {"model_name": "llm.mnn", "input_json": ""}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PipelineError(message, todo="paste the options of generate_llm_qnn.py after --")


@dataclass(frozen=True)
class Imported:
    """A pipeline's text, and what of the command it does not say."""

    text: str
    notes: tuple[str, ...]


def import_args(
    words: Sequence[str], base: Path, sdk: bool, native: bool, sdk_root: str = ""
) -> Imported:
    """Make a pipeline of a command line.

    Args:
        words: the options, perhaps after the program that they were given to.
        base: the folder that the pipeline will lie in; its paths count from there.
        sdk: whether a QAIRT SDK is at hand, so that MNN's flow can be followed to the end.
        native: use no tools, whatever the command says.
        sdk_root: the SDK that the command line itself names.

    Raises:
        PipelineError: when the options are wrong, or ask for what this project does not do.
    """
    given = _parse(words)
    for name, value in _OTHER_MODELS.items():
        if given.get(name, value) != value:
            raise PipelineError(
                f"--{name} {given[name]}: only LLMs (llm.mnn) are exported",
                todo="export other models with MNN's own script",
            )
    notes = []
    tools = "mnn_path" in given and not native
    if given.get("max_history_token") and not tools:
        raise PipelineError(
            "--max_history_token puts attention on the NPU, which only MNN's tools can do",
            todo="add --mnn_path BUILD_FOLDER" if not native else "leave --native out",
        )
    if "mnn_path" not in given:
        notes.append("no --mnn_path: everything runs with what pip installs")
    for name in ("image_sizes", "external_file", "need_config_json", "reuse_config_qnn_json"):
        if name in given:
            notes.append(f"--{name} has no counterpart and is left out")
    lines = [
        "version: 1",
        "models:",
        f"  - name: {_text(_model_name(given['model']))}",
        f"    path: {_path(given['model'], base)}",
        f"    chunk_sizes: [{given.get('chunk_size', 128)}]",
        "targets:",
        f"  - soc_id: {given['soc_id']}",
        f"    dsp_arch: {_text(given['dsp_arch'])}",
    ]
    if "vtcm_mb" in given:
        lines.append(f"    vtcm_mb: {given['vtcm_mb']}")
    if tools:
        lines += _toolchain(given, base, sdk or bool(sdk_root))
        if sdk_root:
            lines.append(f"  qnn_sdk_root: {_path(sdk_root, base)}")
        elif not sdk:
            notes.append("QNN_SDK_ROOT is not set: binaries are linked with what pip installs")
    beside = ".." if base.name == "pipelines" else "."
    build = _path(given["cache_path"], base) if "cache_path" in given else _text(f"{beside}/build")
    lines += [f"build_dir: {build}", f"dist_dir: {_text(f'{beside}/dist')}"]
    return Imported("\n".join(lines) + "\n", tuple(notes))


def _toolchain(given: dict[str, Any], base: Path, sdk: bool) -> list[str]:
    lines = [
        "toolchain:",
        "  io: external",
        "  partition: external",
        f"  link: {'external' if sdk else 'native'}",
        f"  mnn_path: {_path(given['mnn_path'], base)}",
    ]
    if given.get("max_history_token"):
        lines.append(f"  max_history_token: {given['max_history_token']}")
    return lines


def _parse(words: Sequence[str]) -> dict[str, Any]:
    """The options that were given, without defaults."""
    start = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    if start == len(words):
        raise PipelineError(
            "there are no options",
            todo="doit import_args -- --model ... --soc_id ... --dsp_arch ...",
        )
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    for name in ("model", "dsp_arch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--soc_id", type=int, required=True)
    for name in ("vtcm_mb", "chunk_size", "max_history_token"):
        parser.add_argument(f"--{name}", type=int)
    texts = ("mnn_path", "cache_path", "image_sizes", "input_json", "external_file", "model_name")
    for name in (*texts, "need_config_json"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--reuse_config_qnn_json", action="store_true")
    return vars(parser.parse_args(list(words[start:])))


def _model_name(path: str) -> str:
    """A name that a pipeline accepts, from the folder's."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", os.path.basename(os.path.realpath(path)))[:64]
    name = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", name)
    return name or "model"


def _path(text: str, base: Path) -> str:
    """A path as typed in this folder, as the pipeline has to write it.

    A typed relative path stays one, so that the project can be moved.
    """
    if os.path.isabs(text):
        return _text(os.path.normpath(text))
    return _text(os.path.relpath(os.path.abspath(text), os.path.realpath(base)))


def _text(text: str) -> str:
    """A YAML scalar that means exactly ``text``."""
    plain = re.fullmatch(r"[A-Za-z0-9_./+-]*[A-Za-z_/][A-Za-z0-9_./+-]*", text)
    risky = re.fullmatch(r"(?i)[0-9.+-].*|y|n|yes|no|on|off|true|false|null", text)
    if plain and (not risky or re.match(r"\.{1,2}/", text)):
        return text
    return json.dumps(text, ensure_ascii=False)
