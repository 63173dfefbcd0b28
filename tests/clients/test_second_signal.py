"""A second Ctrl-C or SIGTERM ends every command, even one that is stuck in native code."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import JUMOK
from tests.support.hang import HANG_S
from tests.support.models.hostile_bundles import edit_graph, loop_forever

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
PROGRAM = """
import os, signal, sys, time
from jumok.__main__ import STOP_SIGNALS, end_at_second_signal
for number in STOP_SIGNALS:
    signal.signal(number, lambda *_: None)
end_at_second_signal(float({closing_s}))
if {forking} and os.fork() == 0:
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(0)
if {forking}:
    os.wait()
print("ready", flush=True)
while {stuck}:
    time.sleep(0.02)
    print("tick", flush=True)
    if {more}:
        os.kill(os.getpid(), signal.SIGINT)
"""


def program(*, closing_s: float = 0.1, stuck: bool = True, more: bool = False, forking: bool = False) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(closing_s=closing_s, stuck=stuck, more=more, forking=forking)]


@linux
@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_ends_a_stuck_process(signals: tuple[signal.Signals, ...]) -> None:
    """Its handlers do nothing, and its main thread never ends."""
    with subprocess.Popen(program(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in signals:
            process.send_signal(number)
            _wait_until(partial(_has_received, process, number))
        _, error = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert error == "Error: still closing 0.1 s after the second signal; the process ends now\n"


def test_further_signals_do_not_delay_the_end() -> None:
    done = subprocess.run(program(closing_s=0.5, more=True), capture_output=True, check=False, timeout=HANG_S)
    assert done.returncode == 1


def test_a_process_that_ends_is_left_alone() -> None:
    done = subprocess.run(program(stuck=False), capture_output=True, check=True, timeout=HANG_S)
    assert (done.stdout, done.stderr) == (b"ready\n", b"")


@linux
def test_signals_of_a_forked_child_do_not_count() -> None:
    """Ctrl-C reaches all processes of a terminal: the parent's first one is not its second."""
    with subprocess.Popen(program(forking=True), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _wait_until(partial(_has_received, process, signal.SIGINT))
        for _ in range(30):  # more than `closing_s` of them
            assert process.stdout.readline() == "tick\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_S)
    assert process.returncode == 1


def test_the_reader_of_messages_may_be_stuck_too() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"full" * 1024)
    os.set_blocking(writer, True)
    done = subprocess.run(program(more=True), stdout=subprocess.DEVNULL, stderr=writer, check=False, timeout=HANG_S)
    assert done.returncode == 1
    os.close(reader)
    os.close(writer)


@linux
def test_an_endless_graph_is_left_at_the_second_ctrl_c(tiny_bundle: Path, tmp_path: Path) -> None:
    """The first interrupts the command, which then waits for the step that never ends; the second ends the wait."""
    bundle = shutil.copytree(tiny_bundle, tmp_path / "endless")
    for graph in bundle.rglob("encoder*.onnx"):
        edit_graph(bundle, str(graph.relative_to(bundle)), loop_forever)
    command = [*JUMOK, "translate", "--bundle", str(bundle)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"\n"  # the bundle is open
        before = _cpu_s(process.pid)
        process.stdin.write(b"a man\n")
        process.stdin.flush()
        _wait_until(lambda: _cpu_s(process.pid) > before + 1)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            _wait_until(partial(_has_received, process, signal.SIGINT))
        _, error = process.communicate(timeout=HANG_S)
    # Python may see both as one interrupt; then it waits on, and is ended.
    assert (process.returncode, error) == (130, b"") or (process.returncode == 1 and b"the process ends now" in error)


def _has_received(process: subprocess.Popen[Any], number: signal.Signals) -> bool:
    """True if a signal has reached a process, or the process has ended; two that wait at once become one."""
    return process.poll() is not None or not _is_pending(process.pid, number)


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_pending(process: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    [pending] = [line.split()[1] for line in lines if line.startswith("ShdPnd")]
    return bool(int(pending, 16) >> (number - 1) & 1)


def _wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
