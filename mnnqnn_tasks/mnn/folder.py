"""A model folder as MNN's LLM exporter leaves it: its two configs and what they name.

``config.json`` says how to run the model and names its files; ``llm_config.json`` says
what the model is.  Names and defaults are those of ``llmconfig.hpp`` in MNN's LLM engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mnnqnn_tasks.errors import ModelFileError

#: Keys of config.json that name files end in one of these.
_FILE_KEYS = ("_file", "_model", "_weight", "_weight_file")
#: Files that belong to a model without being named.
_PATTERNS = ("tokenizer*", "embeddings*", "context.json")
#: Keys of llm_config.json that must be positive integers.
_SIZES = ("hidden_size", "layer_nums")

_EXPORT_AGAIN = "copy the whole model folder, or export the model again with MNN's exporter"


@dataclass(frozen=True)
class ModelFolder:
    """A model folder whose configs were read.

    Attributes:
        path: the folder.
        config: ``config.json``; empty if there is none.
        llm_config: ``llm_config.json``.
        model, weight: names of the model and the weight file in the folder.
        files: names of all files that belong to the model, sorted, with ``/``.  The
            weight file is there only if it exists.
    """

    path: Path
    config: dict[str, Any]
    llm_config: dict[str, Any]
    model: str
    weight: str
    files: tuple[str, ...]


def _load_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ModelFileError(
            "cannot read the model's configuration",
            where=str(path),
            why=error.strerror,
            todo=_EXPORT_AGAIN,
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            "the model's configuration is not valid JSON",
            where=str(path),
            why=str(error),
            todo=_EXPORT_AGAIN,
        ) from error
    if not isinstance(value, dict):
        raise ModelFileError(
            "the model's configuration is not a JSON object",
            where=str(path),
            todo=_EXPORT_AGAIN,
        )
    return value


def _inside(where: Path, key: str, name: object) -> str:
    """A file name of a config, which must stay in the model's folder."""
    pure = PurePosixPath(name) if isinstance(name, str) and name else None
    if pure is None or pure.is_absolute() or ".." in pure.parts or "\0" in str(name):
        raise ModelFileError(
            "the configuration names a file outside the model's folder",
            where=f"{where}: {key}",
            why=f"{name!r} is not a path inside the folder",
            todo="move the file into the model's folder and name it relative to it",
        )
    return pure.as_posix()


def _check_sizes(path: Path, llm_config: dict[str, Any]) -> None:
    for key in _SIZES:
        value = llm_config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ModelFileError(
                "the model's configuration does not describe an LLM",
                where=str(path),
                why=f"{key} is missing"
                if value is None
                else f"{key} is {value!r}, not a positive integer",
                todo=_EXPORT_AGAIN,
            )


def _also_named(path: Path, values: Iterable[object]) -> set[str]:
    """Values that happen to name a file inside the folder, whatever their key is called."""
    texts = (value for value in values if isinstance(value, str) and value)
    pures = (PurePosixPath(text) for text in texts)
    return {
        pure.as_posix()
        for pure in pures
        if not pure.is_absolute() and ".." not in pure.parts and os.path.isfile(path / pure)
    }


def open_folder(model_dir: str | os.PathLike[str]) -> ModelFolder:
    """Read the configs of the model in ``model_dir`` and list its files.

    Raises:
        ModelFileError: when the folder, ``llm_config.json``, the model or a file that a
            config names is missing, or a config is malformed.
    """
    path = Path(model_dir)
    if not path.is_dir():
        raise ModelFileError(
            "there is no model folder",
            where=str(path),
            why="it is a file" if path.exists() else "it does not exist",
            todo="check the path of the model in the pipeline",
        )
    config_path = path / "config.json"
    config = _load_json(config_path) if config_path.exists() else {}
    llm_name = _inside(config_path, "llm_config", config.get("llm_config", "llm_config.json"))
    llm_config = _load_json(path / llm_name)
    _check_sizes(path / llm_name, llm_config)
    named = {
        key: _inside(path / source, key, value)
        for source, values in ((llm_name, llm_config), ("config.json", config))
        for key, value in values.items()
        if key.endswith(_FILE_KEYS) and value != ""
    }
    model = named.setdefault("llm_model", "llm.mnn")
    weight = named.pop("llm_weight", "llm.mnn.weight")
    for key, name in named.items():
        if not (path / name).is_file():
            raise ModelFileError(
                "a file of the model is missing",
                where=str(path / name),
                why=f"{key} of the model's configuration names it",
                todo=_EXPORT_AGAIN,
            )
    found = {llm_name, *named.values()}
    found |= {name for name in ("config.json", weight) if (path / name).is_file()}
    found |= {item.name for pattern in _PATTERNS for item in path.glob(pattern) if item.is_file()}
    found |= _also_named(path, [*config.values(), *llm_config.values()])
    # MNN looks for the weights of every further module beside it, under this name.
    further = (f"{name}.weight" for name in found - {model} if name.endswith(".mnn"))
    found |= {name for name in further if (path / name).is_file()}
    return ModelFolder(path, config, llm_config, model, weight, tuple(sorted(found)))
