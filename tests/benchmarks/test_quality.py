"""The comparison of trained models: its plan, and end to end."""

import gzip
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu

from benchmarks import quality
from benchmarks.quality_measures.figures import Figures, ModelFigures, feeding_pairs
from benchmarks.quality_measures.page import page
from benchmarks.quality_measures.runs import merge, planned_runs, to_toml
from benchmarks.quality_measures.translations import Scores
from jumok_export.training.configuration import ConfigurationError, RecurrentSection, load_configuration

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
    """The tests' sentences under the names of Multi30k's files."""
    folder = tmp_path_factory.mktemp("corpus")
    for language in ("en", "de"):
        lines = (DATA / f"train.{language}").read_bytes().splitlines(keepends=True)
        for part, count in (("train", None), ("val", None), ("test_2016_flickr", 12)):
            (folder / f"{part}.{language}.gz").write_bytes(gzip.compress(b"".join(lines[:count])))
    return folder


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
    (run.folder / "best.ckpt").touch()
    with pytest.raises(ConfigurationError, match="tiny-general holds a run with another configuration"):
        planned_runs(plan, tmp_path)


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


def test_the_page_has_the_measurements() -> None:
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
    assert "## Gradients at the source" not in text
    assert "## Teacher forcing" not in text
    without = page(replace(figures, entropies={}, undivided_entropies={}), "plots")
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
