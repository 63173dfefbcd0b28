"""The comparison of trained models: its plan, and end to end."""

import gzip
import json
import re
import shutil
import tomllib
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
import sacrebleu
import torch

from benchmarks import quality
from benchmarks.quality_measures.figures import Figures, ModelFigures
from benchmarks.quality_measures.page import page
from benchmarks.quality_measures.runs import Comparison, merge, planned_comparisons, planned_runs, to_toml
from benchmarks.quality_measures.seeds import Noise, Spread
from benchmarks.quality_measures.translations import Scores
from jumok_export.training.checkpoint import load_checkpoint
from jumok_export.training.configuration import RecurrentSection
from jumok_export.training.configuration_file import ConfigurationError, load_configuration

DATA = Path(__file__).parents[1] / "data"
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

[models.tiny-general]
seeds = 2

[models.tiny-general.model]
family = "recurrent"
bidirectional = false
embedding = 16
width = 16

[models.tiny-sampled.model]
family = "recurrent"
bidirectional = false
embedding = 16
width = 16

[models.tiny-sampled.training.feeding]
mode = "scheduled_sampling"

[[comparisons]]
of = "tiny-sampled"
with = "tiny-general"
title = "scheduled sampling"
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests' sentences under the names of Multi30k's files."""
    folder = tmp_path_factory.mktemp("corpus")
    for language in ("en", "de"):
        lines = (DATA / f"train.{language}").read_bytes().splitlines(keepends=True)
        for part, count in (("train", None), ("val", None), ("test_2016_flickr", 12)):
            (folder / f"{part}.{language}.gz").write_bytes(gzip.compress(b"".join(lines[:count])))
    return folder


def test_every_model_of_the_plan_can_be_trained(tmp_path: Path) -> None:
    runs = {run.name: run for run in planned_runs(quality.PLAN, tmp_path)}
    one_seed = {"lstm-concat", "lstm-bahdanau"}  # no comparison hangs on them
    models = {run.model for run in runs.values()}
    assert {"transformer", "lstm", "lstm-reversed", "lstm-dot", "lstm-scaled-dot", "lstm-general"} <= models
    assert runs.keys() == models | {f"{model}-seed{number}" for model in models - one_seed for number in (2, 3)}
    for name, run in runs.items():
        (tmp_path / "config.toml").write_text(run.text, encoding="utf-8")
        assert load_configuration(tmp_path / "config.toml") == run.configuration
        assert run.configuration.bundle.name == f"multi30k-en-de-{name}"
        assert (run.epochs, run.updates, run.seconds, run.finished) == (0, 0, None, False)
        # What is not under comparison is the same.
        assert run.configuration.data == runs["lstm"].configuration.data
        assert run.configuration.tokenizer == runs["lstm"].configuration.tokenizer
        assert run.configuration.model == runs[run.model].configuration.model
    seeds = [runs[name].configuration.training.seed for name in ("lstm", "lstm-seed2", "lstm-seed3")]
    assert (
        min(abs(one - other) for one, other in combinations(seeds, 2))
        > 2 * runs["lstm"].configuration.training.max_epochs
    )
    # Models without attention are of the papers' kind, and each has a partner that differs in one thing.
    for model, other, change in (
        ("lstm-reversed", "lstm", {"reverse_source": True}),
        ("lstm-general-one", "lstm", {"attention": "general"}),
        ("lstm-both", "lstm", {"bidirectional": True}),
        ("lstm-scaled-dot", "lstm-dot", {"attention": "scaled_dot"}),
    ):
        assert runs[other].configuration.model.model_copy(update=change) == runs[model].configuration.model
    section = runs["lstm"].configuration.model
    assert isinstance(section, RecurrentSection)
    assert not section.bidirectional


def test_the_plan_compares_models_that_several_seeds_have() -> None:
    runs = planned_runs(quality.PLAN, Path("nowhere"))
    seeds = Counter(run.model for run in runs)
    comparisons = planned_comparisons(quality.PLAN)
    assert len({each.title for each in comparisons}) == len(comparisons) == 11
    assert all(seeds[each.model] == seeds[each.other] == 3 for each in comparisons)


def test_training_elsewhere_is_no_other_configuration(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    elsewhere = planned_runs(plan, tmp_path, {"accelerator": "auto", "precision": "32-true"})
    assert {run.configuration.training.accelerator for run in elsewhere} == {"auto"}
    elsewhere[1].folder.mkdir()
    (elsewhere[1].folder / "config.toml").write_text(elsewhere[1].text, encoding="utf-8")
    (elsewhere[1].folder / "best.ckpt").touch()
    assert [run.name for run in planned_runs(plan, tmp_path)] == [run.name for run in elsewhere]


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
        (PLAN.replace("seeds = 2", "seeds = 0"), "tiny-general: seeds must be a positive number, got 0"),
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
    (run.folder / "best.ckpt").touch()
    with pytest.raises(ConfigurationError, match="tiny-general holds a run with another configuration"):
        planned_runs(plan, tmp_path)


def test_a_comparison_names_two_models(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    expected = Comparison(title="scheduled sampling", model="tiny-sampled", other="tiny-general")
    assert planned_comparisons(plan) == [expected]
    plan.write_text(PLAN.replace('with = "tiny-general"', 'with = "general"'), encoding="utf-8")
    with pytest.raises(
        ConfigurationError, match=r"title, of and with, two models of the plan, got .*'with': 'general'"
    ):
        planned_comparisons(plan)


def test_it_trains_measures_and_reports(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    runs, collected, written = tmp_path / "runs", tmp_path / "collected", tmp_path / "quality.md"

    def call(*arguments: str, runs: Path = runs) -> int:
        plan = ["--plan", str(tmp_path / "plan.toml")]
        return quality.main(["--data", str(corpus), *plan, "--runs", str(runs), "--page", str(written), *arguments])

    trained = ["tiny-general", "tiny-general-seed2", "tiny-sampled"]
    assert call("--report") == 1
    assert "tiny-general is missing" in capsys.readouterr().err
    for name in trained:
        assert call("--only", name, "--train-only", "--precision", "bf16-mixed") == 0
    said = capsys.readouterr().err
    assert "training tiny-sampled\n" in said
    assert "missing" not in said
    assert call("--only", "tiny-general-seed2", "--report") == 1
    assert "the first seed of no model is finished" in capsys.readouterr().err
    assert call("--list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == ["tiny-transformer", *(f"{name} finished" for name in trained)]

    assert call("--only", *trained, "--collect", str(collected)) == 0
    assert not written.exists()
    for name in trained:
        small, whole = (folder / name / "best.ckpt" for folder in (collected, runs))
        content = torch.load(small, weights_only=True)
        assert {value.dtype for value in content["state_dict"].values()} == {torch.float16}
        assert "optimizer_states" not in content
        weights = load_checkpoint(small).model.state_dict()
        for key, value in load_checkpoint(whole).model.state_dict().items():
            torch.testing.assert_close(weights[key], value, rtol=1e-3, atol=1e-6)
        shutil.rmtree(collected / name / "bundle")  # a report does not need it
    (collected / "tiny-general-seed2" / "best.ckpt").unlink()  # nor this, of later seeds
    capsys.readouterr()

    assert call("--report", runs=collected) == 0
    text = written.read_text(encoding="utf-8")
    figures = json.loads((collected / "quality.json").read_text(encoding="utf-8"))
    models = ["tiny-general", "tiny-sampled"]
    assert list(figures["models"]) == models
    with gzip.open(corpus / "test_2016_flickr.de.gz", "rt", encoding="utf-8") as file:
        references = file.read().splitlines()
    bleu: dict[str, list[float]] = {}
    for name in trained:
        kept = json.loads((collected / name / "translations.json").read_text(encoding="utf-8"))["translations"]
        assert list(kept) == (SETTINGS[:2] if "seed" in name else SETTINGS)
        scores = {setting: sacrebleu.corpus_bleu(lines, [references]).score for setting, lines in kept.items()}
        bleu.setdefault(name.removesuffix("-seed2"), []).append(scores["fp32 beam 5"])
        if name in models:
            model = figures["models"][name]
            for setting, translations in kept.items():
                assert model["scores"][setting]["bleu"] == scores[setting]
                assert model["scores"][setting]["chrf"] == sacrebleu.corpus_chrf(translations, [references]).score
            assert model["seconds"] >= 0
            assert model["validation"][0] >= model["validation"][1] >= 0
            assert f"| {name} | {model['description']} | " in text
            assert 0 < figures["entropies"][name] <= 1
    for name, values in bleu.items():
        assert figures["models"][name]["spreads"]["all"]["mean"] == pytest.approx(fmean(values))
        assert figures["models"][name]["seeds"] == len(values)
    assert [model["device"].endswith(" CPU cores, bf16-mixed") for model in figures["models"].values()] == [True, True]
    assert list(figures["gradients"]) == ["tiny-general", "tiny-general, untrained"]
    ((comparison, differences),) = figures["differences"]
    assert comparison["title"] == "scheduled sampling"
    assert differences["all"]["mean"] == pytest.approx(fmean(bleu["tiny-sampled"]) - fmean(bleu["tiny-general"]))
    plots = sorted(path.name for path in written.with_suffix("").iterdir())
    assert plots == sorted(re.findall(r"\]\(quality/(.*)\)", text)) == ["entropies.png", "gradients.png", "lengths.png"]
    for name in plots:
        assert (written.with_suffix("") / name).read_bytes().startswith(b"\x89PNG")

    # Nothing is trained, exported or translated again.
    kept_times = {path: path.stat().st_mtime_ns for path in collected.glob("*/*")}
    assert call("--report", runs=collected) == 0
    said = capsys.readouterr().err
    assert f"tiny-transformer is missing: {collected / 'tiny-transformer'} has 0 of 1 epochs\n" in said
    assert {path: path.stat().st_mtime_ns for path in collected.glob("*/*")} == kept_times
    assert written.read_text(encoding="utf-8") == text
    assert json.loads((collected / "quality.json").read_text(encoding="utf-8")) == figures


def test_the_page_has_the_measurements() -> None:
    def spread(mean: float, *, seeds: bool = True) -> Spread:
        over_seeds = (mean - 3, mean + 3) if seeds else None
        return Spread(mean=mean, over_seeds=over_seeds, over_sentences=(mean - 1, mean + 2))

    model = ModelFigures(
        description="Transformer, 3 + 3 layers",
        seeds=3,
        family="transformer",
        attention="multi_head",
        reversed=False,
        bidirectional=True,
        parameters=1_200_000,
        epochs=10,
        best_epoch=8,
        validation=(33.24, 30.0),
        updates=2800,
        seconds=None,
        device="a card",
        rounded=True,
        scores={setting: Scores(bleu=30.0 + place, chrf=60.0) for place, setting in enumerate(SETTINGS)},
        mean_scores={"fp32 beam 1": (30.5, 60.25), "fp32 beam 5": (31.5, 61.25)},
        spreads={"all": spread(31.5), "over 15": spread(20)},
        int8_differs={1: 7, 5: 9},
    )
    alone = replace(model, seeds=1, spreads={"all": spread(30, seeds=False), "over 15": spread(20, seeds=False)})
    figures = Figures(
        machine="a machine",
        versions={"torch": "2"},
        signatures={"BLEU": "b", "chrF": "c"},
        models={"trained": model, "alone": alone},
        sentences={"all": 1000, "over 15": 145},
        noise={"all": Noise(deviation=0.4, freedom=8), "over 15": None},
        differences=[
            (
                Comparison(title="a change", model="trained", other="alone"),
                {"all": spread(1.5, seeds=False), "over 15": spread(-0.25, seeds=False)},
            ),
            *(
                (Comparison(title=title, model="trained", other="alone"), {"all": spread(mean), "over 15": spread(-4)})
                for title, mean in (("a gain", 4), ("a loss", -4), ("noise", 2))
            ),
        ],
        gradient_sentences=0,
        gradients={},
        random_entropies=[],
        entropies={"trained": 0.75},
        undivided_entropies={"trained": 0.25},
    )
    text = page(figures, "plots")
    for row in (
        "| trained | Transformer, 3 + 3 layers | 1.2 | 3 | 10 (8) | 33.2 / 30.0 | 2,800 | - |",
        "| trained | 30.50 | 60.25 | 31.50 | 61.25 | 28.50 to 34.50 | 30.50 to 33.50 |",
        "| alone | 30.50 | 60.25 | 31.50 | 61.25 | - | 29.00 to 32.00 |",
        "| trained | 7 | +2.00 | 9 | +2.00 |",
        "| with and without | models | BLEU | other seeds | other sentences | first model | over 15 words |",
        "| a change | trained - alone | +1.50 | - | +0.50 to +3.50 | may be chance | -0.25 |",
        "| a gain | trained - alone | +4.00 | +1.00 to +7.00 | +3.00 to +6.00 | better | -4.00 |",
        "| a loss | trained - alone | -4.00 | -7.00 to -1.00 | -5.00 to -2.00 | worse | -4.00 |",
        "| noise | trained - alone | +2.00 | -1.00 to +5.00 | +1.00 to +4.00 | may be chance | -4.00 |",
        "| trained | 20.00 (19.00 to 22.00) |",
        "| model | over 15 words (145 sentences) |",
        "| trained | 0.750 |\n| trained, not divided | 0.250 |",
    ):
        assert f"{row}\n" in text, row
    assert "They were trained on: a card. Their weights were rounded to half precision afterwards.\n" in text
    assert "its standard deviation is 0.40 BLEU" in text
    assert "The validation score of `trained` fell from 33.2 in epoch 8" in text
    assert "## Gradients at the source" not in text
    without = page(replace(figures, entropies={}, undivided_entropies={}, differences=[]), "plots")
    assert "## Differences" not in without
    assert "trained models" not in without
    assert "Not divided" not in without


def test_impossible_requests_are_refused(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        quality.main(["--data", str(corpus), "--runs", str(tmp_path), "--only", "unknown"])
    assert "--only unknown: " in capsys.readouterr().err
    assert quality.main(["--data", str(tmp_path), "--runs", str(tmp_path), "--only", "lstm"]) == 1
    assert "Error: " in capsys.readouterr().err
    monkeypatch.setattr(quality, "MULTI30K", None)
    with pytest.raises(SystemExit):
        quality.main([])
    assert "name the folder of Multi30k: --data, or the variable JUMOK_MULTI30K" in capsys.readouterr().err
