"""The figures that all benchmarks rest on: ratios, rounds, percentiles, intervals."""

from dataclasses import replace

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from benchmarks.common.bootstrap import score
from benchmarks.common.closed_loop import Measured
from benchmarks.common.processes import Contender, Process, Program
from benchmarks.common.ratios import Ratio, against, aligned, markdown, ratio, turns
from benchmarks.common.rounds import Cell, Contenders, measure_rests, run_cell
from benchmarks.contenders.worker import Task, Turn
from benchmarks.serving import BATCHING, JUMOK, OFFLINE, PLAIN, comparisons, figures
from tests.parity.texts import parallel_sentences

CELL = Cell(model="Marian", batch=8, beam=4)
TASK = Task(texts=["a"], tokens=[["a", "</s>"]], beam_size=4, min_length=2, max_length=2, least_s=0.0)


def test_a_ratio_is_taken_round_by_round() -> None:
    assert ratio([1.0, 2.0, 4.0], [2.0, 2.0, 2.0]) == Ratio(median=1.0, lowest=0.5, highest=2.0)
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0, 4.0], [3.0, 2.0])
    assert (against(1.6, 1.5), against(1.6, 1.5, at_least=False), against(1.6, None)) == (
        "1.50 met",
        "1.50 missed",
        "-",
    )


def test_contenders_take_turns_in_rotating_order(capsys: pytest.CaptureFixture[str]) -> None:
    found = [*turns("abc", 2)]
    assert found == [(0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "c"), (1, "a"), (2, "c"), (2, "a"), (2, "b")]
    told = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == ["round 0 of 2", "round 1 of 2", "round 2 of 2"]


def test_tables() -> None:
    rows = [["a", "b", "c"], ["long", "b", "1"]]
    assert aligned(rows) == "a     b  c\nlong  b  1"
    assert markdown(rows) == "| a | b | c |\n| --- | --- | --- |\n| long | b | 1 |"


class Scripted(Process):
    """A process with scripted times that records its turns."""

    def __init__(self, program: Program, seconds: float, asked: list[str]) -> None:
        super().__init__(program)
        self._seconds = seconds
        self._asked = asked

    def measure(self, task: Task) -> Turn:
        self._asked.append(f"{self.program.name}{task.batch_size or ''}")
        return Turn(seconds=[self._seconds], tokens=[[self.program.name[:1]]], resident=1, peak=2)


def test_the_fastest_settings_take_part_in_the_rounds() -> None:
    times = {"jumok": 1.0, "c1": 4.0, "c2": 2.0, "c3": 3.0, "generate": 9.0}
    asked: list[str] = []
    each = {name: Contender(program=Program(name=name, module="", arguments=()), size=1) for name in times}
    field = Contenders(
        ours={"int8": each["jumok"]},
        peers={"int8": [each["c1"], replace(each["c1"], batch_size=8, beyond=8), each["c2"], each["c3"]]},
        generate=each["generate"],
    )
    processes: dict[Program, Process] = {
        one.program: Scripted(one.program, times[name], asked) for name, one in each.items()
    }
    [(found, our, their)] = run_cell(CELL, TASK, field, processes, rounds=3)
    assert (our.tokens, their.tokens, found.same) == ([["j"]], [["c"]], 0.0)
    assert asked[:4] == ["jumok", "c1", "c2", "c3"]  # smaller batches equal others in this cell
    assert asked[4:8] == ["jumok", "c2", "c3", "generate"]
    assert asked[8:12] == ["c2", "c3", "generate", "jumok"]
    assert (found.peer, found.to_peer, found.preselection) == (
        "c2",
        Ratio(median=2.0, lowest=2.0, highest=2.0),
        {"c1": 4.0, "c2": 2.0, "c3": 3.0},
    )


def test_a_call_after_a_rest_is_compared_with_those_right_after_it() -> None:
    """The machine becomes slower with each call, and a call after a rest takes a tenth more."""
    calls: list[float] = []

    def call(rests_s: object) -> list[float]:
        calls.extend(rests_s)  # type: ignore[arg-type]
        return [0.03 * 1.004**place * (1.1 if rest_s else 1) for place, rest_s in enumerate(calls)]

    found = measure_rests("model", "service", {0.5: 9}, call)
    assert len(found.seconds[0.5]) == 9
    assert found.ratios[0.5] == pytest.approx(1.1, rel=0.02)


def measured(latencies_s: list[float], *, wall_s: float, cpu_s: float) -> Measured:
    count = len(latencies_s)
    return Measured(latencies_s=latencies_s, sentences=count, wall_s=wall_s, cpu_s=cpu_s, client_cpu_s=0.0)


def test_figures_are_medians_of_rounds_and_percentiles_of_all_answers() -> None:
    rounds = [
        measured([0.1, 0.2, 0.3, 0.4], wall_s=1.0, cpu_s=2.0),
        measured([0.5, 0.6, 0.7, 0.8], wall_s=2.0, cpu_s=1.0),
        measured([0.9, 1.0], wall_s=0.5, cpu_s=0.5),
    ]
    found = figures(8, JUMOK, rounds, setting=None, peak_rss_mib=100.0)
    assert (found.sentences_a_second, found.sentences_a_cpu_second) == (4.0, 4.0)
    assert (found.p50_ms, found.p99_ms) == (500.0, 1000.0)


def test_ratios_are_held_against_goals() -> None:
    ours = [measured([0.1] * 8, wall_s=1.0, cpu_s=1.0), measured([0.2] * 8, wall_s=1.0, cpu_s=1.0)]
    theirs = [measured([0.4] * 8, wall_s=4.0, cpu_s=1.0), measured([0.4] * 8, wall_s=8.0, cpu_s=0.5)]
    found = comparisons(64, {JUMOK: ours, PLAIN: theirs, BATCHING: theirs, OFFLINE: theirs})
    offline, plain, batching, *latencies = found
    assert [(each.median, each.goal, each.reached) for each in (offline, plain, batching)] == [
        (0.75, ">= 0.9", False),
        (6.0, ">= 5", True),
        (6.0, ">= 1.4", True),
    ]
    assert [each.goal for each in latencies] == [None, "< 1", None, "< 1"]
    assert [each.median for each in latencies] == pytest.approx([0.375] * 4)


@pytest.mark.parametrize("metric", [BLEU(), CHRF()], ids=["BLEU", "chrF"])
def test_scores_and_intervals_are_those_of_sacrebleu(metric: BLEU | CHRF) -> None:
    references = [one.german for one in parallel_sentences(80, seed=4)]
    worse = [" ".join(one.split()[: 3 + place % 5]) for place, one in enumerate(references)]
    found, perfect = score(metric, worse, references), score(metric, references, references)
    expected = metric.corpus_score(worse, [references], n_bootstrap=1000)
    low, high = found.interval
    assert found.value == pytest.approx(expected.score)
    assert (low + high) / 2 == pytest.approx(expected._mean, abs=0.3)
    assert (high - low) / 2 == pytest.approx(expected._ci, abs=0.3)
    # Both systems are scored on the same resamples, so the difference from itself has no width.
    assert found.over(found) == (0, (0, 0))
    gain, (least, most) = perfect.over(found)
    assert (gain, least, most) == pytest.approx((100 - found.value, 100 - high, 100 - low))
