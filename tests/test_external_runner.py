"""Running tools that are not ours: how they may end, and what a user is told."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mnnqnn_tasks.errors import MnnqnnError, NativeCrash, ToolError, ToolMissing
from mnnqnn_tasks.mnn import schema
from mnnqnn_tasks.peak import Meter
from mnnqnn_tasks.toolchain.external import faults
from mnnqnn_tasks.toolchain.external.runner import Runner

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner("stage:m", tmp_path / "logs" / "x.log", 60)


def shell(runner: Runner, script: str, folder: Path, **more: bool) -> str:
    return runner.run(["/bin/sh", "-c", script], folder, **more)


def test_output_is_kept_with_the_command_that_gave_it(runner: Runner, tmp_path: Path) -> None:
    place = tmp_path / "a b'\"ü"
    place.mkdir()
    tail = runner.run(["/bin/echo", "it's", 'a "b"', "c,d"], place)
    assert tail == 'it\'s a "b" c,d'
    log = runner.log.read_text("utf-8")
    assert "it's" in log.splitlines()[2] and "exit code 0" in log.splitlines()[-1]
    assert str(place.name[:3]) in log.splitlines()[0]
    shell(runner, "echo more; pwd", place, append=True)
    assert runner.log.read_text("utf-8").startswith(log)
    shell(runner, "echo new", place)
    assert "more" not in runner.log.read_text("utf-8")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGBUS])
def test_a_signal_is_told_as_what_it_is(runner: Runner, tmp_path: Path, number: int) -> None:
    with pytest.raises(NativeCrash, match=signal.Signals(number).name) as caught:
        shell(runner, f"echo last words; kill -{int(number)} $$", tmp_path)
    assert caught.value.tail == "last words"
    assert str(runner.log) in str(caught.value)


def test_the_last_words_are_not_lost_in_a_buffer(runner: Runner, tmp_path: Path) -> None:
    code = "import os; print('last words'); os.kill(os.getpid(), 11)"
    with pytest.raises(NativeCrash, match="SIGSEGV") as caught:
        runner.run([sys.executable, "-c", code], tmp_path)
    assert caught.value.tail == "last words"


def test_an_exit_code_comes_with_the_last_lines(runner: Runner, tmp_path: Path) -> None:
    script = "for i in $(seq 100); do echo line $i; done; echo why >&2; exit 7"
    with pytest.raises(ToolError, match="exit code 7") as caught:
        shell(runner, script, tmp_path)
    assert caught.value.tail is not None
    assert caught.value.tail.splitlines()[-2:] == ["line 100", "why"]
    assert "line 1\n" in runner.log.read_text()


class Alive:
    """A pipe that a tool and all that it starts hold open: it ends when they are gone."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "alive"
        os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> bytes:
        """What comes next, empty at the end; waits for it."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        assert poll.poll(120_000), "nothing came, and somebody lives"
        return os.read(self.fd, 100)


def test_a_tool_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    alive = Alive(tmp_path)
    script = f"exec 3>{alive.path}; echo up >&3; echo started; sleep 1000 & sleep 1000"
    for limit in (1, 4, 16, 64):  # a busy machine may not have started it after a second
        with pytest.raises(ToolError, match=f"longer than {limit} s") as caught:
            shell(Runner("stage:m", tmp_path / "log", limit), script, tmp_path)
        if caught.value.tail == "started":
            break
    assert caught.value.tail == "started"
    assert "time_limit_s" in str(caught.value.todo)
    while alive.read():
        pass


def test_what_a_tool_leaves_in_the_background_does_not_hold_us(
    runner: Runner, tmp_path: Path
) -> None:
    assert shell(runner, "sleep 1000 & echo done", tmp_path) == "done"


def test_what_leaves_the_group_ends_as_well(tmp_path: Path) -> None:
    """Servers that compilers start make a session of their own."""
    alive = Alive(tmp_path)
    script = f"exec 3>{alive.path}; setsid sleep 1000 & (setsid sh -c 'sleep 1000' &); echo done"
    assert shell(Runner("stage:m", tmp_path / "log", 60), script, tmp_path) == "done"
    assert alive.read() == b""


def test_a_tool_that_prints_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mnnqnn_tasks.toolchain.external.runner._LONGEST_LOG", 100_000)
    script = "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo last; exit 3"
    with pytest.raises(ToolError, match="exit code 3"):
        shell(Runner("stage:m", tmp_path / "log", 60), script, tmp_path)
    log = (tmp_path / "log").read_text()
    assert 100_000 < len(log) < 110_000
    assert log.splitlines()[-2:][0] == "last" and "bytes more are left out" in log


def test_a_message_does_not_act_on_the_terminal(runner: Runner, tmp_path: Path) -> None:
    script = r"printf '\033]0;title\007\033[31mred\033[0m\r50%%\r\033[2K100%%\r\n'; exit 3"
    with pytest.raises(ToolError) as caught:
        shell(runner, script, tmp_path)
    assert caught.value.tail == "100%"
    assert "\033[31mred" in runner.log.read_text()


def test_a_tool_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    """Not only the tool, but also what it started."""
    alive = Alive(tmp_path)
    script = f"exec 3>{alive.path}; echo up >&3; sleep 1000 & sleep 1000"
    program = (
        "from pathlib import Path\n"
        "from mnnqnn_tasks.toolchain.external.runner import Runner\n"
        f"Runner('t', Path({str(tmp_path / 'log')!r}), 900)"
        f".run(['/bin/sh', '-c', {script!r}], Path('/'))"
    )
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    with subprocess.Popen([sys.executable, "-c", program], env=env) as starter:
        assert alive.read() == b"up\n"
        starter.kill()
    assert alive.read() == b""


def test_the_stack_is_raised_where_asked(runner: Runner, tmp_path: Path) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    wanted = "unlimited" if hard == resource.RLIM_INFINITY else str(hard // 1024)
    assert shell(runner, "ulimit -s", tmp_path, deep_stack=True) == wanted


@pytest.mark.parametrize(
    ("prepare", "what"),
    [
        (lambda p: None, "no such tool"),
        (lambda p: p.write_text("#!/bin/sh\n"), "not executable"),
    ],
)
def test_a_tool_that_cannot_be_started(runner, tmp_path, prepare, what) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "tool"
    prepare(path)
    with pytest.raises(ToolMissing, match=what):
        runner.run([path], tmp_path)


def test_a_tool_for_another_machine(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "tool"
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(200))
    path.chmod(0o755)
    with pytest.raises(MnnqnnError) as caught:
        runner.run([path], tmp_path)
    assert "cannot start" in str(caught.value.tail)


def test_the_memory_of_a_tool_is_measured(runner: Runner, tmp_path: Path) -> None:
    with Meter() as meter:
        code = "x = bytearray(300 << 20); x[::4096] = b'1' * len(x[::4096])"
        runner.run([sys.executable, "-c", code], tmp_path)
    assert 300 << 20 < meter.peak < 600 << 20


def test_live_output_is_labelled(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Runner("link:m:a:graph0", tmp_path / "log", 60, live=True).run(["/bin/echo", "hi"], tmp_path)
    assert capfd.readouterr().err == "link:m:a:graph0 | hi\n"


OP = schema.load().enums["OpType"].values

LINES = {
    f"MNN_QNN: Not registered type {OP['TopKV2']}, /model/TopK.": "/model/TopK (TopKV2)",
    f"MNN_QNN: Not registered type {OP['TopKV2']}.": "of type TopKV2",
    f"MNN_QNN: Don't support type {OP['StridedSlice']}, a.b.c.": "a.b.c (StridedSlice)",
    "MNN_QNN: Don't support type [StridedSlice]": "of type StridedSlice",
    f"Create execution error : {OP['Convolution']}": "of type Convolution",
    "Create execution error : 99999": "of type number 99999",
    "MNN_QNN: Some special cases of Softmax is not supported currently.": "of type Softmax",
    f"MNN_QNN: Op {OP['Convolution']} parameters violated the constraints of the Qnn Htp "
    "backend.": "of type Convolution",
    "QNN validate failed for node '_a.b' type 'Gather', error: 3110": "_a.b (Gather)",
    f"{'x' * 5000}MNN_QNN: Don't support type {OP['Softmax']}, late.": "late (Softmax)",
    "MNN_QNN: Don't support type : ?": "left out an op",
    "MNN_QNN: Failed to write to file q/w.raw. Written: 1, Expected: 2": "spoiled a graph",
    "MNN_QNN: Unkown dataType.": "spoiled a graph",
}


@pytest.mark.parametrize("line", LINES)
def test_an_op_left_out_fails_in_spite_of_exit_code_0(
    runner: Runner, tmp_path: Path, line: str
) -> None:
    with pytest.raises(ToolError) as caught:
        runner.run(["/bin/echo", f"before\n{line}\nafter"], tmp_path)
    assert LINES[line] in caught.value.what
    assert "exit code was 0" in str(caught.value.why)


@pytest.mark.parametrize(
    "line",
    [
        "Can't open file:/sys/devices",
        "The device supports: i8sdot:0",
        "Don't support clone",
        "MNN_QNN: Not supporting device API.",
        "Don't support Attention Mask Type other than 'float', currently.",
    ],
)
def test_other_lines_are_no_faults(line: str) -> None:
    assert faults.find(line) is None
