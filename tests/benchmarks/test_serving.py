"""The serving benchmark: end to end on a tiny model, and its arithmetic."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5", reason="models are made in its layout")
pytest.importorskip("ctranslate2")

import ctranslate2
import torch
from transformers import AutoTokenizer

import jumok
from benchmarks import serving as load
from benchmarks.common import closed_loop
from benchmarks.common.closed_loop import Answer, Decoding, Measured
from benchmarks.common.learned_ends import learn_to_end
from benchmarks.common.models import ServedModel, made_up
from benchmarks.common.processes import Server, ServerError, serving
from benchmarks.common.random_marian import MarianSizes, make_checkpoint
from benchmarks.common.ratios import NO_FIGURES
from benchmarks.common.report import (
    BARE,
    BATCHING,
    JUMOK,
    OFFLINE,
    PLAIN,
    Comparison,
    Figures,
    comparisons,
    figures,
    serving_table,
)
from benchmarks.common.trained import specification
from jumok_export.models.transformer import Transformer
from jumok_serve.bundle.bundle import Bundle
from tests.parity.checkpoints import MODEL
from tests.parity.run import quiet
from tests.support.hang import HANG_S

DECODING = Decoding(beam_size=4, max_length=20)
SMALL = MarianSizes(vocabulary=300, layers=1, width=64, feed_forward=64, heads=2, positions=128)


@pytest.fixture(scope="module")
def served(
    tiny_bundle: Path,
    tiny_model: Transformer,
    sentences: tuple[list[str], list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> ServedModel:
    tokenizer = Bundle.open(tiny_bundle).tokenizer
    converted = tmp_path_factory.mktemp("load") / "ctranslate2"
    converted.mkdir()
    spec = specification(tiny_model, tokenizer.tokens(range(tokenizer.vocab_size)))
    spec.validate()
    spec.optimize("int8")
    spec.save(str(converted))
    pieces = tiny_bundle / "tokenizer.model"
    return ServedModel(bundle=tiny_bundle, ctranslate2=converted, source=pieces, target=pieces, texts=sentences[0])


def peer(served: ServedModel) -> list[str | Path]:
    return [served.ctranslate2, "--source", served.source, "--target", served.target, "--max-decoding-length", "20"]


@pytest.fixture
def sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm")
def test_all_contenders_are_measured_and_recorded(
    served: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load, "served_random", lambda *_: served)
    monkeypatch.setattr(load, "DECODING", DECODING)
    files = ["--json", str(tmp_path / "load.json"), "--plot", str(tmp_path / "load.png")]
    plan = ["--quick", "--outstanding", "1", "3", "--rounds", "2", "--sentences", "5"]
    monkeypatch.setattr(sys, "argv", ["serving", *plan, *files])
    assert load.main() == 0
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "load.json").read_text(encoding="utf-8"))
    contenders = [JUMOK, BARE, PLAIN, BATCHING, OFFLINE]
    measured = [(each["outstanding"], each["contender"]) for each in record["figures"]]
    assert measured == [(outstanding, name) for outstanding in (1, 3) for name in contenders]
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{NO_FIGURES}\n")
    assert "ratio" not in printed.out.partition("\n")[2]
    for each in record["figures"]:
        assert f"{each['sentences_a_second']:.1f}" in printed.out
        assert each["sentences_a_cpu_second"] > 0
        if each["contender"] != OFFLINE:
            assert 0 < each["p50_ms"] <= each["p95_ms"] <= each["p99_ms"]
            assert 0 < each["decoding"] <= each["outstanding"]
            assert 2 <= each["tokens_a_sentence"] <= DECODING.max_length
            assert each["peak_rss_mib"] > 20
        assert (each["setting"] is None) == (each["contender"] in (JUMOK, BARE, OFFLINE))
    assert len(record["ratios"]) == 2 * 8
    assert [each["name"] for each in record["rests"]] == [JUMOK, PLAIN]
    assert "after 0.05 s" in printed.out
    assert "Marian, 3 outstanding, batching peer, round 2 of 2" in printed.err


@pytest.mark.parametrize("module", load.MODULES.values())
def test_peers_answer_what_ctranslate2_translates(module: str, served: ServedModel) -> None:
    tokenizer = Bundle.open(served.bundle).tokenizer
    translator = ctranslate2.Translator(str(served.ctranslate2), compute_type="int8", intra_threads=1)
    sources = [[*tokenizer.source_tokens(tokenizer.encode(text)), "</s>"] for text in served.texts]
    expected = [
        result.hypotheses[0] for result in translator.translate_batch(sources, beam_size=4, max_decoding_length=20)
    ]

    async def ask() -> list[jumok.Translation]:
        async with serving(module, *peer(served)) as server, jumok.AsyncClient(server.address) as client:
            return await asyncio.gather(*map(client.translate, served.texts))

    found = asyncio.run(ask())
    ids = {token: index for index, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
    # What is decoded together may be a rounding away from what is decoded alone.
    same = [
        list(translation.hypotheses[0].tokens) == [*pieces, "</s>"]
        for translation, pieces in zip(found, expected, strict=True)
    ]
    assert sum(same) >= 0.9 * len(same)
    for translation in found:
        *pieces, _ = translation.hypotheses[0].tokens
        assert translation.text == tokenizer.decode([ids[piece] for piece in pieces])
        assert translation.timings is not None
        assert translation.timings.total_s >= translation.timings.decode_s > 0


def test_the_number_of_outstanding_requests_is_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers four at a time would never answer fewer."""
    waiting: list[asyncio.Event] = []
    asked: list[str] = []

    async def ask(client: jumok.AsyncClient, text: str, decoding: Decoding) -> Answer:
        asked.append(text)
        number = len(asked)
        if number <= 16:
            waiting.append(asyncio.Event())
            if number in (4, 8, 12):
                for event in waiting:
                    event.set()
            await waiting[number - 1].wait()
        return Answer(latency_s=0.1, queue_s=0.0, busy_s=0.1, tokens=number)

    monkeypatch.setattr(closed_loop, "_ask", ask)
    here = Server(address="localhost:1", pid=os.getpid())
    measured = asyncio.run(closed_loop.load(here, "abc", DECODING, outstanding=4, sentences=8))
    assert "".join(asked) == "abcabcabcabcabca" + "a"  # 16 of them, and one that finds the server idle
    assert sorted(answer.tokens for answer in measured.answers) == list(range(5, 13))
    assert measured.sentences == 8
    assert measured.wall_s > 0


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_servers_stop_with_the_benchmark(number: signal.Signals, served: ServedModel) -> None:
    program = """
import asyncio, signal, sys
from benchmarks.common.processes import serving

async def wait():
    async with serving(*sys.argv[1:]) as server:
        print(server.pid, flush=True)
        await asyncio.Event().wait()

signal.signal(signal.SIGTERM, signal.default_int_handler)
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(wait())
"""
    root = Path(load.__file__).parents[1]
    command = [sys.executable, "-c", program, "benchmarks.contenders.plain_server", *map(str, peer(served))]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert running(pid)
        process.send_signal(number)
        process.wait(HANG_S)
    assert not running(pid)


def test_a_server_that_does_not_start_says_why() -> None:
    async def start() -> None:
        async with serving("benchmarks.contenders.plain_server", "/nowhere"):
            pass

    with pytest.raises(ServerError, match=r"benchmarks\.contenders\.plain_server does not serve(.|\n)*--source"):
        asyncio.run(start())


def test_a_servers_cost_is_measured() -> None:
    here = Server(address="", pid=os.getpid())
    before = here.cpu_s()
    sum(range(10**6))
    assert before < here.cpu_s()
    assert 10 < here.peak_rss_mib() < 10**5


def measured(latencies_s: Sequence[float], *, wall_s: float, cpu_s: float) -> Measured:
    answers = [Answer(latency_s=each, queue_s=each / 4, busy_s=each / 2, tokens=10) for each in latencies_s]
    return Measured(answers=answers, sentences=len(answers), wall_s=wall_s, cpu_s=cpu_s, client_cpu_s=wall_s / 10)


def test_figures_are_medians_of_rounds_and_percentiles_of_all_answers() -> None:
    rounds = [
        measured([0.1, 0.2, 0.3, 0.4], wall_s=1.0, cpu_s=2.0),
        measured([0.5, 0.6, 0.7, 0.8], wall_s=2.0, cpu_s=1.0),
        measured([0.9, 1.0], wall_s=0.5, cpu_s=0.5),
    ]
    found = figures("Marian", 8, JUMOK, rounds, setting=None, peak_rss_mib=100.0)
    assert replace(found, queue_ms=round(found.queue_ms or 0, 6), decoding=round(found.decoding or 0, 6)) == Figures(
        model="Marian",
        contender=JUMOK,
        outstanding=8,
        setting=None,
        sentences_a_second=4.0,
        tokens_a_second=40.0,
        tokens_a_sentence=10.0,
        p50_ms=500.0,
        p95_ms=1000.0,
        p99_ms=1000.0,
        queue_ms=137.5,
        decoding=0.65,
        cpu_s=1.0,
        sentences_a_cpu_second=4.0,
        cores=1.0,
        client_cores=0.1,
        peak_rss_mib=100.0,
    )
    offline = figures(
        "Marian", 8, OFFLINE, [replace(each, answers=()) for each in rounds], setting=None, peak_rss_mib=1
    )
    assert (offline.sentences_a_second, offline.p99_ms, offline.decoding, offline.client_cores) == (
        4.0,
        None,
        None,
        None,
    )


def test_ratios_are_taken_round_by_round_and_held_against_goals() -> None:
    ours = [measured([0.1] * 8, wall_s=1.0, cpu_s=1.0), measured([0.2] * 8, wall_s=1.0, cpu_s=1.0)]
    theirs = [measured([0.4] * 8, wall_s=4.0, cpu_s=1.0), measured([0.4] * 8, wall_s=8.0, cpu_s=0.5)]
    found = comparisons("Marian", 64, {JUMOK: ours, BARE: theirs, PLAIN: theirs, BATCHING: theirs, OFFLINE: theirs})
    offline, bare, plain, batching, *latencies = found
    assert offline == Comparison(
        model="Marian",
        what="sentences per CPU-second",
        contender=OFFLINE,
        outstanding=64,
        goal=">= 0.9",
        median=0.75,
        lowest=0.5,
        highest=1.0,
    )
    assert (offline.reached, bare.reached, plain.reached, batching.reached) == (False, False, True, True)
    assert (bare.what, bare.goal, bare.median, bare.lowest, bare.highest) == (
        "CPU time a sentence",
        "<= 1.05",
        1.5,
        1.0,
        2.0,
    )
    assert (plain.goal, plain.median, plain.lowest, plain.highest) == (">= 5", 6.0, 4.0, 8.0)
    assert batching.goal == ">= 1.4"
    assert [(each.what, each.contender, each.goal) for each in latencies] == [
        ("p50 latency", PLAIN, None),
        ("p99 latency", PLAIN, "< 1"),
        ("p50 latency", BATCHING, None),
        ("p99 latency", BATCHING, "< 1"),
    ]
    assert all(each.median == pytest.approx(0.375) for each in latencies)
    alone = comparisons("Marian", 1, {JUMOK: ours, BARE: theirs, PLAIN: theirs, BATCHING: theirs, OFFLINE: theirs})
    assert [each.goal for each in alone] == [None, None, None, None, "< 1", None, "< 1", None]
    shown = serving_table([figures("Marian", 64, JUMOK, ours, setting=None, peak_rss_mib=1)], found)
    [line] = [line for line in shown.splitlines() if OFFLINE in line]
    assert line.split()[-6:] == ["0.75", "0.50", "1.00", ">=", "0.9", "missed"]


def test_random_weights_end_about_where_their_sources_do(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    with quiet():
        make_checkpoint(SMALL, folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        learn_to_end(folder, [tokenizer(text)["input_ids"] for text in made_up(SMALL, 32, seed=0)])
        model: Any = MODEL.from_pretrained(folder)
        longer = []
        for text in made_up(SMALL, 6, seed=1):
            source = torch.tensor([tokenizer(text)["input_ids"]])
            [ids] = model.generate(source, num_beams=4, max_length=100, early_stopping=True)
            longer.append(len(ids) - 1 - source.shape[1])
    assert max(map(abs, longer)) < 20
    assert abs(sum(longer) / len(longer)) < 6
