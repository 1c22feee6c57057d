"""Stages done by Dask workers that do not see the build folder, through the remote cache."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cache_stores import s3_server
from dask_cluster import Blind, Cluster, sticking, stuck_at
from tasks_project import REPO, Project, exported
from test_tasks_dask import SIX, batch

from mnnqnn_tasks.files import TEMP_PREFIX


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster.started(tmp_path_factory.mktemp("dask")) as started:
        yield started


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return exported(tmp_path_factory.mktemp("done") / "p").tree()


def through(url: str, **more: str) -> dict[str, str]:
    """Environment of a run without a local store."""
    return {
        "MNNQNN_CACHE": "on",
        "MNNQNN_CACHE_DIR": "off",
        "MNNQNN_CACHE_REMOTE": url,
        **more,
    }


def scratch(cluster: Cluster, workers: int) -> list[Path]:
    """Where workers have our files, once there are so many of them."""
    deadline = time.monotonic() + 60
    while True:
        found = sorted(cluster.folder.glob("dask-scratch-space/*/mnnqnn*"))
        if len(found) == workers or time.monotonic() > deadline:
            assert len(found) == workers, found
            return found
        time.sleep(0.02)


def test_one_model(tmp_path: Path, cluster: Cluster, wanted: dict[str, bytes]) -> None:
    """All of it in folders with odd names."""
    odd = tmp_path / "it's 模型 100% #1"
    project = Project.create(odd / "p", executor="dask", scheduler=cluster.address)
    remote = odd / "remote"
    blind = Blind(tmp_path / "blind", project.root)
    with cluster.workers({}, blind=blind):
        result = project.doit("-n", "2", "export_qnn", env=through(f"file://{remote}"))
        assert result.code == 0 and "WARNING" not in result.text, result.text
        (own,) = scratch(cluster, 1)
        assert [path.name for path in own.iterdir()] == ["store"]
        weights = (project.model / "llm.mnn.weight").stat().st_size
        held = [path.stat().st_size for path in (own / "store" / "objects").rglob("*/*")]
        assert held.count(weights) == 1, "the weights came once"
        # Of our folder they have looked for the probe alone, and that was not there.
        assert blind.looked_for() == {str(project.root / "build" / ".mnnqnn" / "probe")}
        assert project.tree() == wanted
    scratch(cluster, 0)
    assert list(project.root.rglob(f"{TEMP_PREFIX}*")) == []
    again = project.doit("export_qnn", env=through(f"file://{remote}"))
    assert (again.code, again.ran) == (0, set()), again.text
    other = Project.create(tmp_path / "other")
    result = other.doit("export_qnn", env=through(f"file://{remote}"))
    assert result.ran == {"bundle:m:a"} and other.tree() == wanted, "entries as any others"


@pytest.mark.slow
def test_six_models_and_a_worker_that_is_killed(tmp_path: Path, cluster: Cluster) -> None:
    local = batch(tmp_path / "local")
    result = local.doit("export_qnn")
    assert result.code == 0, result.text
    _six(tmp_path, cluster, local, (tmp_path / "remote").as_uri(), {})


@pytest.mark.slow
def test_six_models_and_a_server(tmp_path: Path, cluster: Cluster) -> None:
    local = batch(tmp_path / "local")
    result = local.doit("export_qnn")
    assert result.code == 0, result.text
    with s3_server("bucket") as environ:
        environ |= {"MNNQNN_CACHE_TIMEOUT_S": "60"}  # it shares the machine with all the others
        _six(tmp_path, cluster, local, "s3://bucket/the team", environ)


def _six(
    tmp_path: Path, cluster: Cluster, local: Project, url: str, environ: dict[str, str]
) -> None:
    project = batch(tmp_path / "p", executor="dask", scheduler=cluster.address)
    blind = Blind(tmp_path / "blind", project.root)
    env = sticking(tmp_path / "stuck", "/targets/a/graph")
    args = ("-n", "4", "export_qnn")
    both = ({**environ, **env}, environ)
    with (
        cluster.workers(*both, blind=blind) as (victim, _),
        project.start(*args, env=through(url, **environ)) as run,
    ):
        stuck_at(tmp_path / "stuck", run)
        scratch(cluster, 2)
        victim.kill()
        text, _ = run.communicate(timeout=600)
        assert run.returncode == 0, text
        scratch(cluster, 1)
    assert "WARNING" not in text and "Traceback" not in text
    assert project.tree() == local.tree()
    assert {name.partition("/")[0] for name in project.tree()} == set(SIX)
    assert {Path(path).name for path in blind.looked_for()} == {"probe"}
    assert list(project.root.rglob(f"{TEMP_PREFIX}*")) == []
    again = project.doit("export_qnn", env=through(url, **environ))
    assert (again.code, again.ran) == (0, set()), again.text


def test_a_store_that_takes_nothing_in(tmp_path: Path, cluster: Cluster) -> None:
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    remote = tmp_path / "remote"
    blind = Blind(tmp_path / "blind", project.root)
    with cluster.workers({}, blind=blind):
        env = through(remote.as_uri(), MNNQNN_CACHE_READ_ONLY="on")
        result = project.doit("export_qnn", env=env)
        assert result.code == 1 and "Traceback" not in result.text, result.text
        assert "does not see the files" in result.text and "cache.remote" in result.text


@pytest.mark.slow
def test_a_store_that_is_gone(tmp_path: Path, cluster: Cluster) -> None:
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    (tmp_path / "file").write_text("")
    remote = tmp_path / "file" / "x"
    with cluster.workers({}, blind=Blind(tmp_path / "blind", project.root)):
        result = project.doit("export_qnn", env=through(remote.as_uri()))
    assert result.code == 1 and "Traceback" not in result.text, result.text
    assert "is left out" in result.text


@pytest.mark.slow
def test_what_is_damaged_on_the_way_is_sent_again(
    tmp_path: Path, cluster: Cluster, wanted: dict[str, bytes]
) -> None:
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    remote = tmp_path / "remote"
    weights = (project.model / "llm.mnn.weight").read_bytes()
    _damaged(remote, weights)  # as if the run had put it there
    with cluster.workers({}, blind=Blind(tmp_path / "blind", project.root)):
        result = project.doit("partition:m", env=through(remote.as_uri()))
        assert result.code == 0, result.text
        assert _content(remote, weights).read_bytes() == weights

        # On the worker's own disk: what it fetched is not what it was.
        (own,) = scratch(cluster, 1)
        _flip(_content(own / "store", weights))
        result = project.doit("export_qnn", env=through(remote.as_uri()))
        assert result.code == 0 and "WARNING" not in result.text, result.text
        assert project.tree() == wanted
        assert _content(own / "store", weights).read_bytes() == weights


@pytest.mark.slow
def test_a_result_that_is_damaged_on_the_way_is_made_again(
    tmp_path: Path, cluster: Cluster, wanted: dict[str, bytes]
) -> None:
    """The store changes a bit of the first binary that it is given, once."""
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    remote = tmp_path / "remote"
    hook, note = tmp_path / "hook", tmp_path / "damaged"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(_LIAR)
    env = {"PYTHONPATH": os.pathsep.join([str(hook), str(REPO)]), "LIAR_NOTE": str(note)}
    with cluster.workers(env, blind=Blind(tmp_path / "blind", project.root)):
        result = project.doit("export_qnn", env=through(remote.as_uri()))
    assert result.code == 0, result.text
    assert note.exists() and result.text.count("was damaged") == 1, result.text
    assert project.tree() == wanted


_LIAR = """
import os, sys

if "mnnqnn_tasks.cluster.helper" in sys.orig_argv:
    from mnnqnn_tasks.cache.remote import RemoteStore

    _put = RemoteStore._put

    def _lie(self, path, source, size):
        _put(self, path, source, size)
        if source.name == "graph0.bin" and not os.path.exists(os.environ["LIAR_NOTE"]):
            open(os.environ["LIAR_NOTE"], "w").close()
            with open(self._at(path), "r+b") as stream:
                stream.seek(size // 2)
                byte = stream.read(1)[0]
                stream.seek(size // 2)
                stream.write(bytes([byte ^ 1]))

    RemoteStore._put = _lie
"""


@pytest.mark.slow
def test_a_worker_whose_disk_is_full_makes_room(
    tmp_path: Path, cluster: Cluster, wanted: dict[str, bytes]
) -> None:
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    hook, note = tmp_path / "hook", tmp_path / "full"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(_FULL)
    env = {"PYTHONPATH": os.pathsep.join([str(hook), str(REPO)]), "FULL_NOTE": str(note)}
    url = (tmp_path / "remote").as_uri()
    weights = (project.model / "llm.mnn.weight").read_bytes()
    with cluster.workers(env, blind=Blind(tmp_path / "blind", project.root)):
        result = project.doit("-n", "1", "export_qnn", env=through(url))
        assert result.code == 0 and "WARNING" not in result.text, result.text
        assert note.read_text() == "2"
        assert project.tree() == wanted

        note.write_text("-9")  # it stays full
        shutil.rmtree(project.build / "targets")
        shutil.rmtree(tmp_path / "remote" / "actions")
        result = project.doit("-n", "1", "export_qnn", env=through(url))
        (own,) = scratch(cluster, 1)
    assert result.code == 1 and "Traceback" not in result.text, result.text
    assert "cannot use the remote cache or its own disk" in result.text
    assert "/work-" in result.text and "the disk is full" in result.text
    assert not _content(own / "store", weights).exists()


#: The second stage meets a full disk; or all, where the note says that nine are to come.
_FULL = """
import errno, os, sys
from pathlib import Path

if "mnnqnn_tasks.cluster.helper" in sys.orig_argv:
    from mnnqnn_tasks.files import disk_errors
    from mnnqnn_tasks.toolchain import work

    _perform, _note = work.perform, Path(os.environ["FULL_NOTE"])

    def _full(stage, arguments):
        count = int(_note.read_text()) if _note.exists() else 0
        if count < 2:
            _note.write_text(str(count + 1))
            if count == 1 or count < 0:
                path = arguments["out"]
                with disk_errors(path):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return _perform(stage, arguments)

    work.perform = _full
"""


def test_a_stage_that_fails_speaks_of_folders_that_the_user_knows(
    tmp_path: Path, cluster: Cluster
) -> None:
    project = Project.create(
        tmp_path / "p",
        executor="dask",
        scheduler=cluster.address,
        targets=[{"name": "a", "soc_id": 57, "hvx_threads": 64}],
    )
    with cluster.workers({}, blind=Blind(tmp_path / "blind", project.root)):
        result = project.doit("-n", "1", "export_qnn", env=through((tmp_path / "r").as_uri()))
    assert result.code == 1 and "Traceback" not in result.text, result.text
    assert f"{project.build / 'targets' / 'a' / 'graph0.bin'}: " in result.text
    assert "asked 64" in result.text and "work-" not in result.text


def _content(remote: Path, data: bytes) -> Path:
    from mnnqnn_tasks.files import sha256_bytes

    digest = sha256_bytes(data)
    return remote / "objects" / digest[:2] / digest


def _damaged(remote: Path, data: bytes) -> None:
    path = _content(remote, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(len(data)))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)  # the same file, as when a disk does it


def test_a_store_that_only_we_can_reach(tmp_path: Path, cluster: Cluster) -> None:
    project = Project.create(tmp_path / "p", executor="dask", scheduler=cluster.address)
    blind = Blind(tmp_path / "blind", project.root)
    remote = project.root / "remote"  # as empty for a worker as the rest
    with cluster.workers({}, blind=blind):
        result = project.doit("-n", "1", "export_qnn", env=through(remote.as_uri()))
    assert result.code == 1 and "Traceback" not in result.text, result.text
    assert "a Dask worker" in result.text and "remote cache" in result.text
