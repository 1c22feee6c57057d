"""Boundary tensors on disk, so that memory does not grow with the number of layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from mnnqnn_tasks.errors import VerifyError
from mnnqnn_tasks.files import disk_errors
from mnnqnn_tasks.verify.metrics import Array


class Store:
    """Named arrays, one file each, read back as memory maps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Path] = {}
        self._count = 0
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def dims(self, name: str) -> tuple[int, ...]:
        """The shape of an array.

        Raises:
            VerifyError: when it was never put.
        """
        return self.get([name])[name].shape

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Keep ``arrays``; a name that is there already stands for the new one.

        Raises:
            DiskError: when the file system refuses.
        """
        for name, array in arrays.items():
            # Names of tensors hold slashes and may be long: files are numbered.  A file
            # that may be mapped is never written again.
            self._count += 1
            path = self._folder / f"{self._count}.npy"
            with disk_errors(path):
                np.save(path, np.ascontiguousarray(array), allow_pickle=False)
            self._files[name] = path

    def get(self, names: Iterable[str]) -> dict[str, Array]:
        """Arrays by name, as read-only maps.

        Raises:
            VerifyError: when one was never put.
        """
        wanted = list(names)
        missing = [name for name in wanted if name not in self._files]
        if missing:
            raise VerifyError(f"the tensor {missing[0]} was not computed", where="verification")
        return {
            name: np.load(self._files[name], mmap_mode="r", allow_pickle=False) for name in wanted
        }
