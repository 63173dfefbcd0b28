"""Import by the command: what its bundle has of the checkpoint, and refused arguments."""

import contextlib
import io
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from jumok.commands._main import run
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.importing import import_checkpoint
from jumok_serve import Translator
from jumok_serve.bundle import describe
from jumok_serve.bundle.bundle import Bundle
from tests.parity.checkpoints import Checkpoint, make_checkpoint
from tests.parity.run import quiet
from tests.parity.shapes import SHAPES
from tests.parity.texts import parallel_sentences
from tests.support.checkpoints.tokenizer_checkpoints import change

BY_NAME = {shape.name: shape for shape in SHAPES}
SENTENCES = [sentence.english for sentence in parallel_sentences(6, seed=5)]
PAIRS = parallel_sentences(30, seed=1)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A checkpoint that was trained a little."""
    shape = replace(BY_NAME["marian-3-heads"], steps=80)
    with quiet():
        return make_checkpoint(shape, tmp_path_factory.mktemp("import") / "opus mt, eng-deu")


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """An untrained checkpoint of several languages."""
    with quiet():
        return make_checkpoint(replace(BY_NAME["nllb"], steps=1), tmp_path_factory.mktemp("import") / "nllb")


@dataclass(frozen=True)
class Imported:
    """A bundle of the command, and the command's output."""

    path: Path
    said: str


@pytest.fixture(scope="module")
def imported(marian: Checkpoint, text_files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Imported:
    folder = tmp_path_factory.mktemp("imported")
    calibration = folder / "sentences.txt"
    calibration.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    command = ["import", str(marian.folder), "--out", str(folder / "bundle"), "--model-version", "7"]
    command += ["--source-language", "eng", "--target-language", "deu", "--calibration", str(calibration)]
    command += ["--shortlist-source", str(text_files[0]), "--shortlist-target", str(text_files[1])]
    command += ["--alignments", *map(str, text_files)]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert run([*command, "--shortlist-best", "3", "--shortlist-frequent", "4"]) == 0
    return Imported(folder / "bundle", said.getvalue())


@pytest.fixture(scope="module")
def text_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write sentences and their translations to files."""
    folder = tmp_path_factory.mktemp("text")
    files = [folder / "text.en", folder / "text.de"]
    files[0].write_text("".join(f"{pair.english}\n" for pair in PAIRS), encoding="utf-8")
    files[1].write_text("".join(f"{pair.german}\n" for pair in PAIRS), encoding="utf-8")
    return files


@pytest.mark.xdist_group("imported")
def test_marian_through_the_command(marian: Checkpoint, imported: Imported) -> None:
    out = imported.path
    assert {path.name for path in out.parent.iterdir()} == {"bundle", "sentences.txt"}
    *steps, last = imported.said.splitlines()
    messages = [step.split(" s  ")[1] for step in steps]
    assert [step for step in messages if not re.search("calibrat|shortlist|align|native", step)] == [
        f"{marian.folder} is a Hugging Face checkpoint",
        "less than a million parameters: this takes up to 1.0 GiB of memory, and about 10 seconds",
        "reading the checkpoint",
        "exporting the encoder",
        "exporting the decoder",
        "verifying fp32",
        "verifying fp32 for devices",
        "quantizing to int8",
        "comparing int8 with fp32",
        "verifying int8",
    ]
    assert f"s  wrote {out}: opus-mt-eng-deu 7, fp32 " in last
    manifest = Bundle.open(out).manifest
    assert (manifest.generation.beam_size, manifest.generation.max_length) == (4, 39)
    assert manifest.architecture.family == "marian"
    assert manifest.architecture.sizes["heads"] == 3
    assert manifest.alignment is not None
    assert manifest.alignment.pairs == len(PAIRS)
    assert f"heads that align tokens: {manifest.alignment}" in imported.said
    checkpoint = manifest.provenance.checkpoint
    assert checkpoint is not None
    assert checkpoint.name == "opus mt, eng-deu"
    assert checkpoint.weights.keys() == {"model.safetensors"}
    assert json.loads(manifest.provenance.configuration)["model_type"] == "marian"
    shown = describe.describe(Bundle.open(out))
    assert "eng to deu" in shown
    assert f"checkpoint    opus mt, eng-deu, saved by transformers {checkpoint.transformers_version}" in shown
    assert checkpoint.weights["model.safetensors"][:16] in shown
    assert run(["inspect", str(out)]) == 0


@pytest.mark.xdist_group("imported")
def test_a_shortlist_through_the_command(imported: Imported) -> None:
    assert "aligned 30 sentence pairs, 5 of 5 times" in imported.said
    described = Bundle.open(imported.path).manifest.shortlist
    assert described is not None
    assert (described.best, described.frequent, described.lexicon) == (3, 4, "IBM Model 1 of 30 sentence pairs")
    with Translator(imported.path, threads=1, shortlist=True) as translator:
        listed = translator._bundle.shortlist()
        translations = translator.translate([pair.english for pair in PAIRS[:5]])
        for pair, translation in zip(PAIRS, translations, strict=False):
            source = translator.tokenizer.encode(pair.english)
            assert {*translation.hypotheses[0].token_ids} <= {*listed.of(source).tolist()}


SHORT = ["--shortlist-source", "{source}", "--shortlist-target", "{tmp}/short.de"]
PAIR = ["--source-language", "eng_Latn", "--target-language", "deu_Latn"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{tmp}"], "{tmp} holds no model of a format that can be imported:"),
        (["{folder}/config.json"], "{folder}/config.json is only a part of a model: give its folder, {folder}"),
        (["{folder}", "--source-language", "xyz_Latn", *PAIR[2:]], "the model has no source language 'xyz_Latn'"),
        (["{folder}", *PAIR[:2], "--target-language", "klingon"], "--target-language: the model has no target"),
        (["{folder}", "--precision", "int4"], "'int4' is none of fp32, fp16, int8"),
        (["{folder}", "--name", "a b"], "'a b' cannot be a model's name"),
        (["{folder}", "--calibration", "{tmp}/empty.txt"], "{tmp}/empty.txt"),
        (["{folder}", "--calibration", "{folder}/config.json"], "calibration translates in the default direction, and"),
        (["{folder}", "--out", "{tmp}"], "{tmp}: exists already"),
        (["{folder}", *SHORT], "has 30 lines and"),
        (["{folder}", *SHORT[:2]], "--shortlist-source and --shortlist-target belong together"),
        (["{folder}", *SHORT, "--lexical-table", "{source}"], "made from --lexical-table or from --shortlist-source"),
        (["{folder}", *PAIR, "--lexical-table", "{source}"], "a line must be `target source probability`"),
    ],
)
def test_the_command_reports_problems(
    arguments: list[str],
    problem: str,
    nllb: Checkpoint,
    text_files: list[Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.de").write_text("Ein Satz\n", encoding="utf-8")
    places = {"folder": nllb.folder, "tmp": tmp_path, "source": text_files[0]}
    given = [argument.format(**places) for argument in arguments]
    assert run(["import", *given, *([] if "--out" in given else ["--out", str(tmp_path / "b")])]) in (1, 2)
    assert problem.format(**places) in capfd.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.fixture
def copy(marian: Checkpoint, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be changed."""
    return Path(shutil.copytree(marian.folder, tmp_path / "copy"))


def refusal(folder: Path) -> tuple[str, ...]:
    with pytest.raises(CheckpointError) as raised:
        import_checkpoint(folder, folder.parent / "bundle", source_language="en", target_language="de")
    assert not (folder.parent / "bundle").exists()
    return raised.value.problems


def test_a_tokenizer_with_more_tokens_than_the_model(copy: Path) -> None:
    size = len(json.loads((copy / "vocab.json").read_text()))
    change(copy, "vocab.json", **{"▁more": size, "▁and_more": size + 1})
    [problem] = refusal(copy)
    assert str(size + 2) in problem or str(size + 1) in problem


def test_a_checkpoint_without_a_tokenizer_or_an_end(copy: Path) -> None:
    """Both problems are reported."""
    generation = json.loads((copy / "generation_config.json").read_text())
    change(copy, "generation_config.json", suppress_tokens=[generation["eos_token_id"]])
    assert any(problem.startswith("every token of eos_token_id") for problem in refusal(copy))
    (copy / "vocab.json").unlink()
    change(copy, "generation_config.json", eos_token_id=None)
    said = refusal(copy)
    assert any("vocab.json" in problem for problem in said)
    assert "eos_token_id is not given: translations would never end" in said
