"""Writing files: what stands in the way is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mnnqnn_tasks.errors import DiskError
from mnnqnn_tasks.files import link_or_copy, write_bytes
from mnnqnn_tasks.toolchain.wholefolder import copy_file, whole_folder


def _write(path: Path) -> None:
    write_bytes(path, b"x")


def _link(path: Path) -> None:
    link_or_copy(__file__, path)


def _copy(path: Path) -> None:
    copy_file(__file__, path)


def _fill(path: Path) -> None:
    with whole_folder(path):
        pass


@pytest.mark.parametrize("write", [_write, _link, _copy])
def test_a_folder_lies_where_a_file_belongs(tmp_path: Path, write: Callable[[Path], None]) -> None:
    goal = tmp_path / "plan.json"
    goal.mkdir()
    with pytest.raises(DiskError) as caught:
        write(goal)
    assert caught.value.where == str(goal)
    assert caught.value.why == "a folder lies where the file belongs"
    assert "delete or move" in str(caught.value) and "free space" not in str(caught.value)
    assert os.listdir(tmp_path) == ["plan.json"]  # and no temporary file


@pytest.mark.parametrize("write", [_write, _link, _copy, _fill])
@pytest.mark.parametrize("below", ["goal", "deeper/goal"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_file_lies_where_a_folder_belongs(
    tmp_path: Path, write: Callable[[Path], None], below: str, dangling: bool
) -> None:
    if dangling:
        (tmp_path / "build").symlink_to("gone")
    else:
        (tmp_path / "build").write_bytes(b"x")
    with pytest.raises(DiskError) as caught:
        write(tmp_path / "build" / below)
    assert f"{tmp_path / 'build'}, which is no folder" in str(caught.value)
    assert "delete or move" in str(caught.value)
