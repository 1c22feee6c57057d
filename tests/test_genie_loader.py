"""Our model of Genie's loader against libGenie itself, version by version.

Small context binaries are made with the oldest library that there is, because newer ones read
them and not the other way round; every libGenie is asked about every case.
"""

from __future__ import annotations

import itertools
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from genie_cases import Case, cases, graphs, write_case, write_files
from genie_models import build
from genie_wheels import WHEELS, fetch, install

from mnnqnn_tasks.genie import graphs as graph_files
from mnnqnn_tasks.genie import library, probe, rules, witness
from mnnqnn_tasks.genie.config_read import read_config
from mnnqnn_tasks.genie.graphs import GraphInfo
from mnnqnn_tasks.genie.testimony import Testimony as Heard
from mnnqnn_tasks.genie.versions import parse_version

CASES = {case.name: case for case in cases()}
QUICK = [case.name for case in cases() if case.quick]
OLDEST, NEWEST = min(WHEELS), max(WHEELS)


def test_there_are_enough_cases() -> None:
    assert len(CASES) == len(cases())
    assert len(QUICK) >= 40


class Court:
    """The witnesses, and what they were asked about."""

    def __init__(self, folder: Path, libraries: dict[str, Path]) -> None:
        self.folder, self.libraries = folder, libraries
        self.heard: dict[tuple[str, str], Heard] = {}
        self._read: dict[str, tuple[GraphInfo, ...]] = {}
        write_files(folder)

    def hear(self, names: list[str]) -> None:
        """Have every libGenie load every case; two at once."""
        wanted = [CASES[name] for name in names]
        missing = {f: g for f, g in graphs(wanted).items() if not (self.folder / f).exists()}
        if missing:
            build(self.folder, missing, self.libraries[min(self.libraries)])
        asked = [(case, release) for case in wanted for release in self.libraries]
        with ThreadPoolExecutor(2) as pool:
            for (case, release), heard in zip(asked, pool.map(self._ask, asked), strict=True):
                self.heard[case.name, release] = heard

    def _ask(self, question: tuple[Case, str]) -> Heard:
        case, release = question
        # Two releases at once: each has a config of its own.
        path = write_case(self.folder, case, release)
        return witness.ask(path, self.libraries[release])

    def findings(self, name: str) -> list[str]:
        """Every difference between the loader and our model."""
        config = read_config(write_case(self.folder, CASES[name]))
        found = []
        for release in self.libraries:
            heard = self.heard[name, release]
            read = [one for file in config.binaries for one in self._graphs(file)]
            predicted = rules.predict(read, config.loader, parse_version(heard.version))
            assert heard.version.startswith(f"{release}.")
            if probe.silence(heard):
                found.append(f"{release}: no verdict: {heard.outcome}, {heard.reasons}")
            for one in probe.compare(predicted, heard):
                found.append(f"{release}: {one.what}: {one.predicted} | {one.heard}")
        return found

    def _graphs(self, file: str) -> tuple[GraphInfo, ...]:
        if file not in self._read:
            self._read[file] = graph_files.read(self.folder / file).graphs
        return self._read[file]


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Court:
    """The oldest and the newest libGenie, and the quick cases."""
    oldest = library.find(install(WHEELS[OLDEST], tmp_path_factory.mktemp("oldest")))
    made = Court(tmp_path_factory.mktemp("cases"), {OLDEST: oldest, NEWEST: library.find(None)})
    made.hear(QUICK)
    return made


@pytest.mark.parametrize("name", QUICK)
def test_the_model_agrees_with_libgenie(court: Court, name: str) -> None:
    assert court.findings(name) == []


def test_the_newest_alone_is_asked_where_there_is_no_registry(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    alone = Court(tmp_path_factory.mktemp("newest"), {NEWEST: library.find(None)})
    names = ["well named", "11 splits", "without logits", "context.size above the largest"]
    alone.hear(names)
    assert [finding for name in names for finding in alone.findings(name)] == []
    assert {alone.heard[name, NEWEST].outcome for name in names} == {"accepted", "refused"}


@pytest.fixture(scope="module")
def all_of_them(tmp_path_factory: pytest.TempPathFactory, stack: ExitStack) -> Court:
    """Every libGenie, every case."""
    folder = tmp_path_factory.mktemp("wheels")
    libraries = {
        release: stack.enter_context(library.opened(fetch(version, folder)))
        for release, version in WHEELS.items()
    }
    made = Court(tmp_path_factory.mktemp("all"), libraries)
    made.hear(list(CASES))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_model_agrees_with_every_libgenie(all_of_them: Court, name: str) -> None:
    assert all_of_them.findings(name) == []


def _changes(court: Court, name: str) -> list[str]:
    """Releases in which a case is answered in another way than in the one before."""
    answers = {
        release: (heard.outcome, heard.variants)
        for release in court.libraries
        if (heard := court.heard[name, release])
    }
    pairs = itertools.pairwise(answers)
    return [after for before, after in pairs if answers[before] != answers[after]]


@pytest.mark.slow
def test_the_versions_in_which_rules_changed(all_of_them: Court) -> None:
    steady = [name for name in CASES if "no value input" not in name]  # those die at random
    changed = {name: found for name in steady if (found := _changes(all_of_them, name))}
    assert changed["11 splits"] == ["2.50"]  # from string order to numbers
    assert changed["name only: another ar"] == ["2.50"]  # from a crash to a message
    assert changed["kv-dim of another size"] == ["2.48"]  # not checked any more
    assert {release for found in changed.values() for release in found} == {"2.48", "2.50"}


def _unsound(bundle: Path, lib_dir: Path, folder: Path, patch: pytest.MonkeyPatch) -> set[str]:
    """What valgrind says of the memory that libGenie uses while it loads a bundle."""
    library.version(lib_dir)  # asked of another process, which is none of our business here
    said, python = folder / "said", folder / "python"
    python.write_text(f'#!/bin/sh\nexec valgrind --log-file="{said}" "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with patch.context() as patched:
        patched.setattr(sys, "executable", str(python))
        patched.setenv("PYTHONMALLOC", "malloc")
        witness.ask(bundle, lib_dir)
    blocks = re.split(r"^==\d+== $", said.read_text("utf-8", "replace"), flags=re.M)
    found = (re.search(r"== (Invalid|Conditional|Use of|Syscall)(.*)", block) for block in blocks)
    return {f"{one[1]}{one[2]}" for one in found if one}


@pytest.mark.slow
@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_chance_is_memory_that_was_never_set(
    all_of_them: Court, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it dies of a missing value differs from load to load, that it is unsound does not."""
    if shutil.which("valgrind") is None:
        pytest.skip("there is no valgrind")
    sound, chance = (
        _unsound(
            write_case(all_of_them.folder, CASES[name], release),
            all_of_them.libraries[release],
            tmp_path,
            monkeypatch,
        )
        for name in ("prompt without token", "cache: no value input")
    )
    assert chance > sound
