"""The benchmark of corpus jobs: it kills them at random moments, and notices a line that is lost or wrong."""

import asyncio
import json
import random
import sys
from pathlib import Path

import pytest

from benchmarks.scale import corpus_job
from jumok_serve.translator import Translator

WORDS = ["a man", "two young males", "in a blue shirt", "a dog", "on the beach"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_job_that_is_killed_at_random_moments_ends_complete_and_in_order(
    seed: int, tiny_bundle: Path, tmp_path: Path
) -> None:
    rows, block_rows, kills = 6_000, 200, 4
    chosen = random.Random(seed)
    texts = [" ".join(chosen.choices(WORDS, k=2)) for _ in range(rows)]
    with Translator(tiny_bundle, threads=1) as translator:
        distinct = sorted(set(texts))
        translated = translator.translate(distinct, beam_size=1, max_length=5)
    expected = dict(zip(distinct, (each.text for each in translated), strict=True))
    source, out = tmp_path / "source.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"id": row, "text": text}) + "\n" for row, text in enumerate(texts)))
    command: list[str | Path] = [
        *(*corpus_job.JUMOK, "translate-corpus", source, "--out", out, "--bundle", tiny_bundle),
        *("--beam-size", "1", "--max-length", "5", "--block-rows", str(block_rows)),
    ]
    met = corpus_job.kill_and_resume(command, kills=kills, blocks=rows // block_rows, pause_s=0.1, seed=seed)
    assert met == kills
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in found] == list(range(rows))
    assert [row["translation"] for row in found] == [expected[text] for text in texts]


def test_a_job_that_cannot_go_on_is_an_error() -> None:
    command: list[str | Path] = [*corpus_job.JUMOK, "translate-corpus", "no-such-file.txt", "--out", "out.txt"]
    with pytest.raises(ChildProcessError, match="no-such-file"):
        corpus_job.kill_and_resume(command, kills=0, blocks=1, pause_s=0.0, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_both_are_measured_and_a_lost_line_is_noticed(
    lost: bool, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{word} {number % 3}" for number in range(4) for word in WORDS]
    if lost:  # the program translates a file without its last line
        program = "import pathlib, runpy, sys; p = pathlib.Path(sys.argv[2]); p.write_text(''.join("
        program += "p.read_text().splitlines(True)[:-1])); runpy.run_module('jumok', run_name='__main__')"
        monkeypatch.setattr(corpus_job, "JUMOK", (sys.executable, "-c", program))
    complete = asyncio.run(corpus_job.measure(tiny_bundle, tmp_path, texts, rounds=1, kills=0, seed=1))
    assert complete is not lost
    printed = capsys.readouterr().out
    assert [line.split("  ")[0] for line in printed.splitlines()[1:4]] == [
        corpus_job.ITERATION,
        corpus_job.COMMAND,
        corpus_job.WITH_BUNDLE,
    ]
