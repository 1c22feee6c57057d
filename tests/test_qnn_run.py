"""The worker process: crashes, time-outs, interrupts, and what is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from qnn_graphs import NO_TRANSPOSE, Weights, fixed16_matmul, matmul, save

from mnnqnn_tasks.errors import NativeCrash, QnnError
from mnnqnn_tasks.qnn import client, library, run
from mnnqnn_tasks.qnn.ir import Node, ScaleOffset, Tensor
from mnnqnn_tasks.qnn.options import TargetOptions

TARGET = TargetOptions(57, "v75")


def children(pid: int) -> set[int]:
    """Child processes of all threads of ``pid``."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found |= set(map(int, (task / "children").read_text().split()))
    return found


def the_server() -> int:
    """This process's server of the wheel's libraries; it may have others, and other children."""
    return client._servers[library.find()].process.pid


def workers(pid: int) -> set[int]:
    """The processes that the server process of ``pid`` has forked."""
    servers = {the_server()} if pid == os.getpid() else children(pid)
    return {worker for server in servers for worker in children(server)}


def wait_for(condition: object, seconds: float = 20) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def at_work(worker: int) -> bool:
    """Whether a worker is inside the library: it says so on its standard error, a file."""
    return "finalize graph1_0" in Path(f"/proc/{worker}/fd/2").read_text()


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A graph that takes the library seconds to prepare."""
    return save(tmp_path, matmul("graph1_0", 128, Weights(2048, 8192), tmp_path / "blobs"))


def test_validate_says_which_op_is_refused_and_why(tmp_path: Path) -> None:
    weights = Weights(64, 64)
    good = save(tmp_path, matmul("graph1_0", 16, weights, tmp_path / "blobs"))
    weights.quant = ScaleOffset(0.25, 0)  # float activations want a scale per channel
    bad = save(tmp_path, matmul("graph0", 16, weights, tmp_path / "blobs"))
    first, second = run.validate([bad, good], TARGET)
    assert [(v.node, v.type, v.ok) for v in first] == [
        ("in", "Cast", True),
        ("mm", "MatMul", False),
        ("out", "Cast", True),
    ]
    assert first[1].reason.startswith("3110 ")
    assert all(v.ok and not v.reason for v in second)


def test_validate_depends_on_the_target(tmp_path: Path) -> None:
    # Two 16-bit operands need v73.
    graph = fixed16_matmul("graph0", Weights(64, 64), tmp_path / "blobs", NO_TRANSPOSE)
    at = next(i for i, t in enumerate(graph.tensors) if t.name == "w")
    graph.tensors[at] = Tensor("w", "NATIVE", "SFIXED_POINT_16", (64, 64), ScaleOffset(0.25, 0))
    graph.tensors.append(Tensor("t2", "APP_WRITE", "FLOAT_32", (64, 64)))
    graph.nodes.insert(0, Node("w", "Quantize", ("t2",), ("w",)))
    net = save(tmp_path, graph)
    verdicts = {
        soc: {v.node: v for v in run.validate([net], TargetOptions(soc, arch))[0]}
        for soc, arch in ((36, "v69"), (43, "v73"))
    }
    assert verdicts[43]["mm"].ok
    assert not verdicts[36]["mm"].ok
    assert "69, expected >= 73" in verdicts[36]["mm"].reason


def test_a_crash_of_the_library_in_a_link(tmp_path: Path) -> None:
    # libQnnHtp 2.51 dies of a context without graphs; `run.link` never asks for one.
    out = tmp_path / "graph0.bin"
    outcome = client.spawn(
        "link",
        None,
        60.0,
        nets=[],
        blobs=str(tmp_path),
        options=TARGET.to_json(),
        out_bin=str(out),
    )
    with pytest.raises(NativeCrash, match="died") as caught:
        outcome.result("link graph0")
    assert caught.value.why == "SIGSEGV while it was at: serialize graph0.bin"
    with pytest.raises(QnnError, match="at least one graph"):
        run.link([], tmp_path, TARGET, out)
    assert not out.exists()


def test_a_crash_of_the_library_is_a_verdict(tmp_path: Path) -> None:
    # libQnnHtp 2.51 reads through a null pointer when MatMul has no transpose_in1.
    graph = fixed16_matmul("graph0", Weights(64, 64), tmp_path / "blobs", ())
    (verdicts,) = run.validate([save(tmp_path, graph)], TARGET)
    assert [v.ok for v in verdicts] == [True, False, True]
    assert "died of SIGSEGV" in verdicts[1].reason


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_process_that_dies_is_named(tmp_path: Path, large: Path, number: signal.Signals) -> None:
    out = tmp_path / "graph0.bin"
    out.write_bytes(b"what was built before")
    caught: list[BaseException] = []

    def link() -> None:
        try:
            run.link([large], tmp_path / "blobs", TARGET, out)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=link)
    thread.start()
    wait_for(lambda: workers(os.getpid()))
    (pid,) = workers(os.getpid())
    wait_for(lambda: at_work(pid))
    os.kill(pid, number)
    thread.join(30)
    (error,) = caught
    assert isinstance(error, NativeCrash)
    assert error.where == "link graph0.bin"
    assert error.why is not None
    assert number.name in error.why
    assert "graph1_0" in error.why
    assert out.read_bytes() == b"what was built before"


def test_a_call_that_takes_too_long(tmp_path: Path, large: Path) -> None:
    with pytest.raises(QnnError, match="no answer in time"):
        run.link([large], tmp_path / "blobs", TARGET, tmp_path / "graph0.bin", timeout=0.5)
    assert not workers(os.getpid())
    assert not (tmp_path / "graph0.bin").exists()


PARENT = """
import sys
from pathlib import Path
from mnnqnn_tasks.qnn import client, run
from mnnqnn_tasks.qnn.options import TargetOptions
net, blobs, out = map(Path, sys.argv[1:])
run.link([net], blobs, TargetOptions(57, "v75"), out)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_parent(tmp_path: Path, large: Path, number: signal.Signals) -> None:
    temp = tmp_path / "temp"
    temp.mkdir()
    out = tmp_path / "out" / "graph0.bin"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, large, tmp_path / "blobs", out],
        env={**os.environ, "TMPDIR": str(temp), "PYTHONPATH": str(Path(__file__).parents[1])},
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: workers(parent.pid))
    (server,), (worker,) = children(parent.pid), workers(parent.pid)
    wait_for(lambda: at_work(worker))
    parent.send_signal(number)
    assert parent.wait(20) != 0
    wait_for(lambda: not Path(f"/proc/{worker}").exists())
    wait_for(lambda: not Path(f"/proc/{server}").exists())
    assert not out.exists()
    assert not list(temp.iterdir())


def test_nothing_is_printed_on_success(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    net = save(tmp_path, matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs"))
    run.link([net], tmp_path / "blobs", TARGET, tmp_path / "graph0.bin")
    assert capfd.readouterr() == ("", "")


def test_build_id_is_the_one_in_the_binary(tmp_path: Path) -> None:
    net = save(tmp_path, matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs"))
    info = run.link([net], tmp_path / "blobs", TARGET, tmp_path / "graph0.bin")
    assert run.build_id() == info.build_id


def test_requests_at_once_and_a_crash_beside_them(tmp_path: Path, large: Path) -> None:
    """Threads share the server; the one whose worker dies is the only one to notice."""
    net = save(tmp_path, matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs"))
    crashed: list[BaseException] = []

    def doomed() -> None:
        with pytest.raises(NativeCrash) as caught:
            run.link([large], tmp_path / "blobs", TARGET, tmp_path / "large.bin")
        crashed.append(caught.value)

    thread = threading.Thread(target=doomed)
    thread.start()
    wait_for(lambda: workers(os.getpid()))
    (victim,) = workers(os.getpid())
    sizes = []
    others = [
        threading.Thread(
            target=lambda i=i: sizes.append(
                run.link([net], tmp_path / "blobs", TARGET, tmp_path / f"{i}.bin").size
            )
        )
        for i in range(3)
    ]
    for other in others:
        other.start()
    wait_for(lambda: at_work(victim))
    os.kill(victim, signal.SIGSEGV)
    for other in [*others, thread]:
        other.join(60)
    assert len(sizes) == 3
    assert len(crashed) == 1
    assert len({(tmp_path / f"{i}.bin").read_bytes() for i in range(3)}) == 1


def test_a_dead_server_is_replaced(tmp_path: Path, large: Path) -> None:
    assert run.build_id()
    server = the_server()
    os.kill(server, signal.SIGKILL)
    assert run.build_id()
    other = the_server()
    assert other != server
    thread_result: list[BaseException] = []

    def link() -> None:
        try:
            run.link([large], tmp_path / "blobs", TARGET, tmp_path / "large.bin")
        except BaseException as error:
            thread_result.append(error)

    thread = threading.Thread(target=link)
    thread.start()
    wait_for(lambda: workers(os.getpid()))
    (worker,) = workers(os.getpid())
    wait_for(lambda: at_work(worker))
    os.kill(other, signal.SIGKILL)
    thread.join(30)
    assert isinstance(thread_result[0], NativeCrash)
    wait_for(lambda: not Path(f"/proc/{worker}").exists())
    assert not (tmp_path / "large.bin").exists()


FORKING = """
import os
from mnnqnn_tasks.qnn import client, run
first = run.build_id()
pid = os.fork()
if pid == 0:
    os._exit(0 if run.build_id() == first else 3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert run.build_id() == first
"""


def test_a_forked_process_has_a_server_of_its_own() -> None:
    root = str(Path(__file__).parents[1])
    subprocess.run([sys.executable, "-c", FORKING], cwd=root, check=True, timeout=60)


SHARING = """
import os, signal, sys, time
from mnnqnn_tasks.qnn import client, run
pid = client.prestart()
assert pid and client.prestart() is None

def child(lost):
    forked = os.fork()
    if forked == 0:
        assert run.build_id()
        (server,) = client._servers.values()
        os._exit(0 if server.foreign != lost else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0

child(lost=False)
child(lost=False)
os.kill(pid, signal.SIGKILL)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
child(lost=True)
assert run.build_id()
client.end_prestarted()
"""


def test_forked_processes_share_a_server_that_was_started_before() -> None:
    root = str(Path(__file__).parents[1])
    subprocess.run([sys.executable, "-c", SHARING], cwd=root, check=True, timeout=60)


def test_a_shared_server_ends_with_the_last_that_uses_it() -> None:
    code = "import sys; from mnnqnn_tasks.qnn import client; print(client.prestart())"
    root = str(Path(__file__).parents[1])
    out = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True)
    server = Path(f"/proc/{int(out.stdout)}")
    wait_for(lambda: not server.exists() or "\nState:\tZ" in (server / "status").read_text())


def test_environment_and_folder_are_those_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run.build_id()  # the server stands where this test started
    save(tmp_path, matmul("graph0", 1, Weights(64, 64), tmp_path / "blobs"))
    monkeypatch.chdir(tmp_path)
    times = tmp_path / "times"
    monkeypatch.setenv("MNNQNN_TIMES", str(times))
    run.link([Path("graph0_net.json")], Path("blobs"), TARGET, Path("out/graph0.bin"))
    assert (tmp_path / "out" / "graph0.bin").is_file()
    assert times.read_text()
