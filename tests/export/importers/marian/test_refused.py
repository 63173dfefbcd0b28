"""Marian models that cannot be imported are refused with all problems, before anything is computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from jumok_export.errors import ExportError
from jumok_export.importers.marian.importing import import_marian
from jumok_export.importers.recognition import recognise
from jumok_export.shortlists.sources import ShortlistError
from tests.support.checkpoints.marian_files import write_npz, write_shortlist
from tests.support.checkpoints.marian_folders import SPECIAL, STUDENT, size_of, vocabulary, write_release, write_student
from tests.support.checkpoints.tokenizer_checkpoints import lines, pieces

MODEL = "opus.model1.npz.best-perplexity.npz"
SIZE = size_of(vocabulary())


def refusal(folder: Path) -> str:
    with pytest.raises(ExportError) as raised:
        recognise(folder).import_model(folder, folder / "bundle", source_language="en", target_language="de")
    assert not (folder / "bundle").exists()
    return str(raised.value)


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("type", "s2s", "the model is of type 's2s': only 'transformer' is supported"),
        ("transformer-decoder-autoreg", "average-attention", "transformer-decoder-autoreg is 'average-attention'"),
        ("transformer-no-projection", True, "attention without output projection is not supported"),
        ("transformer-pool", True, "pooling in place of attention"),
        ("right-left", True, "models that write from right to left"),
        ("transformer-ffn-depth", 3, "transformer-ffn-depth is not 2"),
        ("transformer-ffn-activation", "tanh", "'tanh' is not supported: there are relu, swish, gelu"),
        ("transformer-postprocess", "dhn", "only sums with a norm before or after each layer are supported"),
        ("transformer-heads", 5, "a width of 32 must be even and a multiple of the 5 heads"),
        ("transformer-heads", "many", "option transformer-heads must be an integer from 1"),
        ("enc-depth", 3, "encoder_l3_self_Wq is missing"),
        ("transformer-tied-layers", [1, 2, 3], "transformer-tied-layers is [1, 2, 3], the decoder has 2 layers"),
    ],
)
def test_options_that_change_the_model_are_refused(tmp_path: Path, option: str, value: Any, problem: str) -> None:
    arrays = write_release(tmp_path)
    with np.load(tmp_path / MODEL) as file:
        options = yaml.safe_load(file["special:model.yml"].tobytes().rstrip(b"\0"))
    write_npz(tmp_path / MODEL, arrays, {**options, option: value})
    assert problem in refusal(tmp_path)


def edited(name: str, edit: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: edit(folder / name)


def without_options(folder: Path) -> None:
    np.savez(folder / MODEL, **write_release(folder))  # type: ignore[arg-type]


STUDENTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a truncated model": (
        edited(STUDENT, lambda path: path.write_bytes(path.read_bytes()[:9000])),
        f"{STUDENT} is damaged or incomplete",
    ),
    "another model": (edited(STUDENT, lambda path: path.write_bytes(b"\7" * 4096)), f"{STUDENT} is no binary model"),
    "another cell": (
        lambda folder: write_student(folder, {"dec-cell": "gru"}),
        "option dec-cell is 'gru': only the cell ssru is supported",
    ),
    "several models": (
        edited("model.other.intgemm.bin", Path.touch),
        f"has several models, {STUDENT}, model.other.intgemm.bin: give the file of one",
    ),
    "no vocabulary": (edited("vocab.ende.spm", Path.unlink), "has 0 vocabularies"),
    "no SentencePiece model": (
        edited("vocab.ende.spm", lambda path: path.write_bytes(b"no model")),
        "is not a SentencePiece model",
    ),
    "another vocabulary": (
        edited("vocab.ende.spm", lambda path: path.write_bytes(pieces(lines("en"), 90, **SPECIAL))),
        f"the model has {SIZE} and {SIZE}",
    ),
    "a damaged shortlist": (
        edited("lex.50.50.ende.s2t.bin", lambda path: path.write_bytes(path.read_bytes()[:-8])),
        "lex.50.50.ende.s2t.bin is damaged",
    ),
}
RELEASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "lists of tokens alone": (
        edited("source.spm", Path.unlink),
        "other subwords, such as BPE after Moses' tokenizer, are not supported",
    ),
    "no options": (without_options, f"holds no options of training (special:model.yml): put them beside it as {MODEL}"),
}


@pytest.mark.parametrize("case", [*STUDENTS, *RELEASES])
def test_damaged_and_other_models_are_refused(tmp_path: Path, case: str) -> None:
    (write_student if case in STUDENTS else write_release)(tmp_path)
    damage, problem = (STUDENTS | RELEASES)[case]
    damage(tmp_path)
    assert problem in refusal(tmp_path)


def test_a_shortlist_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    write_student(tmp_path)
    for lists, problem in (
        ([[1]] * (SIZE - 1), f"lists {SIZE - 1} source tokens .* the model has {SIZE} and {SIZE}"),
        ([[SIZE]] * SIZE, f"target tokens up to {SIZE}, the model has"),
    ):
        write_shortlist(tmp_path / "lex.50.50.ende.s2t.bin", lists, frequent=10)
        with pytest.raises(ShortlistError, match=problem):
            import_marian(tmp_path, tmp_path / "bundle")


def test_languages_without_a_name_are_asked_for(tmp_path: Path) -> None:
    write_release(tmp_path)
    with pytest.raises(ExportError, match="does not name its source language: give --source-language"):
        import_marian(tmp_path, tmp_path / "bundle")
