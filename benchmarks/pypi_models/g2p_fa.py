"""g2p-fa: letters of Persian words to phonemes, an LSTM that reads padding up to a fixed length."""

from importlib import import_module
from pathlib import Path

import torch

from benchmarks.pypi_models.fixed_length import ReadsPadding
from benchmarks.pypi_models.package import Answer, Mapped, Package, below, fill
from jumok_export.models.foreign_cells import load_pytorch
from jumok_export.models.recurrent import RecurrentSizes
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer

PAD, START, END = range(3)
SPECIAL = ["<pad>", "<s>", "</s>"]
LENGTH = 30
"""Tokens that the encoder reads of each word, padding included."""


def mapped(folder: Path) -> Mapped:
    """Map the package's model."""
    letters_of = import_module("g2p_fa.utils")
    weights = torch.load(folder / "g2p_fa" / "data" / "weights", map_location="cpu", weights_only=True)
    (letters, embedding), (phonemes, width) = (
        weights[f"{name}.weight"].shape for name in ("encoder.embedding", "decoder.fc_out")
    )
    sizes = RecurrentSizes(
        source_vocabulary=letters, target_vocabulary=phonemes, cell="lstm", attention="none",
        embedding=embedding, width=width, layers=2, bidirectional=False,
    )  # fmt: skip
    model = ReadsPadding(sizes, length=LENGTH, pad=PAD)
    for side, layers in (("encoder", model.encoder.layers), ("decoder", model.decoder)):
        load_pytorch(layers, below(weights, f"{side}.rnn."))
    fill(model, "source_embedding", weights, "encoder.embedding.")
    fill(model, "target_embedding", weights, "decoder.embedding.")
    fill(model, "output", weights, "decoder.fc_out.")
    lists = ([*SPECIAL, *spelled, *(f"<{number}>" for number in range(len(spelled) + 3, size))]
             for spelled, size in ((letters_of.FA_LETTERS, letters), (letters_of.IPA_LETTERS, phonemes)))  # fmt: skip
    return Mapped(
        model=model,
        tokenizer=WordListTokenizer("character", *lists, special_tokens=SPECIAL),
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,)),
        languages=Languages.of_pair("fa", "fa-fonipa", prefix=(START,), suffix=(END,)),
        limits=Limits(max_source_length=LENGTH, max_target_length=LENGTH - 1),
    )


def answer(folder: Path) -> Answer:
    """The package's own call, on the CPU and without dropout."""
    package = import_module("g2p_fa").G2P_Fa(checkpoint=None)
    package.model.load_state_dict(torch.load(folder / "g2p_fa" / "data" / "weights", map_location="cpu"))
    package.model.eval()
    own: Answer = package
    return own


PACKAGE = Package(requirement="g2p-fa==1.1.0", kind="LSTM of two layers", mapped=mapped, answer=answer)
