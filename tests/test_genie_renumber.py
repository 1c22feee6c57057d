"""`doit genie_renumber`: other split numbers, on a copy, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from genie_models import build, graph, language, split
from hypothesis import given
from hypothesis import strategies as st

from mnnqnn_tasks.errors import GenieError
from mnnqnn_tasks.genie import graphs, order, renumber
from mnnqnn_tasks.genie.lint import lint
from mnnqnn_tasks.genie.versions import VERSIONS

TOTAL = 11


def name(kind: str, ar: int, k: int) -> str:
    return f"{kind}_ar{ar}_cl64_{k}_of_{TOTAL}"


@pytest.fixture(scope="session")
def eleven(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Eleven splits, a file each, with a prompt and a token graph."""
    folder = tmp_path_factory.mktemp("genie_renumber")
    made = {
        f"{k}.bin": [
            graph(name("prompt", 8, k), split(k, TOTAL, 8, 64)),
            graph(name("token", 1, k), split(k, TOTAL, 1, 64)),
        ]
        for k in range(1, TOTAL + 1)
    }
    build(folder, made)
    return [folder / file for file in made]


def test_every_loader_takes_the_copies_in_order(eleven: list[Path], tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in eleven}
    assert lint([graphs.read(path) for path in eleven]).errors
    made = renumber.renumber(eleven, tmp_path / "out")
    assert all(one.loaded for one in made)
    copies = [graphs.read(tmp_path / "out" / path.name) for path in eleven]
    result = lint(copies, load=True)
    assert result.findings == ()
    for prediction in result.predictions:
        for variant, kind in zip(prediction.variants, ("token", "prompt"), strict=True):
            head = f"{kind}_ar{variant.ar}_cl64_"
            labels = [*map(str, range(1, 10)), "T0", "T1"]
            assert list(variant.graphs) == [f"{head}{label}_of_11" for label in labels]
    assert {path: path.read_bytes() for path in eleven} == before


def test_only_the_numbers_change(eleven: list[Path], tmp_path: Path) -> None:
    renumber.renumber(eleven, tmp_path)
    for source in eleven:
        old, new = source.read_bytes(), (tmp_path / source.name).read_bytes()
        assert len(old) == len(new)
        assert (tmp_path / source.name).stat().st_ino != source.stat().st_ino
        changed = [index for index in range(len(old)) if old[index] != new[index]]
        if int(source.stem) < 10:
            assert changed == []
            continue
        # Two graphs, each named at least twice; of _10_ and _11_ only the first digit changes.
        assert len(changed) >= 4
        assert not any(graph.name.encode() in new for graph in graphs.read(source).graphs)
        assert {new[index] for index in changed} == {ord("T")}
        first, second = graphs.read(source).graphs, graphs.read(tmp_path / source.name).graphs
        assert [(g.inputs, g.outputs) for g in first] == [(g.inputs, g.outputs) for g in second]


def test_nothing_to_do(tmp_path: Path) -> None:
    build(tmp_path, {"a.bin": [graph("token_ar1_cl64_1_of_1", language(1, 64))]})
    with pytest.raises(GenieError, match="in order as they are"):
        renumber.renumber([tmp_path / "a.bin"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@given(st.integers(1, 79), st.sampled_from(["a_{k}_of_{t}", "{k}x_ar1_cl64_{k}_of_{t}_b"]))
def test_plan_puts_splits_in_order_for_every_loader(total: int, form: str) -> None:
    names = [form.format(k=k, t=total) for k in range(1, total + 1)]
    if form.startswith("{") and total > 9:
        names = [f"x{n}" for n in names]
    try:
        changed = renumber.plan(names)
    except GenieError:
        for version in VERSIONS:
            assert list(order.ordered(names, version)) == names or form.startswith("{")
        return
    result = [changed.get(one, one) for one in names]
    for version in VERSIONS:
        assert list(order.ordered(result, version)) == result
    for old, new in changed.items():
        assert len(old) == len(new)
        assert renumber.with_label(old, "?") == renumber.with_label(new, "?")


OTHERS = [name("token", 1, k) for k in range(1, TOTAL + 1)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (OTHERS[9], "prompt_ar1_cl64_10_of_11", "only the K of _K_of_T"),
        (OTHERS[9], "token_ar8_cl64_10_of_11", "only the K of _K_of_T"),
        (OTHERS[9], "token_ar1_cl32_10_of_11", "only the K of _K_of_T"),
        (OTHERS[9], "token_ar1_cl64_10_of_12", "only the K of _K_of_T"),
        (OTHERS[9], "token_ar1_cl64_10_of_1_", "only the K of _K_of_T"),
        (OTHERS[9], "token_ar1_cl64___of_11", "only the K of _K_of_T"),
        (OTHERS[9], "token_ar1_cl64_010_of_11", "another length"),
        (OTHERS[1], "token_ar1_cl64_02_of_11", "another length"),
        (OTHERS[1], OTHERS[2], "two graphs would be called"),
        (OTHERS[9], OTHERS[10], "two graphs would be called"),
        (OTHERS[9], "token_ar1_cl64_T0_of_11", "would not be in order"),
        ("nobody_1_of_11", "nobody_2_of_11", "there is no graph"),
    ],
)
def test_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(GenieError, match=message):
        renumber.check({old: new}, OTHERS)


def test_too_many_splits() -> None:
    with pytest.raises(GenieError, match="more than 79 splits"):
        renumber.plan([f"a_{k}_of_80" for k in range(1, 81)])


def test_nothing_is_replaced_and_nothing_is_left(eleven: list[Path], tmp_path: Path) -> None:
    (tmp_path / "7.bin").write_text("mine")
    with pytest.raises(GenieError, match="such a file already"):
        renumber.renumber(eleven, tmp_path)
    with pytest.raises(GenieError, match="such a file already"):
        renumber.renumber(eleven, eleven[0].parent)  # onto the files themselves
    assert [path.name for path in tmp_path.iterdir()] == ["7.bin"]
    with pytest.raises(GenieError, match="would become one file"):
        renumber.renumber(
            [*eleven, eleven[0].parent / "." / ".." / eleven[0].parent.name / "1.bin"],
            tmp_path / "out",
        )


def test_a_binary_that_keeps_names_in_another_way(eleven: list[Path], tmp_path: Path) -> None:
    """The last place of a name is damaged: nothing is written."""
    source = eleven[9]
    data = source.read_bytes()
    last = data.rindex(name("token", 1, 10).encode())
    copies = tmp_path / "in"
    copies.mkdir()
    for path in eleven:
        (copies / path.name).write_bytes(path.read_bytes())
    (copies / "10.bin").write_bytes(data[:last] + b"x" + data[last + 1 :])
    with pytest.raises(GenieError, match="it stands 1 times in the file where two are expected"):
        renumber.renumber([copies / path.name for path in eleven], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_command(eleven: list[Path], tmp_path: Path) -> None:
    def doit(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "doit", "genie_renumber", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    done = doit(*eleven, "-o", "out", "--no-load")
    assert (done.returncode, done.stderr) == (0, "")
    assert "token_ar1_cl64_10_of_11 -> token_ar1_cl64_T0_of_11" in done.stdout
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(p.name for p in eleven)
    for arguments, message in (
        ((), "needs a context binary"),
        ((eleven[0],), "needs a folder"),
        ((eleven[0], "-o", "o", "--rename", "x"), "is no rename"),
        (("nothing.bin", "-o", "o"), "nothing.bin"),
        (
            (eleven[0], "-o", "o", "--rename", "prompt_ar8_cl64_1_of_11:prompt_ar9_cl64_1_of_11"),
            "only the K",
        ),
    ):
        done = doit(*arguments)
        assert (done.returncode, done.stdout) == (3, "")
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()
