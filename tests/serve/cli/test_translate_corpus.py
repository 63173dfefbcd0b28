"""``jumok translate-corpus`` with a bundle and a server: killed, resumed, and equal to ``translate_iter``."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jumok import Client
from tests.serve.cli.conftest import Places
from tests.serve.text.test_long_sentences import LONG
from tests.support.command import run, run_here
from tests.support.hang import HANG_S

OPTIONS = ("--beam-size", "2", "--max-length", "5", "--block-rows", "32")
SEED = 11


@pytest.fixture(scope="module")
def texts() -> list[str]:
    words = ["a man", "two young males", "in a blue shirt", "a dog", "on the beach"]
    chosen = random.Random(SEED)
    return [" ".join(chosen.choices(words, k=1 + number % 3)) for number in range(400)]


@pytest.fixture(scope="module")
def expected(server: str, texts: list[str]) -> list[str]:
    with Client(server) as client:
        return [result.translation.text for result in client.translate_iter(texts, beam_size=2, max_length=5)]


KILLED = """
import os, signal, sys
from jumok.commands.corpus.job import Job
left, add_block = int(sys.argv.pop(1)), Job.add_block
def add(*arguments):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    add_block(*arguments)
Job.add_block = add
from jumok.__main__ import main
main()
"""


def killed(blocks: int, *arguments: str | Path) -> None:
    """Run a command that is killed after a number of finished blocks."""
    command = [sys.executable, "-c", KILLED, str(blocks), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=HANG_S)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("target", ["bundle", "server"])
def test_a_killed_job_goes_on_to_the_whole_output(
    target: str, places: Places, texts: list[str], expected: list[str], tmp_path: Path
) -> None:
    source, out = tmp_path / "source.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)))
    command = ("translate-corpus", source, "--out", out, *places[target], *OPTIONS, "--score-column", "score")
    kill_after = random.Random(target)
    killed(kill_after.randint(1, 4), *command)
    killed(kill_after.randint(1, 4), *command)
    assert not out.exists()
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().startswith(f"going on with {out}.unfinished\n")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(len(texts)))
    assert [row["text"] for row in rows] == texts
    assert [row["translation"] for row in rows] == expected
    assert all(isinstance(row["score"], float) for row in rows)


def test_texts_that_the_model_refuses_are_reported(places: Places, tmp_path: Path) -> None:
    source = tmp_path / "source.txt"
    source.write_text("a man\n" + "a man " * 200 + "\n\na dog\n")
    written = []
    for name, where in places.items():
        out = tmp_path / f"{name}.txt"
        done = run_here("translate-corpus", source, "--out", out, *where, "--no-split-sentences", *OPTIONS)
        assert done.returncode == 0, done.stderr
        long, empty = map(json.loads, (tmp_path / f"{name}.txt.errors.jsonl").read_text().splitlines())
        assert (long["row"], empty) == (2, {"file": str(source), "row": 3, "reason": "has no content"})
        assert "tokens" in long["reason"]
        written.append(out.read_text())
    first, second = written
    assert first == second
    assert [bool(line) for line in first.split("\n")] == [True, False, False, True, False]


def test_other_options_do_not_go_on_with_a_job(tiny_bundle: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "source.txt", tmp_path / "out.txt"
    source.write_text("a man\n" * 100)
    command = ("translate-corpus", source, "--out", out, "--bundle", tiny_bundle, *OPTIONS)
    killed(1, *command)
    other = run_here(*command, "--beam-size", "1", "--precision", "fp32")
    assert other.returncode == 1
    message = "was begun with beam_size 2, not 1, precision None, not 'fp32'; give the settings of its beginning"
    assert message in other.stderr.decode()
    assert run_here(*command).returncode == 0
    assert len(out.read_text().splitlines()) == 100
    again = run_here(*command)
    assert again.returncode == 1
    assert again.stderr.decode() == f"Error: {out} exists already: remove it, or choose another --out\n"


def test_rows_that_are_cut_are_counted(tiny_bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text(f"a dog\n{LONG} {LONG}\na man\n{LONG}\n", encoding="utf-8")
    command = ("translate-corpus", source, "--bundle", tiny_bundle, *OPTIONS[:-1], "2")
    for option, warning in (
        ("--cut-long-sentences", "sentences too long for the model, cut into parts: 3; --no-cut-long-sentences"),
        ("--truncate", "texts too long for the model, with ends left out: 2; without --truncate, sentences are cut"),
    ):
        done = run_here(*command, option, "--out", tmp_path / option)
        assert done.returncode == 0
        assert f"Warning: {tmp_path / option}: {warning} " in done.stderr.decode()
