"""A model folder as MNN's LLM exporter leaves it: its two configs and what they name.

``config.json`` says how to run the model and names its files; ``llm_config.json`` says
what the model is.  Names and defaults are those of ``llmconfig.hpp`` in MNN's LLM engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mnnqnn_tasks.errors import ModelFileError
from mnnqnn_tasks.mnn.configs import EXPORT_AGAIN, load_config, trouble

#: Keys of config.json that name files end in one of these.
_FILE_KEYS = ("_file", "_model", "_weight", "_weight_file")
#: Files that belong to a model without being named.
_PATTERNS = ("tokenizer*", "embeddings*", "context.json")
#: Keys of llm_config.json that must be positive integers.
_SIZES = ("hidden_size", "layer_nums")


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

    @property
    def settings(self) -> dict[str, Any]:
        """Both configs as MNN merges them: ``llm_config.json`` wins."""
        return self.config | self.llm_config


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
                todo=EXPORT_AGAIN,
            )


def _check_file(path: Path, use: str) -> None:
    """Refuse what is no regular file.

    Args:
        use: who wants the file, for the message.
    """
    if not os.path.lexists(path):
        raise ModelFileError(
            "a file of the model is missing", where=str(path), why=use, todo=EXPORT_AGAIN
        )
    why = trouble(path)
    if why is not None:
        raise ModelFileError(
            "a file of the model cannot be used",
            where=str(path),
            why=f"{why}; {use}",
            todo=f"put the file there; {EXPORT_AGAIN}",
        )


def _is_plain(path: Path) -> bool:
    """Whether a file that no config names may be one of the model's."""
    try:
        path.name.encode("utf-8")
    except UnicodeEncodeError:
        return False  # a name that no JSON file can hold is none that MNN's exporter gave
    return os.path.isfile(path)


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
    config = load_config(config_path) if os.path.lexists(config_path) else {}
    llm_name = _inside(config_path, "llm_config", config.get("llm_config", "llm_config.json"))
    llm_config = load_config(path / llm_name)
    _check_sizes(path / llm_name, llm_config)
    named = {
        key: _inside(path / source, key, value)
        for source, values in ((llm_name, llm_config), ("config.json", config))
        for key, value in values.items()
        if key.endswith(_FILE_KEYS) and value != ""
    }
    model = named.setdefault("llm_model", "llm.mnn")
    weight = named.pop("llm_weight", "llm.mnn.weight")
    if os.path.lexists(path / weight):  # whether it is needed, the model's ops say
        _check_file(path / weight, "it should be the model's weight file")
    for key, name in named.items():
        _check_file(path / name, f"{key} of the model's configuration names it")
    found = {llm_name, *named.values()}
    found |= {name for name in ("config.json", weight) if os.path.isfile(path / name)}
    found |= {item.name for pattern in _PATTERNS for item in path.glob(pattern) if _is_plain(item)}
    found |= _also_named(path, [*config.values(), *llm_config.values()])
    # MNN looks for the weights of every further module beside it, under this name.
    further = (f"{name}.weight" for name in found - {model} if name.endswith(".mnn"))
    found |= {name for name in further if os.path.isfile(path / name)}
    return ModelFolder(path, config, llm_config, model, weight, tuple(sorted(found)))
