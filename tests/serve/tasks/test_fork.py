"""A translator in a process that was forked from the one that made it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hang import HANG_S

PROGRAM = """
import os, sys
from jumok_proto.errors import FailedPreconditionError
from jumok_serve import Translator

with Translator(sys.argv[1], threads=1) as translator:
    translator.translate("a man", max_length=5)
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    else:
        for call in (
            lambda: translator.translate("a man", timeout_s=5),
            lambda: translator.translate("a man", split_sentences=True),
            lambda: translator.score("a man", "ein mann"),
            lambda: translator.align("a man"),
        ):
            try:
                call()
            except FailedPreconditionError as error:
                print(error)
        try:
            Translator(sys.argv[1], threads=1)
        except FailedPreconditionError as error:
            print(error)
        if sys.argv[2] == "del":
            del translator
        else:
            sys.exit(3)
if child:
    print(status)
"""


@pytest.mark.parametrize(("end", "status"), [("exit", "3"), ("del", "0")])
def test_a_forked_process_is_refused_at_once_and_ends(end: str, status: str, tiny_bundle: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, str(tiny_bundle), end],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    refusal = (
        "the translator of 'tiny-en-de' was made before this process was forked, and its threads stayed behind: "
        "make it after the fork, in each worker"
    )
    other = (
        "a translator was made before this process was forked, and ONNX Runtime's threads stayed behind: make "
        "translators after the fork only, or start processes by spawn"
    )
    assert ran.stdout.splitlines() == [*[refusal] * 4, other, status]
