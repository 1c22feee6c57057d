"""The ``toolchain`` section of a pipeline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mnnqnn_tasks.spec.pipeline import Toolchain
from mnnqnn_tasks.spec.yamlfile import Document

#: The variable that Qualcomm's setup script and MNN's scripts use.
SDK_VAR = "QNN_SDK_ROOT"

#: Keys that say something to ``compilefornpu``.
_OF_PARTITION = ("graph_name", "skips", "max_history_token")


def make_toolchain(document: Document, base: Path) -> Toolchain:
    """Resolve the section; paths count from ``base``.

    Raises:
        PipelineError: when a stage is external and its tools have no place, or an option
            would be ignored.
    """
    raw: dict[str, Any] = document.value.get("toolchain", {})
    values: dict[str, Any] = {
        **raw,
        "skips": tuple(raw.get("skips", ())),
        "mnn_path": _path(base, raw.get("mnn_path")),
        "qnn_sdk_root": _path(base, raw.get("qnn_sdk_root") or os.environ.get(SDK_VAR)),
    }
    for key in ("max_history_token", "time_limit_s"):
        if key in raw:
            values[key] = int(raw[key])  # JSON Schema counts 8.0 as an integer
    if "tools" in raw:
        values["tools"] = tuple(str(_path(base, path)) for path in raw["tools"])
    made = Toolchain(**values)
    for stage in ("io", "partition"):
        if getattr(made, stage) == "external" and made.mnn_path is None:
            raise document.error(
                ("toolchain", stage),
                f"{stage} is external, but nothing says where MNN's tools are",
                "add mnn_path: the folder that MNN was built in",
            )
    if made.link == "external" and made.qnn_sdk_root is None:
        raise document.error(
            ("toolchain", "link"),
            "link is external, but nothing says where the QAIRT SDK is",
            f"add qnn_sdk_root, or set {SDK_VAR}",
        )
    for i, path in enumerate(made.tools or ()):
        if not os.path.exists(path):
            todo = "correct it, or remove it"
            raise document.error(("toolchain", "tools", i), f"there is no {path}", todo)
    for key in _OF_PARTITION:
        if key in raw and made.partition == "native":
            raise document.error(
                ("toolchain", key),
                f"{key} is for compilefornpu, and partition is native",
                f"add partition: external, or remove {key}",
                at_key=True,
            )
    return made


def _path(base: Path, text: str | None) -> Path | None:
    return Path(os.path.realpath(base / os.path.expanduser(text))) if text else None
