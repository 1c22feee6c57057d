"""What an export finds on this machine: wheels, libraries, tools, and what is missing.

Nothing is believed because of a version number that somebody wrote down: libraries are
asked for their build and for every chip of the table, tools for how they are called.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnnqnn_tasks.errors import MnnqnnError
from mnnqnn_tasks.spec.pipeline import Pipeline
from mnnqnn_tasks.tasks import PYTHON

if TYPE_CHECKING:
    from mnnqnn_tasks.toolchain.external.sdk import Sdk

OK, MISSING, OPTIONAL, NOTE = "ok", "missing", "not needed", "note"

_GLIBC = (2, 35)
_TOOLS = "name what the tools use beside themselves in toolchain.tools"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        part: what it belongs to: ``system``, ``native``, ``MNN tools``, ``QAIRT SDK``,
            ``targets`` or ``pipelines``.
        state: `OK`; `MISSING` fails; `OPTIONAL` is missing, but nothing here asks for it;
            `NOTE` is worth knowing.
        what: one sentence.
        todo: the command or page that gets what is missing.
    """

    part: str
    state: str
    what: str
    todo: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As in ``schemas/doctor.schema.json``."""
        return asdict(self)


@dataclass(frozen=True)
class Wanted:
    """What the user asked about.

    Attributes:
        pipelines: those that were found.
        mnn: build folders of MNN, each with whether something needs it.
        sdks: SDK folders, likewise.
    """

    pipelines: tuple[Pipeline, ...]
    mnn: dict[Path, bool]
    sdks: dict[Path, bool]

    def native(self, stage: str) -> bool:
        """Whether a stage runs with what pip installs; without pipelines, all do."""
        chains = [pipeline.toolchain for pipeline in self.pipelines]
        return not chains or any(getattr(chain, stage) == "native" for chain in chains)


def examine(wanted: Wanted) -> Iterator[Finding]:
    """Every finding, in the order of a report."""
    yield from _system()
    yield from _mnn_wheel(wanted.native("io"))
    yield from _qnn_wheel()
    yield from _prompt()
    yield from _mnn_tools(wanted.mnn)
    yield from _sdks(wanted.sdks)
    yield from _targets(wanted)


def _system() -> Iterator[Finding]:
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        yield Finding("system", MISSING, machine, "the export needs Linux on x86-64")
    elif sys.version_info < PYTHON:
        yield Finding("system", MISSING, machine, "make a virtual environment with Python 3.11")
    else:
        yield Finding("system", OK, machine)
    name, version = platform.libc_ver()
    numbers = tuple(int(n) for n in version.split(".") if n.isdigit())
    if name == "glibc" and numbers < _GLIBC:
        todo = "use a system with glibc 2.35 or newer: Ubuntu 22.04, Debian 12"
        yield Finding("system", MISSING, f"glibc {version} is too old for the QNN wheel", todo)
    elif name == "glibc":
        yield Finding("system", OK, f"glibc {version}")


def _mnn_wheel(needed: bool) -> Iterator[Finding]:
    try:
        yield Finding("native", OK, f"MNN wheel {metadata.version('MNN')}")
    except metadata.PackageNotFoundError:
        state = MISSING if needed else OPTIONAL
        todo = "python -m pip install 'MNN>=3.6.1'"
        yield Finding("native", state, "the MNN wheel is not installed", todo)


def _qnn_wheel() -> Iterator[Finding]:
    from mnnqnn_tasks.qnn import library, run

    try:
        folder = library.find()
        build = run.build_id()
    except MnnqnnError as error:
        yield _trouble("native", MISSING, error)
        return
    version = library.wheel_version(folder)
    yield Finding("native", OK, f"onnxruntime-qnn wheel {version}, QNN build {build}")
    yield Finding("native", OK, f"the wheel's QNN prepares graphs for {_chips(folder)}")


def _chips(lib_dir: Path) -> str:
    """Which chips of the table a library accepts, asked of the library."""
    from mnnqnn_tasks.spec.soc import table

    socs = list(table().by_id.values())
    known = [soc for soc in socs if accepts(lib_dir, soc.soc_id, soc.dsp_arch) is None]
    archs = sorted({soc.dsp_arch for soc in known}, key=lambda arch: int(arch[1:]))
    return f"{len(known)} of {len(socs)} chips of the table ({', '.join(archs) or 'none'})"


def accepts(lib_dir: Path, soc_id: int, dsp_arch: str) -> str | None:
    """Why a library refuses a chip, ``None`` if it accepts it."""
    from mnnqnn_tasks.qnn import run
    from mnnqnn_tasks.qnn.options import TargetOptions

    try:
        run.validate([], TargetOptions(soc_id, dsp_arch), lib_dir)
    except MnnqnnError as error:
        return error.why or error.what
    return None


def _prompt() -> Iterator[Finding]:
    try:
        yield Finding("native", OK, f"jinja2 {metadata.version('jinja2')} for verify_qnn --prompt")
    except metadata.PackageNotFoundError:
        todo = "python -m pip install 'mnnqnn[prompt]'"
        yield Finding("native", OPTIONAL, "jinja2, for verify_qnn --prompt", todo)


def _mnn_tools(folders: dict[Path, bool]) -> Iterator[Finding]:
    from mnnqnn_tasks.toolchain.external import mnnbuild

    part = "MNN tools"
    if not folders:
        todo = "doit doctor --mnn_path FOLDER, or toolchain.mnn_path in a pipeline"
        yield Finding(part, OPTIONAL, "no build folder of MNN is named", todo)
    for folder, needed in folders.items():
        bad = MISSING if needed else OPTIONAL
        if not folder.is_dir():
            yield Finding(part, bad, f"there is no folder {folder}", "correct mnn_path")
            continue
        try:
            for number, tool in enumerate(mnnbuild.io_tools(folder)):
                used = "" if number == 0 else ", not used"
                words = f"{tool.path} is called with {tool.generation}{used}"
                yield Finding(part, OK, words)
        except MnnqnnError as error:
            yield _trouble(part, bad, error)
        try:
            path = mnnbuild.ask_compiler(folder)
            keys = ", ".join(mnnbuild.features(folder)) or "none of the optional keys"
            yield Finding(part, OK, f"{path} reads {keys}")
            if not mnnbuild.writes_sources(folder):
                words = f"{folder}: MNN was built without QNN conversion, so no graph is written"
                yield Finding(part, bad, words, mnnbuild.BUILD)
        except MnnqnnError as error:
            yield _trouble(part, bad, error)
        if not mnnbuild.consists_of(folder)[1]:
            words = f"{folder}: a tool is a script or lacks a library: what it makes is not cached"
            yield Finding(part, NOTE, words, _TOOLS)


def _sdks(folders: dict[Path, bool]) -> Iterator[Finding]:
    from mnnqnn_tasks.toolchain.external import sdk

    part = "QAIRT SDK"
    if not folders:
        todo = f"set QNN_SDK_ROOT; the SDK is at {sdk.PAGE}"
        yield Finding(part, OPTIONAL, "no SDK is named", todo)
    for folder, needed in folders.items():
        bad = MISSING if needed else OPTIONAL
        found = sdk.Sdk(folder)
        if not folder.is_dir():
            yield Finding(part, bad, f"there is no folder {folder}", "correct qnn_sdk_root")
            continue
        yield Finding(part, OK, f"{folder}, version {found.version() or 'not said'}")
        if found.version() is None:
            words = "without a version, what its tools make is not cached"
            yield Finding(part, NOTE, words, _TOOLS)
        for path in found.missing():
            yield Finding(part, bad, f"there is no {path}", f"unpack the SDK again: {sdk.PAGE}")
        if archs := found.archs():
            yield Finding(part, OK, f"it has libraries of devices with {', '.join(archs)}")
        yield from _sdk_library(found, bad)
        for program, why in (("python3", "runs"), ("clang++", "is run by"), ("make", "is run by")):
            if shutil.which(program) is None:
                words = f"{program}, which {why} qnn-model-lib-generator, is not in PATH"
                yield Finding(part, bad, words, f"apt-get install {program.removesuffix('++')}")


def _sdk_library(found: Sdk, bad: str) -> Iterator[Finding]:
    from mnnqnn_tasks.qnn import run

    part = "QAIRT SDK"
    if not (found.htp.is_file() and found.has_system):
        words = f"no libQnnSystem.so in {found.lib_dir}: binaries are read back with the wheel's"
        yield Finding(part, NOTE, words)
        return
    try:
        yield Finding(part, OK, f"its QNN build is {run.build_id(found.lib_dir)}")
        yield Finding(part, OK, f"its QNN prepares graphs for {_chips(found.lib_dir)}")
    except MnnqnnError as error:
        yield _trouble(part, bad, error)


def _targets(wanted: Wanted) -> Iterator[Finding]:
    """Whether the library that links a pipeline's targets knows them."""
    from mnnqnn_tasks.qnn import library
    from mnnqnn_tasks.toolchain.external.sdk import Sdk

    for pipeline in wanted.pipelines:
        chain = pipeline.toolchain
        external = chain.link == "external" and chain.qnn_sdk_root is not None
        try:
            root = chain.qnn_sdk_root if external else None
            folder = library.find(Sdk(root).lib_dir if root else None)
        except MnnqnnError:
            continue  # told above
        owner = "the SDK's QNN" if external else "the wheel's QNN"
        for target in pipeline.targets:
            name = f"{target.name} of {pipeline.file.name}"
            why = accepts(folder, target.soc_id, target.dsp_arch)
            if why is None:
                yield Finding("targets", OK, f"{name}: {owner} links for it")
            else:
                words = f"{name}: {owner} refuses it: {why}"
                yield Finding("targets", MISSING, words, "a newer QNN, or another soc_id")


def _trouble(part: str, state: str, error: MnnqnnError) -> Finding:
    text = error.what if error.where is None else f"{error.where}: {error.what}"
    return Finding(part, state, f"{text}: {error.why}" if error.why else text, error.todo)


def wanted(pipelines: Iterable[Pipeline], mnn_path: str, qnn_sdk_root: str) -> Wanted:
    """What to look at.

    Args:
        pipelines: their toolchains count.
        mnn_path, qnn_sdk_root: named on the command line; empty if not.
    """
    found = tuple(pipelines)
    mnn: dict[Path, bool] = {}
    sdks: dict[Path, bool] = {}
    for chain in (pipeline.toolchain for pipeline in found):
        if chain.mnn_path is not None:
            need = "external" in (chain.io, chain.partition)
            mnn[chain.mnn_path] = mnn.get(chain.mnn_path, False) or need
        if chain.qnn_sdk_root is not None:
            need = chain.link == "external"
            sdks[chain.qnn_sdk_root] = sdks.get(chain.qnn_sdk_root, False) or need
    if mnn_path:
        mnn[Path(os.path.realpath(mnn_path))] = True
    if qnn_sdk_root:
        sdks[Path(os.path.realpath(qnn_sdk_root))] = True
    elif os.environ.get("QNN_SDK_ROOT"):
        sdks.setdefault(Path(os.path.realpath(os.environ["QNN_SDK_ROOT"])), False)
    return Wanted(found, mnn, sdks)
