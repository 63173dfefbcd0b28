"""Training: learning, exact resumption, interruption, and export of the checkpoint."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sacrebleu
import torch
from sacrebleu.metrics.chrf import CHRF

from jumok.commands._main import run
from jumok_export.models.recurrent import AttentiveRecurrent
from jumok_export.models.ssru import SSRUTransformer
from jumok_export.models.transformer import Transformer
from jumok_export.training.callbacks import read_metrics
from jumok_export.training.checkpoint import LAST, CheckpointError, load_checkpoint
from jumok_export.training.configuration import TrainingSection
from jumok_export.training.configuration_file import load_configuration
from jumok_export.training.module import TranslationTraining, learning_rate_factor
from jumok_export.training.train import train
from jumok_export.training.vocabulary import PAD, START, UNKNOWN, Vocabulary
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from tests.support.hang import HANG_S

DATA = Path(__file__).parents[2] / "data"

CONFIGURATION = """
[data]
source_language = "en"
target_language = "de"
train_source = ["train.en"]
train_target = ["train.de"]
validation_source = "train.en"
validation_target = "train.de"
description = "sentences of the tests"

[tokenizer]
vocabulary_size = 180
sampling_alpha = 0.5

[model]
width = 16
heads = 2
feed_forward = 32
encoder_layers = 1
decoder_layers = 1
dropout = 0.2

[training]
max_epochs = 2
batch_tokens = 300
learning_rate = 3e-3
warmup_steps = 5
ema_decay = 0.9
accelerator = "cpu"
devices = 1

[bundle]
name = "tests-en-de"
"""

Write = Callable[..., Path]


def configuration(**changes: str) -> str:
    """The configuration with changes; a value may be followed by lines of more settings."""
    text = CONFIGURATION
    for key, value in changes.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"{key} = "))
        text = text.replace(line, f"{key} = {value}")
    return text


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the configuration with changes to a file."""

    def written(name: str = "config.toml", **changes: str) -> Path:
        path = tmp_path / name
        path.write_text(configuration(**changes), encoding="utf-8")
        return path

    return written


def weights(run: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(run / LAST, weights_only=True)["state_dict"]
    return state


def test_a_resumed_run_equals_an_uninterrupted_one(write: Write, tmp_path: Path) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    said: list[str] = []
    train(write(), straight, data=DATA)
    train(write("short.toml", max_epochs="1"), resumed, data=DATA)
    assert [row["epoch"] for row in read_metrics(resumed)] == ["1"]
    train(write(), resumed, data=DATA, progress=said.append)
    assert said[3] == f"going on with the run in {resumed}"
    for name, expected in weights(straight).items():
        torch.testing.assert_close(weights(resumed)[name], expected, rtol=0, atol=0)
    rows = {run: read_metrics(run) for run in (straight, resumed)}
    for row in (*rows[straight], *rows[resumed]):
        assert 0 <= float(row.pop("seconds")) < HANG_S
    assert rows[resumed] == rows[straight]
    assert [row["epoch"] for row in rows[resumed]] == ["1", "2"]
    assert (resumed / "curves.png").read_bytes().startswith(b"\x89PNG")
    expected_files = {"best.ckpt", "last.ckpt", "config.toml", "curves.png", "metrics.csv", "shared.model"}
    assert {path.name for path in resumed.iterdir()} == expected_files


@pytest.mark.parametrize(
    "feeding",
    ['mode = "scheduled_sampling"\ndecay = "constant"\nshare = 0.5', 'mode = "two_phases"\nfree_epochs = 1'],
    ids=["scheduled sampling", "two phases"],
)
def test_a_recurrent_model_is_trained_and_resumed_alike(feeding: str, write: Write, tmp_path: Path) -> None:
    def recurrent(name: str, max_epochs: str) -> Path:
        path = write(name, max_epochs=max_epochs)
        text = path.read_text(encoding="utf-8")
        model = '[model]\nfamily = "recurrent"\ncell = "gru"\nattention = "bahdanau"\nembedding = 8\nwidth = 12\n'
        start, end = text.index("[model]"), text.index("[training]")
        text = f"{text[:start]}{model}{text[end:]}".replace("[bundle]", f"[training.feeding]\n{feeding}\n\n[bundle]")
        path.write_text(text, encoding="utf-8")
        return path

    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    train(recurrent("config.toml", "3"), straight, data=DATA)
    train(recurrent("short.toml", "2"), resumed, data=DATA)
    train(recurrent("config.toml", "3"), resumed, data=DATA)
    if "two_phases" not in feeding:  # its second phase is counted from the end
        for name, expected in weights(straight).items():
            torch.testing.assert_close(weights(resumed)[name], expected, rtol=0, atol=0)
    checkpoint = load_checkpoint(straight)
    assert isinstance(checkpoint.model, AttentiveRecurrent)
    assert checkpoint.model.sizes.attention == "bahdanau"
    losses = [float(row["train_loss"]) for row in read_metrics(straight)]
    assert losses[1] < losses[0]


def test_validation_every_few_epochs(write: Write, tmp_path: Path) -> None:
    train(write(max_epochs="3\nvalidate_every_epochs = 2"), tmp_path / "run", data=DATA)
    validated = [bool(row["validation_bleu"]) for row in read_metrics(tmp_path / "run")]
    assert validated == [False, True, False]
    assert load_checkpoint(tmp_path / "run").epoch == 2
    assert load_checkpoint(tmp_path / "run" / LAST).epoch == 3


def test_a_run_of_an_earlier_version_is_resumed(write: Write, tmp_path: Path) -> None:
    """Metrics of earlier versions have no seconds."""
    run = tmp_path / "run"
    train(write("short.toml", max_epochs="1"), run, data=DATA)
    lines = (run / "metrics.csv").read_text().splitlines()
    (run / "metrics.csv").write_text("".join(line.rpartition(",")[0] + "\n" for line in lines))
    assert "seconds" not in read_metrics(run)[0]
    train(write(), run, data=DATA)
    before, after = read_metrics(run)
    assert (before["epoch"], before["seconds"]) == ("1", "")
    assert float(after["seconds"]) >= 0


def test_two_vocabularies_and_a_projection_of_its_own(write: Write, tmp_path: Path) -> None:
    apart = "16\nshare_embeddings = false\ntie_output = false\nnorm = 'post'"
    path = write(max_epochs="1", vocabulary_size="100\nshared = false", width=apart)
    train(path, tmp_path / "run", data=DATA)
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint.source_vocabulary is not checkpoint.target_vocabulary
    sides = (checkpoint.source_vocabulary, "The cat sleeps."), (checkpoint.target_vocabulary, "Die Katze.")
    assert all(vocabulary.decode(vocabulary.encode(text)) == text for vocabulary, text in sides)
    assert isinstance(checkpoint.model, Transformer)
    assert not isinstance(checkpoint.model, SSRUTransformer)
    assert checkpoint.model.output.weight is not checkpoint.model.target_embedding.weight
    assert not checkpoint.model.training


def test_a_model_with_ssru_trains_and_loads(write: Write, tmp_path: Path) -> None:
    train(write(decoder_layers='2\ndecoder = "ssru"'), tmp_path / "run", data=DATA)
    checkpoint = load_checkpoint(tmp_path / "run")
    assert isinstance(checkpoint.model, SSRUTransformer)
    assert set(checkpoint.model.empty_state()) == {"cell.0", "cell.1"}
    losses = [float(row["train_loss"]) for row in read_metrics(tmp_path / "run")]
    assert losses[-1] < losses[0]


def test_ctrl_c_leaves_a_run_that_can_be_resumed(write: Write, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "jumok", "train", str(write(max_epochs="100000")), "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--data", str(DATA)], stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:  # a line an epoch
        lines.append(line)
        if line.startswith("epoch 2/"):
            process.send_signal(signal.SIGINT)
            break
    lines += process.communicate(timeout=HANG_S)[1].splitlines(keepends=True)
    assert process.returncode == 130
    assert lines[-1].startswith("stopped; training again into the same folder goes on")
    assert lines[1].startswith("48 sentence pairs to train on, 48 to validate on; vocabulary of 180 tokens")
    assert lines[2] == "the best checkpoint is the one with the highest BLEU with the tokenizer 13a\n"
    assert all(line.startswith("epoch ") for line in lines[3:-1]), lines
    done = int(read_metrics(out)[-1]["epoch"])
    assert done >= 2
    assert load_checkpoint(out / LAST).epoch in (done, done + 1)  # the signal may come between file and row
    assert (out / "curves.png").exists()
    train(write(max_epochs=str(done + 2)), out, data=DATA)
    assert int(read_metrics(out)[-1]["epoch"]) == done + 2


def test_failed_starts_keep_no_configuration(write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The vocabulary of the first try is made anew, too."""
    out = tmp_path / "run"
    arguments = ["--out", str(out), "--data", str(DATA)]
    first = write("small.toml", vocabulary_size="90", description='""\nmax_length = 1')
    assert run(["train", str(first), *arguments]) == 1
    assert capfd.readouterr().err.endswith("Error: every sentence pair is longer than data.max_length = 1\n")
    before = (out / "shared.model").read_bytes()
    assert run(["train", str(write("good.toml", max_epochs="1")), *arguments]) == 0
    assert "reading the corpus and making the vocabulary" in capfd.readouterr().err
    assert (out / "shared.model").read_bytes() != before
    assert (out / LAST).is_file()


def test_lines_on_progress_replace_the_bar_off_a_terminal(
    write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jumok_export.training.callbacks.LINE_EVERY_S", 0.0)
    train(write(max_epochs="1"), tmp_path / "run", data=DATA)
    said = capfd.readouterr().err
    assert re.search(r"^epoch 1/1: 1 of (\d+) batches; \d+ s$", said, re.MULTILINE)
    assert re.search(r"^epoch 1/1: (\d+) of \1 batches; ", said, re.MULTILINE)


@pytest.mark.slow
def test_reversal_is_learnt_and_translates(write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["sun", "moon", "star", "tree", "leaf", "bird", "fish", "stone", "river", "cloud"]
    dice = random.Random(1)
    sources = [" ".join(dice.choices(words, k=dice.randint(2, 4))) for _ in range(200)]
    targets = [" ".join(reversed(line.split())) for line in sources]
    for name, lines in (("train.en", sources), ("train.de", targets)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path = write(
        vocabulary_size='50\nkind = "bpe"',
        sampling_alpha="0",
        width="32",
        feed_forward="64",
        dropout="0.0",
        max_epochs="40\nvalidate_every_epochs = 10",
        learning_rate="6e-3",
        warmup_steps="40",
    )
    assert run(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    scores = [{"metric": "BLEU", "value": 1.5, "signature": "s", "dataset": "d", "precision": "int8", "beam_size": 2}]
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    out = tmp_path / "bundle"
    exported = ["export", str(tmp_path / "run"), "--out", str(out), "--precision", "int8"]
    assert run([*exported, "--scores", str(tmp_path / "scores.json")]) == 0
    said = capfd.readouterr().err
    assert "verifying fp32\nquantizing to int8\ncomparing int8 with fp32\nverifying int8\n" in said
    with Translator(out, threads=1) as translator:
        translations = translator.translate(sources, beam_size=2)
    # The weights differ by processor, and the last points of BLEU are their luck.
    assert sacrebleu.corpus_bleu([translation.text for translation in translations], [targets]).score > 60
    manifest = Bundle.open(out).manifest
    assert (manifest.name, manifest.version, list(manifest.precisions)) == ("tests-en-de", "1", ["int8"])
    assert manifest.special_tokens.suppress == (PAD, UNKNOWN, START)
    assert manifest.architecture.family == "transformer"
    assert manifest.architecture.sizes["width"] == 32
    assert manifest.scores[0].value == 1.5
    assert manifest.provenance.training_data is not None
    assert set(manifest.provenance.training_data.files) == {"train.en", "train.de"}
    assert manifest.provenance.configuration == path.read_text()
    names = [check.name for check in manifest.verification["int8"].checks]
    assert "before quantization: step logits" in names
    assert "excess error" in names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "{tmp}/config.toml", "--out", "{tmp}/run"], "{tmp}/train.en cannot be read: No such file"),
        (["train", "{tmp}/nowhere.toml", "--out", "{tmp}/run"], "File '{tmp}/nowhere.toml' does not exist"),
        (["train", "{tmp}/large.toml", "--out", "{tmp}/run", "--data", str(DATA)], "could not train a vocabulary of"),
        (["train", "{tmp}/large.toml", "--out", "{tmp}/used", "--data", str(DATA)], "Error: {tmp}/used holds a run"),
        (["export", "{tmp}/nowhere", "--out", "{tmp}/b"], "Path '{tmp}/nowhere' does not exist"),
        (["export", "{tmp}", "--out", "{tmp}/b"], "{tmp}: no best.ckpt in it: has 'jumok train' finished an epoch?"),
        (["export", "{tmp}/config.toml", "--out", "{tmp}/b"], "{tmp}/config.toml is not a checkpoint of `jumok train`"),
        (["export", "{tmp}", "--out", "{tmp}/b", "--precision", "fp32,int4"], "'int4' is none of fp32, fp16, int8"),
        (
            ["export", "{tmp}", "--out", "{tmp}/b", "--scores", "{tmp}/scores.json"],
            "{tmp}/scores.json is not a list of scores (metric, value, signature, dataset, precision, beam_size):\n"
            "  0.value: Input should be a valid number\n  0.signature: Field required",
        ),
    ],
)
def test_commands_report_problems(
    arguments: list[str], message: str, write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / LAST).touch()
    for name, size in (("config.toml", "180"), ("used/config.toml", "180"), ("large.toml", "5000")):
        write(name, vocabulary_size=size)
    (tmp_path / "scores.json").write_text('[{"metric": "BLEU", "value": "high"}]')
    assert run([argument.format(tmp=tmp_path) for argument in arguments]) in (1, 2)
    assert message.format(tmp=tmp_path) in capfd.readouterr().err


def test_learning_rates_follow_their_schedules() -> None:
    inverse = TrainingSection(warmup_steps=100)
    cosine = TrainingSection(warmup_steps=100, schedule="cosine")
    for section in (inverse, cosine):
        assert learning_rate_factor(0, section, 1100) == pytest.approx(0.01)
        assert learning_rate_factor(49, section, 1100) == pytest.approx(0.5)
        assert learning_rate_factor(99, section, 1100) == pytest.approx(1.0)
    assert learning_rate_factor(399, inverse, 1100) == pytest.approx(0.5)  # the square root of 100 / 400
    assert learning_rate_factor(600, cosine, 1100) == pytest.approx(0.5)
    assert learning_rate_factor(1100, cosine, 1100) == pytest.approx(0.0)


@pytest.mark.parametrize(("target", "wanted", "found"), [("ja", "", "char"), ("de", "", "13a"), ("de", "intl", "intl")])
def test_validation_has_the_tokenizer_of_the_target_language(
    target: str, wanted: str, found: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jumok_serve.evaluation.parallel_text.find_spec", lambda _: None)
    source, size = {"ja": ("ko", "230"), "de": ("en", "180")}[target]
    configured = write(
        target_language=f'"{target}"',
        train_source=f'["train.{source}"]',
        train_target=f'["train.{target}"]',
        validation_source=f'"train.{source}"',
        validation_target=f'"train.{target}"',
        vocabulary_size=size,
        max_epochs=f'1\nbleu_tokenizer = "{wanted}"' if wanted else "1",
    )
    said: list[str] = []
    train(configured, tmp_path / "run", data=DATA, progress=said.append)
    named = f"the best checkpoint is the one with the highest BLEU with the tokenizer {found}"
    assert [line.removesuffix(" (install 'sacrebleu[ja]' for one of words)") for line in said].count(named) == 1
    vocabulary = Vocabulary((tmp_path / "run/shared.model").read_bytes())
    perfect = TranslationTraining(load_configuration(configured), vocabulary, vocabulary, {})
    lines = (DATA / f"train.{target}").read_text(encoding="utf-8").splitlines()
    assert perfect.metric.corpus_score(lines, [lines]).score == pytest.approx(100)
    assert f"tok:{found}|" in str(perfect.metric.get_signature())


def test_languages_without_a_tokenizer_are_judged_by_chrf(write: Write, tmp_path: Path) -> None:
    said: list[str] = []
    run = tmp_path / "run"
    for epochs in ("1", "2"):  # the second is a resumed run
        train(write(target_language='"th"', max_epochs=epochs), run, data=DATA, progress=said.append)
    assert "the best checkpoint is the one with the highest chrF, as sacreBLEU has no tokenizer for th" in said
    rows = read_metrics(run)
    scores = [float(row["validation_chrf"]) for row in rows]
    assert len(scores) == 2
    assert all("validation_bleu" not in row for row in rows)
    checkpoint = load_checkpoint(run)
    assert checkpoint.validation_score == pytest.approx(max(scores), rel=1e-4)
    lines = (DATA / "train.de").read_text(encoding="utf-8").splitlines()
    vocabularies = checkpoint.source_vocabulary, checkpoint.target_vocabulary
    metric = TranslationTraining(checkpoint.configuration, *vocabularies, {}).metric
    assert isinstance(metric, CHRF)
    assert metric.corpus_score(lines, [lines]).score == pytest.approx(100)


@pytest.mark.parametrize(
    ("file", "way"),
    [
        ("manifest.json", "it is a bundle already: 'jumok serve {run}' serves it"),
        ("config.json", "it is no run of 'jumok train': 'jumok import {run} --out BUNDLE' makes a bundle of other"),
    ],
)
def test_folders_that_are_no_run_say_the_way(file: str, way: str, tmp_path: Path) -> None:
    (tmp_path / file).touch()
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path}: {way.format(run=tmp_path)}")
