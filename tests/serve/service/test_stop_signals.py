"""A process that does not stop ends after a second signal."""

import signal
import subprocess
import sys

import pytest

from tests.support.hang import HANG_S

PROGRAM = """
import os, signal, time
from jumok_serve.service.stop_signals import STOP_SIGNALS, ending_at_second_signal
for number in STOP_SIGNALS:
    signal.signal(number, lambda *_: None)
with ending_at_second_signal(float({closing_s})):
    print("ready", flush=True)
    while {stuck}:
        time.sleep(0.02)
        print("tick", flush=True)
        if {more}:
            os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_ends_a_stuck_process(signals: tuple[signal.Signals, ...]) -> None:
    """Its handlers do nothing, and its main thread never ends."""
    command = [sys.executable, "-c", PROGRAM.format(closing_s=0.1, stuck=True, more=False)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in signals:
            process.send_signal(number)
            assert process.stdout.readline()
            assert process.stdout.readline()
        _, error = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert "still closing 0.1 s after the second signal; the process ends now" in error


def test_further_signals_do_not_delay_the_end() -> None:
    command = [sys.executable, "-c", PROGRAM.format(closing_s=0.5, stuck=True, more=True)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 1


def test_a_process_that_ends_is_left_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(closing_s=0, stuck=False, more=False)],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    assert done.stdout == "ready\n"
