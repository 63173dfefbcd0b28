"""Folders of small Marian models: a release of OPUS-MT, and a student of Firefox."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import sentencepiece

from tests.support.checkpoints.marian_files import write_binary, write_npz, write_shortlist, write_vocabulary
from tests.support.checkpoints.marian_models import Arrays, arrays_of, parameters, settings, train_student
from tests.support.checkpoints.tokenizer_checkpoints import lines, pieces

ALPHA = 127 / 6
"""Multiplier of all activations: values up to 6 are kept apart."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
SENTENCES = 48
"""Sentences of the test data."""
STUDENT = "model.ende.intgemm.alphas.bin"
SPECIAL = {"bos_id": -1, "eos_id": 0, "unk_id": 1}
"""Ids of Marian's own SentencePiece models."""


def vocabulary() -> bytes:
    """A SentencePiece model of both languages; intgemm needs a multiple of 8 tokens."""
    return pieces(lines("en", "de"), 200, **SPECIAL)


def size_of(model: bytes) -> int:
    return int(sentencepiece.SentencePieceProcessor(model_proto=model).GetPieceSize())


def write_student(
    folder: Path, changes: Mapping[str, Any] = NOTHING, *, arrays: Arrays | None = None, shortlist: bool = True
) -> Arrays:
    """Write a student with SSRU: 8-bit weights, alphas, one vocabulary, a shortlist.

    Args:
        changes: options other than the usual ones.
        arrays: its parameters; default: random ones.
    """
    model = vocabulary()
    size = size_of(model)
    recurrent = {"transformer-decoder-autoreg": "rnn", "guided-alignment": "align.gz"}
    options = settings((size, size), **{**recurrent, **changes})
    arrays = parameters((size, size), options, seed=3) if arrays is None else arrays
    alphas = {name: ALPHA for name in arrays if re.search(r"_W.?$", name)} | {"Wemb": ALPHA, "none": ALPHA}
    write_binary(folder / STUDENT, arrays, options, alphas=alphas)
    (folder / "vocab.ende.spm").write_bytes(model)
    if shortlist:
        write_shortlist(folder / "lex.50.50.ende.s2t.bin", student_lists(size), frequent=40, best=200)
    return arrays


def trained_parameters() -> Arrays:
    """Parameters of a student that has learnt the sentences of the test data."""
    return arrays_of(train_student(size_of(vocabulary()), parallel_ids(), updates=300))


def parallel_ids() -> list[tuple[list[int], list[int]]]:
    """Token ids of the test data's sentences and translations, with the end token."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary())
    sides = [[[*processor.EncodeAsIds(line), 0] for line in lines(language)[:SENTENCES]] for language in ("en", "de")]
    return list(zip(*sides, strict=True))


def student_lists(size: int) -> list[list[int]]:
    """Target tokens of each source token: those of its sentences' translations."""
    found: list[set[int]] = [set() for _ in range(size)]
    for source, target in parallel_ids():
        for token in source:
            found[token] |= {*target}
    return [sorted(tokens) for tokens in found]


def write_release(folder: Path, changes: Mapping[str, Any] = NOTHING, *, codes: Sequence[str] = ()) -> Arrays:
    """Write a release of OPUS-MT: .npz, vocab.yml, two SentencePiece models and decoder.yml."""
    source, target = pieces(lines("en"), 120), pieces(lines("de"), 140)
    found = [
        processor.IdToPiece(number)
        for processor in (sentencepiece.SentencePieceProcessor(model_proto=model) for model in (source, target))
        for number in range(3, processor.GetPieceSize())
    ]
    spelled = list(dict.fromkeys(["</s>", "<unk>", *codes, *found]))
    options = settings((len(spelled), len(spelled)), **{"transformer-ffn-activation": "swish", **changes})
    arrays = parameters((len(spelled), len(spelled)), options, seed=5)
    arrays["decoder_ff_logit_out_b"][0, 1] = -30  # a trained model leaves no probability to the unknown token
    write_npz(folder / "opus.model1.npz.best-perplexity.npz", arrays, options)
    write_vocabulary(folder / "opus.vocab.yml", spelled)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    (folder / "decoder.yml").write_text(
        "models:\n  - /home/trainer/opus.model1.npz.best-perplexity.npz\n"
        "vocabs:\n  - opus.vocab.yml\n  - opus.vocab.yml\nbeam-size: 6\nnormalize: 1\nword-penalty: 0\n"
        "relative-paths: true\n"
    )
    return arrays
