"""Finding and identifying the libraries; the structure table."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mnnqnn_tasks.errors import ToolMissing
from mnnqnn_tasks.qnn import abi, library


def wheel(folder: Path, version: str = "2.7.0", htp: bytes = b"htp") -> Path:
    """A folder laid out as the wheel is, with small files."""
    package = folder / library.PACKAGE
    info = folder / f"{library.PACKAGE}-{version}.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / library.HTP).write_bytes(htp)
    (package / library.SYSTEM).write_bytes(b"system")
    (info / "RECORD").write_text(
        f"{library.PACKAGE}/{library.HTP},sha256=AAA,3\n"
        f"{library.PACKAGE}/{library.SYSTEM},sha256=BBB,6\n"
        f"{info.name}/RECORD,,\n"
    )
    return package


def test_identity_of_the_installed_wheel() -> None:
    text = library.identity()
    assert text.startswith(f"onnxruntime-qnn {library.wheel_version(library.find())}; ")
    assert text.count("sha256=") == 2
    assert text == library.identity(library.find())
    assert len(library.short_identity()) == 16


def test_identity_loads_nothing() -> None:
    code = (
        "import sys; from mnnqnn_tasks.qnn import library; library.identity();"
        "print('libQnn' in open('/proc/self/maps').read(), 'onnxruntime_qnn' in sys.modules,"
        "'numpy' in sys.modules)"
    )
    root = str(Path(__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert result.stdout.split() == ["False", "False", "False"]


def test_identity_follows_content_not_place(tmp_path: Path) -> None:
    one = library.identity(wheel(tmp_path / "a"))
    assert one == library.identity(wheel(tmp_path / "b"))
    assert one != library.identity(wheel(tmp_path / "c", version="2.8.0"))
    # A library that was replaced by hand no longer has the size of the RECORD.
    replaced = library.identity(wheel(tmp_path / "d", htp=b"other htp"))
    assert replaced != one
    assert "size=9" in replaced


def test_identity_of_a_folder_without_record(tmp_path: Path) -> None:
    for name in (library.HTP, library.SYSTEM):
        shutil.copy(library.find() / library.SYSTEM, tmp_path / name)
    text = library.identity(tmp_path)
    assert text.count("build-id=") == 2
    notes = subprocess.run(
        ["readelf", "-n", tmp_path / library.HTP], capture_output=True, text=True, check=False
    ).stdout
    if "Build ID" in notes:
        assert notes.split("Build ID:")[1].split()[0] in text


def test_old_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path, version="2.3.0")
    (tmp_path / library.PACKAGE / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ToolMissing, match=r"2\.3\.0 is too old") as caught:
        library.find()
    assert "pip install" in str(caught.value)


def test_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "PACKAGE", "no_such_package_here")
    with pytest.raises(ToolMissing, match="not installed") as caught:
        library.find()
    assert "pip install" in str(caught.value)


def test_every_structure_has_the_size_of_the_table() -> None:
    for name in abi.struct_names():
        assert ctypes.sizeof(abi.ctype(name)) > 0
    for name in abi.functions():
        assert abi.prototype(name)
    assert abi.ctype("Qnn_Tensor_t").v1.offset == 8


def test_a_wrong_offset_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "structs": {
            "Good": {"size": 8, "fields": [["a", 0, "uint32_t"], ["b", 4, "uint32_t"]]},
            "Place": {"size": 8, "fields": [["a", 0, "uint32_t"], ["b", 2, "uint16_t"]]},
            "Size": {"size": 12, "fields": [["a", 0, "uint32_t"]]},
        }
    }
    monkeypatch.setattr(abi, "_table", lambda: table)
    assert ctypes.sizeof(abi.ctype("Good")) == 8
    for name in ("Place", "Size"):
        with pytest.raises(abi.AbiError, match=name):
            abi.ctype(name)
