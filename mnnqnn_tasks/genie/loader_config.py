"""What Genie's loader takes from a genie_config.json, of whatever origin.

Only what decides whether the graphs load is read, and nothing else is judged: a config may have
keys of newer releases.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie.graphs import is_path, load_json
from mnnqnn_tasks.genie.prediction import LoaderConfig
from mnnqnn_tasks.genie.shapes import DEFAULT_EMBEDDING

_WHAT = "a genie_config.json"
_TODO = "correct the file, or leave it out"


@dataclass(frozen=True)
class BundleConfig:
    """A config file as the lint sees it.

    Attributes:
        file: as the caller named it.
        loader: what decides the loading.
        binaries: ``ctx-bins`` as written, in order.
        soc_id: ``soc_model`` or ``soc_id`` of the backend extensions file, None if it has none.
        extensions: that file as written, empty where there is none.
    """

    file: str
    loader: LoaderConfig
    binaries: tuple[str, ...]
    soc_id: int | None = None
    extensions: str = ""

    def path(self, name: str) -> Path:
        """Where a file lies that the config names: relative to the config's folder."""
        return Path(self.file).parent / name


def read_config(path: Path) -> BundleConfig:
    """Read a genie_config.json, and the extensions file beside it where there is one.

    Raises:
        GenieError: unreadable, not JSON, or a value of a wrong type; the message names the key.
    """
    data = load_json(path, _WHAT, _TODO)
    root = _Object(data, str(path), "")
    dialog = root.object("dialog")
    context, engine = dialog.object("context"), dialog.object("engine")
    backend = engine.object("backend")
    htp = backend.object("QnnHtp")
    binary = engine.object("model").object("binary")
    loader = LoaderConfig(
        context_size=context.number("size"),
        long_context="longcontext" in engine.values,
        embedding=context.number("n-embd") or DEFAULT_EMBEDDING,
        kv_dim=htp.number("kv-dim"),
        pos_id_dim=htp.number("pos-id-dim"),
    )
    extensions = backend.text("extensions")
    found = BundleConfig(str(path), loader, binary.texts("ctx-bins"), None, extensions)
    soc = _soc(found.path(extensions)) if extensions else None
    return BundleConfig(str(path), loader, found.binaries, soc, extensions)


def _soc(path: Path) -> int | None:
    """The chip that a backend extensions file names."""
    if not os.path.isfile(path):
        return None
    root = _Object(load_json(path, "a backend extensions file", _TODO), str(path), "")
    for device in root.objects("devices"):
        for key in ("soc_model", "soc_id"):
            if (soc := device.number(key)) is not None:
                return soc
    return None


@dataclass(frozen=True)
class _Object:
    """A JSON object of a file, read by key; what is absent is empty."""

    data: object
    file: str
    place: str

    @property
    def values(self) -> Mapping[str, Any]:
        if not isinstance(self.data, dict):
            raise self._wrong("a JSON object", self.place or "the file")
        return self.data

    def _wrong(self, kind: str, place: str) -> GenieError:
        return GenieError(f"{place} is not {kind}", where=self.file, todo=_TODO)

    def _at(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def object(self, key: str) -> _Object:
        """An object; of a list of engines, the one with the role that speaks."""
        found = self.values.get(key, {})
        if isinstance(found, list):
            found = next(
                (item for item in found if isinstance(item, dict) and item.get("role") == "target"),
                found[0] if found else {},
            )
        return _Object(found, self.file, self._at(key))

    def objects(self, key: str) -> list[_Object]:
        found = self.values.get(key, [])
        if not isinstance(found, list):
            raise self._wrong("a list", self._at(key))
        return [_Object(item, self.file, f"{self._at(key)}[{i}]") for i, item in enumerate(found)]

    def number(self, key: str) -> int | None:
        found = self.values.get(key)
        if found is not None and (not isinstance(found, int) or isinstance(found, bool)):
            raise self._wrong("a whole number", self._at(key))
        return found

    def text(self, key: str) -> str:
        found: str = self.values.get(key, "")
        if not isinstance(found, str) or not is_path(found):
            raise self._wrong("a text", self._at(key))
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        found = self.values.get(key, [])
        if not isinstance(found, list) or not all(
            isinstance(item, str) and is_path(item) for item in found
        ):
            raise self._wrong("a list of texts", self._at(key))
        return tuple(found)
