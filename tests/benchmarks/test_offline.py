"""The offline benchmark: end to end on a tiny model, and its arithmetic."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("transformers", minversion="5", reason="its generate is a contender")
pytest.importorskip("ctranslate2")

import ctranslate2
import torch

from benchmarks.common.processes import Contender, Process, Program
from benchmarks.common.random_marian import MarianSizes, sentences, source_tokens
from benchmarks.common.ratios import (
    NO_FIGURES,
    Cell,
    CellResult,
    Memory,
    Ratio,
    Trial,
    memory_table,
    ratio,
    ratio_table,
    with_goals,
)
from benchmarks.common.rounds import ENVIRONMENTS, Contenders, run_cell, runs_on, spelled, useful_environments
from benchmarks.common.trained import dequantized, specification
from benchmarks.common.trained_checkpoint import save_checkpoint
from benchmarks.contenders.shortlists import MadeUpLexicon, save_vocabulary_map
from benchmarks.contenders.worker import Task, Turn, take_turn
from jumok_export.graphs.quantize_matrix import MAX_WEIGHT
from jumok_export.models.transformer import Transformer, TransformerSizes
from jumok_export.training.corpus import pad
from jumok_export.training.greedy import greedy_decode
from jumok_export.training.vocabulary import END, PAD, START, UNKNOWN, Vocabulary
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.manifest import SpecialTokens
from jumok_serve.tokenizers.tokenizer import SentencePieceTokenizer
from tests.support.hang import HANG_S

ROOT = Path(__file__).parents[2]
CELL = Cell(model="Marian", batch=8, beam=4)
TASK = Task(texts=["a"], tokens=[["a", "</s>"]], beam_size=4, min_length=2, max_length=2, least_s=0.0)


def test_every_cell_is_run_and_recorded(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.offline", "--quick", "--cells", "1x1", "3x2", "--rounds", "2"]
    files = ["--json", str(tmp_path / "offline.json"), "--plot", str(tmp_path / "offline.png")]
    done = subprocess.run(
        [*command, "--threads", "1", *files], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "offline.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "offline.json").read_text(encoding="utf-8"))
    result = [(each["cell"]["batch"], each["cell"]["beam"], each["precision"]) for each in record["cells"]]
    assert result == [(batch, beam, precision) for batch, beam in ((1, 1), (3, 2)) for precision in ("int8", "fp32")]
    for each in record["cells"]:
        assert [len(times) for times in (each["ours"], each["generate"], *each["peers"].values())] == [2, 2, 2]
        ratios = [their / our for our, their in zip(each["ours"], each["peers"][each["peer"]], strict=True)]
        assert each["to_peer"]["lowest"] == min(ratios)
        assert each["to_peer"]["highest"] == max(ratios)
    assert [each["same"] for each in record["cells"] if each["precision"] == "fp32"] == [1.0, 1.0]
    assert [each["name"] for each in record["memory"] if each["precision"] == "int8"] == [
        "jumok int8",
        "CTranslate2 int8 1x1",
    ]
    assert [each["name"] for each in record["rests"]] == [
        *(f"{side} {precision}" for precision in ("int8", "fp32") for side in ("jumok", "CTranslate2")),
        "control",
    ]
    assert [len(pairs) for pairs in record["rests"][0]["seconds"].values()] == [2]
    assert "after 0.05 s" in done.stdout
    assert done.stdout.startswith(f"{NO_FIGURES}\n")
    assert not {"met", "missed"} & {*done.stdout.split()}
    assert " to " not in done.stdout.partition("ratio (range)")[2].partition("\n\n")[0]
    for each in record["memory"]:
        assert each["peak"] > 10 * 2**20
        assert each["size"] > 10_000


def test_texts_have_the_requested_length() -> None:
    sizes = MarianSizes(vocabulary=300)
    texts = sentences(sizes, 5, tokens=20, seed=0)
    assert texts == sentences(sizes, 6, tokens=20, seed=0)[:5]
    assert {len(source_tokens(text)) for text in texts} == {20}


def test_a_ratio_is_taken_round_by_round() -> None:
    assert ratio([1.0, 2.0, 4.0], [2.0, 2.0, 2.0]) == Ratio(median=1.0, lowest=0.5, highest=2.0)
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0, 4.0], [3.0, 2.0])


def result(**changes: Any) -> CellResult:
    made_up = CellResult(
        cell=CELL,
        precision="int8",
        ours=[1.0, 1.0, 1.0],
        peers={"1x2": [1.0, 2.0, 9.0], "2x1": [1.5, 1.6, 1.7]},
        preselection={"1x2": 1.0, "2x1": 1.5},
        generate=[6.5, 7.0, 8.0],
        same=0.5,
    )
    return replace(made_up, **changes)


def test_the_peer_is_the_setting_with_the_lowest_median() -> None:
    assert result().peer == "2x1"
    assert result().to_peer == Ratio(median=1.6, lowest=1.5, highest=1.7)
    assert result().to_generate == Ratio(median=7.0, lowest=6.5, highest=8.0)
    assert result(generate=[]).to_generate is None


@pytest.mark.parametrize(
    ("precision", "batch", "expected"), [("int8", 1, 1.8), ("int8", 8, 1.5), ("fp32", 1, 1.0), ("fp32", 128, 1.15)]
)
def test_goals_depend_on_precision_and_batch(precision: str, batch: int, expected: float) -> None:
    found = with_goals(result(precision=precision, cell=replace(CELL, batch=batch)))
    assert found.goal == expected
    assert found.generate_goal == (6.0 if precision == "int8" else None)


def test_the_table_says_which_goals_are_met() -> None:
    rows = [with_goals(result()), with_goals(result(ours=[2.0, 2.0, 2.0], generate=[])), result(bleu=(38.6, 38.7))]
    _, met, missed, without = (" ".join(line.split()) for line in ratio_table(rows).splitlines())
    assert met.startswith("Marian 8 x 4 int8 1000 1600 2x1 1.60 (1.50 to 1.70) 1.50 met")
    assert "7.00 (6.50 to 8.00) 6.00 met" in met
    assert "0.80 (0.75 to 0.85) 1.50 missed" in missed
    assert without.endswith("50% BLEU 38.60 / 38.70")


def test_memory_is_compared_in_one_precision_with_the_peers_that_were_best() -> None:
    def memory(name: str, peak: int, size: int, **changes: Any) -> Memory:
        whole = Memory(model="Marian", name=name, precision="int8", peak=peak << 20, size=size << 20)
        return replace(whole, **changes)

    table = memory_table(
        [
            memory("jumok int8", 130, 55),
            memory("CTranslate2 int8 2x1", 100, 50),
            memory("jumok fp32", 500, 220, precision="fp32"),
        ]
    )
    _, ours, peer, of_fp32 = (line.split() for line in table.splitlines())
    assert ours == ["Marian", "jumok", "int8", "130", "55"]
    assert peer[1:] == ["CTranslate2", "int8", "2x1", "100", "1.30", "1.20", "missed", "50", "1.10", "1.20", "met"]
    assert of_fp32[-1] == "220"


def test_instructions_that_a_processor_lacks_are_not_tried() -> None:
    left_out = [each for each in ENVIRONMENTS if not runs_on(each, ["fma", "avx2"])]
    assert left_out == [{"CT2_FORCE_CPU_ISA": "AVX512"}]
    assert all(runs_on(each, ["avx2", "avx512f"]) for each in ENVIRONMENTS)


def test_helpful_environments_take_part() -> None:
    """Of the first two, one is 10 % faster in one cell; the third is slower with the best number of workers."""
    small = replace(CELL, batch=1)
    times = {
        ("", "1x2", small): 1.0,
        ("", "2x1", small): 2.0,
        ("", "2x1", CELL): 3.0,
        (spelled(ENVIRONMENTS[0]), "1x2", small): 0.99,
        (spelled(ENVIRONMENTS[1]), "1x2", small): 1.5,
        (spelled(ENVIRONMENTS[1]), "2x1", CELL): 2.7,
        (spelled(ENVIRONMENTS[2]), "2x1", small): 1.1,
    }
    trials = [
        Trial(cell=cell, precision="int8", threads=threads, environment=environment, seconds=seconds)
        for (environment, threads, cell), seconds in times.items()
    ]
    assert useful_environments(trials, "int8") == [{}, ENVIRONMENTS[1]]
    assert useful_environments(trials, "fp32") == [{}]


class Scripted(Process):
    """A process with scripted times that records its turns."""

    def __init__(self, program: Program, seconds: float, asked: list[str]) -> None:
        super().__init__(program)
        self._seconds = seconds
        self._asked = asked

    def measure(self, task: Task) -> Turn:
        self._asked.append(f"{self.program.name}{task.batch_size or ''}")
        return Turn(seconds=[self._seconds], tokens=[[self.program.name[:1]]], resident=1, peak=2)


def test_the_fastest_settings_take_turns_in_rotating_order() -> None:
    def rounds(cell: Cell) -> tuple[CellResult, list[str]]:
        times = {"jumok": 1.0, "c1": 4.0, "c2": 2.0, "c3": 3.0, "generate": 9.0}
        asked: list[str] = []
        each = {name: Contender(program=Program(name=name, module="", arguments=()), size=1) for name in times}
        smaller = replace(each["c1"], batch_size=8, beyond=8)
        field = Contenders(
            ours={"int8": each["jumok"]},
            peers={"int8": [each["c1"], smaller, each["c2"], each["c3"]]},
            generate=each["generate"],
        )
        assert [program.name for program in field.programs] == list(times)
        processes: dict[Program, Process] = {
            one.program: Scripted(one.program, times[name], asked) for name, one in each.items()
        }
        [(found, our, their)] = run_cell(cell, TASK, field, processes, rounds=3, progress=lambda _: None)
        assert (our.tokens, their.tokens) == ([["j"]], [["c"]])
        return found, asked

    found, asked = rounds(CELL)
    assert asked[:4] == ["jumok", "c1", "c2", "c3"]
    assert asked[4:8] == ["jumok", "c2", "c3", "generate"]
    assert asked[8:12] == ["c2", "c3", "generate", "jumok"]
    assert asked[12:] == ["c3", "generate", "jumok", "c2"]
    assert found == CellResult(
        cell=CELL,
        precision="int8",
        ours=[1.0] * 3,
        peers={"c2": [2.0] * 3, "c3": [3.0] * 3},
        preselection={"c1": 4.0, "c2": 2.0, "c3": 3.0},
        generate=[9.0] * 3,
        same=0.0,
    )
    found, asked = rounds(replace(CELL, batch=32))
    assert asked[:5] == ["jumok", "c1", "c18", "c2", "c3"]
    assert list(found.preselection) == ["c1", "c1 of 8 sentences", "c2", "c3"]
    assert (found.generate, asked.count("generate")) == ([9.0] * 3, 3)


@pytest.mark.parametrize(("least_s", "runs"), [(0.0, 1), (1e-9, 1), (1e-3, 2)])
def test_a_turn_lasts_for_the_requested_time(least_s: float, runs: int) -> None:
    ends = iter([0.0, 0.5e-3, 1.0, 1.0 + 0.6e-3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: next(ends))
        turn = take_turn(lambda task: lambda: task.tokens, replace(TASK, least_s=least_s))
    assert turn.seconds == pytest.approx([0.5e-3, 0.6e-3][:runs])
    assert turn.tokens == TASK.tokens
    assert turn.peak >= turn.resident > 0


def test_the_output_of_a_failed_contender_is_reported() -> None:
    program = Program(name="jumok int8", module="benchmarks.contenders.jumok_side", arguments=("/nowhere", "int8"))
    with Process(program) as process, pytest.raises(ChildProcessError, match=r"jumok int8 has failed:(.|\n)*nowhere"):
        process.measure(TASK)


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_weights_of_a_bundle_come_back(
    calibrated: bool,
    tiny_model: Transformer,
    export_tiny: Callable[..., Bundle],
    sentences: tuple[Sequence[str], Sequence[str]],
    tmp_path: Path,
) -> None:
    """Each within half a scale of its row."""
    folder = tmp_path / "bundle"
    export_tiny(folder, calibration=sentences[0] if calibrated else None)
    configuration = (ROOT / "tests/data/tiny.toml").read_text(encoding="utf-8")
    (folder / "config.toml").write_text(configuration, encoding="utf-8")
    with pytest.raises(ValueError, match=r"have no weights for target_embedding\.weight, encoder"):
        dequantized(folder)
    sizes = configuration.replace("width = 16", "width = 32").replace("feed_forward = 16", "feed_forward = 64")
    (folder / "config.toml").write_text(sizes, encoding="utf-8")
    found = dequantized(folder).state_dict()
    assert found.keys() == tiny_model.state_dict().keys()
    for name, weight in tiny_model.state_dict().items():
        level = weight.abs().amax(dim=-1, keepdim=True) / MAX_WEIGHT if weight.dim() == 2 else torch.tensor(0.0)
        assert bool(((found[name] - weight).abs() <= 0.501 * level).all()), name


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_ctranslate2_has_the_same_model(
    norm: Literal["pre", "post"], tiny_model: Transformer, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    tokenizer = SentencePieceTokenizer(vocabulary.model)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = TransformerSizes(**{**vars(tiny_model.sizes), "norm": norm})
        model = tiny_model if norm == "pre" else Transformer(sizes).eval()
    spec = specification(model, tokenizer.tokens(range(tokenizer.vocab_size)))
    spec.validate()
    spec.optimize("float32")
    spec.save(str(tmp_path))
    translator = ctranslate2.Translator(str(tmp_path), compute_type="float32", inter_threads=1, intra_threads=1)
    texts = ["The cat sleeps.", "The dog runs.", "A bird sings."]
    sources = [[*tokenizer.encode(text), END] for text in texts]
    found = translator.translate_batch(
        [tokenizer.source_tokens(source) for source in sources], beam_size=1, max_decoding_length=20
    )
    expected = greedy_decode(model, *pad([torch.tensor(source) for source in sources]), 20)
    for result, token_ids in zip(found, expected, strict=True):
        assert result.hypotheses[0] == tokenizer.tokens([token for token in token_ids if token != END])


def test_generate_has_the_same_model(tiny_model: Transformer, vocabulary: Vocabulary, tmp_path: Path) -> None:
    tokenizer = SentencePieceTokenizer(vocabulary.model)
    tokens = tokenizer.tokens(range(tokenizer.vocab_size))
    special = SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN)
    save_checkpoint(tiny_model, tokens, special, tmp_path)
    sources = [[*tokenizer.encode(text), END] for text in ("A bird sings.", "The cat sleeps on the mat.", "Two dogs.")]
    task = replace(
        TASK, tokens=[tokenizer.source_tokens(source) for source in sources], beam_size=1, min_length=0, max_length=20
    )
    program = Program(
        name="generate fp32", module="benchmarks.contenders.generate_side", arguments=(str(tmp_path), "1")
    )
    with Process(program) as process:
        found = process.measure(replace(task, batch_size=2)).tokens
    expected = greedy_decode(tiny_model, *pad([torch.tensor(source) for source in sources]), 20)
    assert found == [tokenizer.tokens([token for token in token_ids if token != END]) for token_ids in expected]


def test_with_shortlists_both_sides_have_the_same_lists(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.offline", "--quick", "--shortlist", "--cells", "1x1"]
    command += ["--rounds", "1", "--threads", "1", "--precision", "fp32", "--keep", str(tmp_path)]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "offline.json")],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("With shortlists\n")
    [result] = json.loads((tmp_path / "offline.json").read_text(encoding="utf-8"))["cells"]
    assert (result["same"], result["goal"], result["generate"]) == (1.0, None, [])
    made = tmp_path / "tiny-shortlist"
    assert (made / "ctranslate2-float32" / "vmap.txt").read_bytes() == (made / "vmap.txt").read_bytes()


def test_a_vocabulary_map_is_a_bundles_shortlist(listed_bundle: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(listed_bundle)
    shortlist, tokenizer = bundle.shortlist(), bundle.tokenizer
    save_vocabulary_map(bundle, tmp_path / "vmap.txt")
    lines = dict(line.split("\t") for line in (tmp_path / "vmap.txt").read_text(encoding="utf-8").splitlines())
    ids = {token: index for index, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
    listed = {token: {ids[target] for target in targets.split(" ")} for token, targets in lines.items()}
    for source, token in enumerate(tokenizer.source_tokens(range(tokenizer.source_vocab_size))):
        assert listed[""] | listed.get(token, set()) == {*shortlist.of([source]).tolist()}


def test_a_made_up_lexicon_has_lists_of_many_lengths_that_overlap(vocabulary: Vocabulary) -> None:
    tokenizer = SentencePieceTokenizer(vocabulary.model)
    lexicon = MadeUpLexicon().lexicon(tokenizer, lambda _: None)
    again = MadeUpLexicon().lexicon(tokenizer, lambda _: None)
    assert lexicon.targets.tolist() == again.targets.tolist()
    shortlist = lexicon.shortlist(tokenizer, best=100, frequent=5, always=[END], never=[])
    lists = [shortlist.of([source]) for source in range(len(vocabulary))]
    assert len({len(listed) for listed in lists}) > 5
    assert 40 < max(map(len, lists)) <= 107
