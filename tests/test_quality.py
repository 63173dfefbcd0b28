"""The comparison of trained models: its plan, its measures by other ways to the same numbers, and its whole way."""

import copy
import gzip
import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import sacrebleu
import torch
from torch import nn
from torch.nn import functional as F

import quality
from jumok_export.attention import MultiHeadAttention
from jumok_export.configuration import ConfigurationError, RecurrentSection, load_configuration
from jumok_export.corpus import Batch, ParallelCorpus
from jumok_export.recurrent import RecurrentSizes, make_recurrent
from jumok_export.seq2seq import Seq2Seq
from jumok_export.transformer import Transformer
from jumok_export.vocabulary import START, Vocabulary
from quality_measures.entropies import attention_entropy, random_scores, relative_entropy, without_division
from quality_measures.figures import Figures, ModelFigures, feeding_pairs
from quality_measures.gradients import relative_gradients, token_gradients
from quality_measures.page import page
from quality_measures.runs import merge, planned_runs, to_toml
from quality_measures.translations import Scores, TestSet, by_length, differing, score, score_bins

DATA = Path(__file__).parent / "data"
SETTINGS = ["fp32 beam 1", "fp32 beam 5", "int8 beam 1", "int8 beam 5"]
PLAN = """
[base.data]
source_language = "en"
target_language = "de"
train_source = ["train.en.gz"]
train_target = ["train.de.gz"]
validation_source = "val.en.gz"
validation_target = "val.de.gz"

[base.tokenizer]
vocabulary_size = 180

[base.training]
max_epochs = 1
batch_tokens = 300
warmup_steps = 5
accelerator = "cpu"
devices = 1

[base.bundle.limits]
max_source_length = 64
max_target_length = 64

[base.bundle.generation]
max_length = 12

[models.tiny-transformer.model]
width = 16
heads = 2
feed_forward = 16
encoder_layers = 1
decoder_layers = 1

[models.tiny-general.model]
family = "recurrent"
embedding = 16
width = 16

[models.tiny-sampled.model]
family = "recurrent"
embedding = 16
width = 16

[models.tiny-sampled.training.feeding]
mode = "scheduled_sampling"
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sentences of the tests under the names of Multi30k's files."""
    folder = tmp_path_factory.mktemp("corpus")
    for language in ("en", "de"):
        lines = (DATA / f"train.{language}").read_bytes().splitlines(keepends=True)
        for part, count in (("train", None), ("val", None), ("test_2016_flickr", 12)):
            (folder / f"{part}.{language}.gz").write_bytes(gzip.compress(b"".join(lines[:count])))
    return folder


@pytest.fixture(scope="module")
def batch(sentences: tuple[Sequence[str], Sequence[str]], vocabulary: Vocabulary) -> Batch:
    pairs = ParallelCorpus(*sentences, vocabulary, vocabulary)
    return ParallelCorpus.collate([pairs[index] for index in range(4)])


def test_every_model_of_the_plan_can_be_trained(tmp_path: Path) -> None:
    runs = {run.name: run for run in planned_runs(quality.PLAN, tmp_path)}
    assert {"transformer", "lstm", "lstm-reversed", "lstm-dot", "lstm-scaled-dot", "lstm-general"} <= runs.keys()
    for name, run in runs.items():
        (tmp_path / "config.toml").write_text(run.text, encoding="utf-8")
        assert load_configuration(tmp_path / "config.toml") == run.configuration
        assert run.configuration.bundle.name == f"multi30k-en-de-{name}"
        assert (run.epochs, run.updates, run.seconds, run.finished) == (0, 0, None, False)
        # What is not under comparison is the same.
        assert run.configuration.data == runs["lstm"].configuration.data
        assert run.configuration.tokenizer == runs["lstm"].configuration.tokenizer
    dot, scaled = (runs[name].configuration.model for name in ("lstm-dot", "lstm-scaled-dot"))
    assert isinstance(dot, RecurrentSection)
    assert dot.model_copy(update={"attention": "scaled_dot"}) == scaled
    assert feeding_pairs(list(runs.values())) == [("lstm-general", "lstm-general-sampled")]


def test_configurations_are_merged_key_by_key() -> None:
    base = {"a": {"x": 1, "y": [1, 2], "deep": {"p": "p"}}, "b": 3}
    changes = {"a": {"y": [3], "deep": {"q": 'a "q"'}}, "c": {"z": True}, "b": 1e-5}
    merged = merge(base, changes)
    assert merged == {"a": {"x": 1, "y": [3], "deep": {"p": "p", "q": 'a "q"'}}, "b": 1e-5, "c": {"z": True}}
    assert base["a"] == {"x": 1, "y": [1, 2], "deep": {"p": "p"}}
    assert tomllib.loads(to_toml(merged)) == merged


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[base]", "has no models"),
        ("[models", "cannot be read"),
        (PLAN.replace("width = 16\nheads", "wide = 16\nheads"), "tiny-transformer, cannot be used:\n  model.wide: "),
    ],
)
def test_a_plan_that_cannot_be_used_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=problem):
        planned_runs(tmp_path / "plan.toml", tmp_path)


def test_a_run_of_another_configuration_is_not_reported(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    run = planned_runs(plan, tmp_path)[1]
    run.folder.mkdir()
    (run.folder / "config.toml").write_text(run.text.replace("width = 16", "width = 32"), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="tiny-general holds a run with another configuration"):
        planned_runs(plan, tmp_path)


def test_sentences_are_told_apart_by_their_words() -> None:
    counts = [1, 8, 9, 11, 12, 15, 16, 40]
    translations = [f"wort {'und ' * count}noch eins" for count in counts]
    references = [
        text.replace("noch", "doch") if count == 12 else text for text, count in zip(translations, counts, strict=True)
    ]
    tests = TestSet(sources=[" a  " * count for count in counts], references=references)
    assert by_length(tests) == {"1-8": [0, 1], "9-11": [2, 3], "12-15": [4, 5], "over 15": [6, 7]}
    found = score_bins(translations, tests)
    assert {name: round(scores.bleu, 6) == 100 for name, scores in found.items()} == {
        "1-8": True,
        "9-11": True,
        "12-15": False,
        "over 15": True,
    }
    assert found["12-15"].bleu == sacrebleu.corpus_bleu(translations[4:6], [references[4:6]]).score
    assert found["12-15"].sentences == 2
    assert list(score_bins(translations[:2], TestSet(sources=tests.sources[:2], references=references[:2]))) == ["1-8"]


def test_intervals_are_those_of_resampled_sentences() -> None:
    """Half of the sentences are right: what a resample scores is decided by how many of them it has."""
    right, wrong = "ein Hund rennt schnell durch den Park", "zwei Frauen reden heute nicht mit uns"
    found = score([right] * 40, [right] * 20 + [wrong] * 20)
    assert found.bleu == pytest.approx(50, abs=0.1)
    deviation = 100 * math.sqrt(0.25 / 40)  # of the share of right ones, a binomial's
    assert found.low == pytest.approx(50 - 1.96 * deviation, abs=3)
    assert found.high == pytest.approx(50 + 1.96 * deviation, abs=3)
    texts = {"fp32 beam 5": ["a", "b", "c"], "int8 beam 5": ["a", "x", "C"]}
    assert differing(texts, 5) == 2


def test_entropy_is_relative_to_that_of_even_weights() -> None:
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    assert relative_entropy(weights, torch.tensor(4)).tolist() == pytest.approx([1.0, 0.0, 0.5])
    assert relative_entropy(weights[2], torch.tensor(2)).item() == pytest.approx(1.0)


@pytest.mark.parametrize("width", [16, 256])
def test_products_of_random_vectors_vary_with_their_width(width: int) -> None:
    found = random_scores(width)
    assert found["variance"] == pytest.approx(width, rel=0.05)
    assert found["entropy"] < found["scaled_entropy"] < 1
    # Divided, scores are about standard normal whatever the width.
    normal = torch.randn(20_000, 14, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(-1)
    expected = -(normal * normal.log()).sum(-1).mean() / math.log(14)
    assert found["scaled_entropy"] == pytest.approx(expected.item(), abs=0.01)


def test_the_entropy_of_a_model_is_that_of_its_queries_and_keys(tiny_model: Transformer, batch: Batch) -> None:
    """Each sentence alone, without padding; queries and keys as the projections give them."""
    [layer] = tiny_model.decoder
    attention = layer.cross_attention
    assert isinstance(attention, MultiHeadAttention)
    projected: list[torch.Tensor] = []
    hooks = [
        projection.register_forward_hook(lambda *arguments: projected.append(arguments[-1]))
        for projection in (attention.query_projection, attention.key_projection)
    ]
    found: dict[bool, list[float]] = {True: [], False: []}
    for row in range(len(batch.source_ids)):
        source = batch.source_ids[row : row + 1, : batch.source_lengths[row]]
        target = batch.target_ids[row : row + 1, : batch.target_lengths[row]]
        projected.clear()
        with torch.no_grad():
            tiny_model(source, batch.source_lengths[row : row + 1], torch.tensor([START]), target)
        by_size = {len(each[0]): each[0] for each in projected}
        query, key = by_size[target.shape[1]], by_size[source.shape[1]]
        assert len(by_size) == 2
        for head in (slice(0, 16), slice(16, 32)):
            products = query[:, head] @ key[:, head].T
            for divided, scores in ((True, products / 4), (False, products)):
                weights = scores.softmax(-1)
                found[divided] += (-torch.xlogy(weights, weights).sum(-1) / math.log(source.shape[1])).tolist()
    for hook in hooks:
        hook.remove()
    expected, undivided = (sum(values) / len(values) for values in found.values())
    assert attention_entropy(tiny_model, [batch]) == pytest.approx(expected, abs=1e-5)
    with without_division(tiny_model):
        assert attention_entropy(tiny_model, [batch]) == pytest.approx(undivided, abs=1e-5)
    assert attention.scale is None
    assert undivided < expected


@pytest.mark.parametrize("attention", ["none", "general", "transformer"])
def test_gradients_are_slopes_of_the_loss(
    attention: Literal["none", "general", "transformer"], tiny_model: Transformer, batch: Batch
) -> None:
    """By differences, of the second sentence alone; its gradients do not depend on the rest of the batch."""
    vocabulary = tiny_model.sizes.source_vocabulary
    model: Seq2Seq = copy.deepcopy(tiny_model).double()
    if attention != "transformer":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            sizes = RecurrentSizes(
                source_vocabulary=vocabulary, target_vocabulary=vocabulary, attention=attention, embedding=6, width=8
            )
            model = make_recurrent(sizes).double().eval()
    embedding = model.get_submodule("source_embedding")
    assert isinstance(embedding, nn.Embedding)
    found = token_gradients(model, batch)
    length = int(batch.source_lengths[1])
    assert found.shape == batch.source_ids.shape
    assert bool((found[1, length:] == 0).all())
    alone = Batch(
        batch.source_ids[1:2, :length],
        batch.source_lengths[1:2],
        batch.target_ids[1:2, : batch.target_lengths[1]],
        batch.target_lengths[1:2],
    )

    def loss(place: int, component: int, change: float) -> float:
        calls: list[int] = []

        def moved(_: object, __: object, embedded: torch.Tensor) -> torch.Tensor | None:
            calls.append(1)
            if len(calls) > 1:
                return None
            embedded = embedded.clone()
            embedded[0, place, component] += change
            return embedded

        hook = embedding.register_forward_hook(moved)
        with torch.no_grad():
            logits = model(alone.source_ids, alone.source_lengths, torch.tensor([START]), alone.target_ids)
        hook.remove()
        return float(F.cross_entropy(logits[0], alone.target_ids[0], reduction="sum"))

    for place in (0, length - 1):
        slopes = [
            (loss(place, component, 1e-5) - loss(place, component, -1e-5)) / 2e-5
            for component in range(embedding.embedding_dim)
        ]
        assert found[1, place].item() == pytest.approx(math.hypot(*slopes), rel=1e-5)


def test_gradients_are_compared_with_an_even_share() -> None:
    assert relative_gradients(torch.full((13,), 0.3), parts=10).tolist() == pytest.approx([1.0] * 10)
    # Middles of 4 tokens at 1/8, 3/8, 5/8, 7/8: of three parts, the second has two.
    assert relative_gradients(torch.tensor([1.0, 2.0, 4.0, 9.0]), parts=3).tolist() == pytest.approx(
        [4 * 1 / 16, 4 * 3 / 16, 4 * 9 / 16]
    )
    with pytest.raises(ValueError, match="10 parts need as many tokens, got 4"):
        relative_gradients(torch.ones(4))


def test_it_trains_measures_and_reports(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    runs, written = tmp_path / "runs", tmp_path / "quality.md"
    command = [
        "--data",
        str(corpus),
        "--plan",
        str(tmp_path / "plan.toml"),
        "--runs",
        str(runs),
        "--page",
        str(written),
    ]
    trained = ["tiny-general", "tiny-sampled"]
    assert quality.main([*command, "--report"]) == 1
    assert "tiny-general is missing" in capsys.readouterr().err
    assert quality.main([*command, "--only", *trained]) == 0
    said = capsys.readouterr().err
    assert "training tiny-sampled\n" in said
    assert "missing" not in said

    text = written.read_text(encoding="utf-8")
    figures = json.loads((runs / "quality.json").read_text(encoding="utf-8"))
    assert list(figures["models"]) == trained
    with gzip.open(corpus / "test_2016_flickr.de.gz", "rt", encoding="utf-8") as file:
        references = file.read().splitlines()
    for name in trained:
        kept = json.loads((runs / name / "translations.json").read_text(encoding="utf-8"))["translations"]
        assert list(kept) == SETTINGS
        model = figures["models"][name]
        for setting, translations in kept.items():
            assert model["scores"][setting]["bleu"] == sacrebleu.corpus_bleu(translations, [references]).score
            assert model["scores"][setting]["chrf"] == sacrebleu.corpus_chrf(translations, [references]).score
        assert model["seconds"] >= 0
        assert f"| {name} | {model['description']} | " in text
        assert 0 < figures["entropies"][name] <= 1
        manifest = json.loads((runs / name / "bundle/manifest.json").read_text(encoding="utf-8"))
        assert manifest["name"] == f"multi30k-en-de-{name}"
    assert list(figures["gradients"]) == ["tiny-general", "tiny-general, one direction, untrained"]
    assert figures["feeding"] == [trained]
    plots = sorted(path.name for path in written.with_suffix("").iterdir())
    assert plots == sorted(re.findall(r"\]\(quality/(.*)\)", text)) == ["entropies.png", "gradients.png", "lengths.png"]
    for name in plots:
        assert (written.with_suffix("") / name).read_bytes().startswith(b"\x89PNG")

    # Nothing is trained, exported or translated again.
    kept_times = {path: path.stat().st_mtime_ns for path in runs.glob("*/*")}
    assert quality.main([*command, "--report"]) == 0
    said = capsys.readouterr().err
    assert f"tiny-transformer is missing: {runs / 'tiny-transformer'} has 0 of 1 epochs\n" in said
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/*")} == kept_times
    assert written.read_text(encoding="utf-8") == text
    assert json.loads((runs / "quality.json").read_text(encoding="utf-8")) == figures


def test_the_page_has_what_was_measured() -> None:
    def scores(bleu: float, sentences: int) -> Scores:
        return Scores(bleu=bleu, low=bleu - 1, high=bleu + 2, chrf=2 * bleu, sentences=sentences)

    model = ModelFigures(
        description="Transformer, 3 + 3 layers",
        family="transformer",
        attention="multi_head",
        reversed=False,
        parameters=1_200_000,
        epochs=10,
        best_epoch=8,
        updates=2800,
        seconds=None,
        scores={setting: scores(30 + place, 1000) for place, setting in enumerate(SETTINGS)},
        bins={"over 15": scores(20, 145)},
        int8_differs={1: 7, 5: 9},
    )
    figures = Figures(
        machine="a machine",
        versions={"torch": "2"},
        signatures={"BLEU": "b", "chrF": "c"},
        models={"trained": model},
        gradient_sentences=0,
        gradients={},
        random_entropies=[],
        entropies={"trained": 0.75},
        undivided_entropies={"trained": 0.25},
        feeding=[],
    )
    text = page(figures, "plots")
    for row in (
        "| trained | Transformer, 3 + 3 layers | 1.2 | 10 (8) | 2,800 | - |",
        "| trained | 30.00 | 60.00 | 31.00 | 62.00 | 32.00 | 64.00 | 33.00 | 66.00 |",
        "| trained | 7 | +2.00 | 9 | +2.00 |",
        "| trained | 31.00 (30.00 to 33.00) | 20.00 (19.00 to 22.00) |",
        "| model | all | over 15 words (145 sentences) |",
        "| trained | 0.750 |\n| trained, not divided | 0.250 |",
    ):
        assert f"{row}\n" in text
    assert "## What reaches the source" not in text
    assert "## Teacher forcing" not in text
    without = page(replace(figures, entropies={}, undivided_entropies={}), "plots")
    assert "trained models" not in without
    assert "Not divided" not in without


def test_what_cannot_be_done_is_said(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        quality.main(["--data", str(corpus), "--runs", str(tmp_path), "--only", "nobody"])
    assert "--only nobody: " in capsys.readouterr().err
    assert quality.main(["--data", str(tmp_path), "--runs", str(tmp_path), "--only", "lstm"]) == 1
    assert "Error: " in capsys.readouterr().err
    monkeypatch.setattr(quality, "MULTI30K", None)
    with pytest.raises(SystemExit):
        quality.main([])
    assert "name the folder of Multi30k: --data, or the variable JUMOK_MULTI30K" in capsys.readouterr().err
