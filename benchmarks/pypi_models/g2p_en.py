"""g2p-en: letters of English words to phonemes, a GRU without attention."""

from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from benchmarks.pypi_models.package import Answer, Mapped, Package, fill
from jumok_export.models.foreign_cells import load_pytorch
from jumok_export.models.recurrent import Recurrent, RecurrentSizes, make_recurrent
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer

PAD, UNKNOWN, START, END = range(4)
LETTERS = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
VOWELS = ["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"]
CONSONANTS = [*"BDFGKLMNPRSTVWYZ", "CH", "DH", "HH", "JH", "NG", "SH", "TH", "ZH"]
PHONEMES = [
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    *sorted([*(f"{vowel}{stress}" for vowel in VOWELS for stress in range(3)), *CONSONANTS, "UW"]),
]
LONGEST = 20
"""Phonemes after which the package stops."""


def model_of(folder: Path) -> Recurrent:
    """Map the package's weights."""
    arrays = np.load(folder / "g2p_en" / "checkpoint20.npz")
    weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    (letters, embedding), (phonemes, width) = weights["enc_emb"].shape, weights["fc_w"].shape
    sizes = RecurrentSizes(
        source_vocabulary=letters, target_vocabulary=phonemes, cell="gru", attention="none",
        embedding=embedding, width=width, bidirectional=False,
    )  # fmt: skip
    model = make_recurrent(sizes)
    parts = [f"{part}_{side}" for part in ("w", "b") for side in ("ih", "hh")]
    pytorch = {part: part.replace("w_", "weight_").replace("b_", "bias_") + "_l0" for part in parts}
    load_pytorch(model.encoder.layers, {pytorch[part]: weights[f"enc_{part}"] for part in parts})
    load_pytorch(model.decoder, {pytorch[part]: weights[f"dec_{part}"] for part in parts})
    fill(model, "source_embedding", {"weight": weights["enc_emb"]})
    fill(model, "target_embedding", {"weight": weights["dec_emb"]})
    fill(model, "output", {"weight": weights["fc_w"], "bias": weights["fc_b"]})
    return model


def mapped(folder: Path) -> Mapped:
    """Map the package's model."""
    special = ["<pad>", "<s>", "</s>"]
    return Mapped(
        model=model_of(folder),
        tokenizer=WordListTokenizer(
            "character", LETTERS, PHONEMES, target_unit="word", unknown="<unk>", special_tokens=special
        ),
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN),
        languages=Languages.of_pair("en", "en-fonipa", suffix=(LETTERS.index("</s>"),)),
        limits=Limits(max_source_length=64, max_target_length=LONGEST),
    )


def answer(folder: Path) -> Answer:
    """The package's model alone: its constructor would load NLTK's data."""
    model = object.__new__(import_module("g2p_en").G2p)
    model.graphemes, model.phonemes = LETTERS, PHONEMES
    model.g2idx = {letter: number for number, letter in enumerate(LETTERS)}
    model.idx2p = dict(enumerate(PHONEMES))
    model.load_variables()
    return lambda text: " ".join(model.predict(text))


PACKAGE = Package(
    requirement="g2p-en==2.1.0",
    needs=("nltk", "inflect==5.6.2"),
    kind="GRU without attention",
    mapped=mapped,
    answer=answer,
)
