"""A student as the files of a release: 8-bit weights with alphas, `.npz`, vocabulary and shortlist."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.student_tools.training import SIZES, Pair, lexicon_of
from tests.support.checkpoints.marian_files import write_binary, write_npz, write_shortlist
from tests.support.checkpoints.marian_models import Student, arrays_of, linear_layers, padded, settings

MODEL, NPZ = "model.ende.intgemm.alphas.bin", "model.npz"
VOCABULARY, SHORTLIST = "vocab.ende.spm", "lex.100.50.ende.s2t.bin"
FREQUENT, BEST = 100, 50
"""Numbers of the shortlist: the first target tokens, and translations of each source token.

Bergamot fills a text's list up to a multiple of 8 with the tokens after the first. Here these are bytes that are in no
translation, so that both sides choose among the same tokens. After 50, Firefox's number, they are the digits.
"""
LARGEST = 127
DEVIATIONS = 1.1
"""Standard deviations above the mean of the batches' largest activations that get the largest value."""


def options(size: int) -> dict[str, Any]:
    """Marian's options of the model, as student.tiny.yml gives them."""
    return settings(
        (size, size),
        **{
            "dim-emb": SIZES["width"],
            "transformer-heads": SIZES["heads"],
            "transformer-dim-ffn": SIZES["feed_forward"],
            "enc-depth": SIZES["encoder_layers"],
            "dec-depth": SIZES["decoder_layers"],
            "transformer-decoder-autoreg": "rnn",
        },
    )


def write_release(
    folder: Path, model: Student, vocabulary: bytes, train: Sequence[Pair], sample: Sequence[Pair]
) -> None:
    """Write all files of a release.

    Args:
        train: pairs that the shortlist is made from.
        sample: pairs whose activations give the alphas.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = model.sizes.target_vocabulary
    arrays = arrays_of(model)
    write_binary(folder / MODEL, arrays, options(size), alphas=alphas(model, sample))
    (folder / "npz").mkdir(exist_ok=True)
    write_npz(folder / "npz" / NPZ, arrays, options(size))
    for path in (folder / VOCABULARY, folder / "npz" / VOCABULARY):
        path.write_bytes(vocabulary)
    write_shortlist(folder / SHORTLIST, lists(train, size), frequent=FREQUENT, best=BEST)


def alphas(model: Student, sample: Sequence[Pair], *, together: int = 32) -> dict[str, float]:
    """Multipliers of activations by matrix, as Marian's calibration computes them.

    Args:
        together: sentences of a batch.
    """
    largest: dict[str, list[float]] = {}
    handles = []
    layers = {**linear_layers(model), "Wemb": model.output}
    for name, layer in layers.items():

        def note(_: nn.Module, inputs: tuple[Tensor], *, name: str = name) -> None:
            largest.setdefault(name, []).append(float(inputs[0].abs().max()))

        handles.append(layer.register_forward_pre_hook(note))
    with torch.no_grad():
        for first in range(0, len(sample), together):
            source_ids, source_lengths = padded([source for source, _ in sample[first : first + together]])
            target_ids, _ = padded([target for _, target in sample[first : first + together]])
            model(source_ids, source_lengths, torch.zeros_like(source_lengths), target_ids)
    for handle in handles:
        handle.remove()
    found = {name: LARGEST / float(np.mean(seen) + DEVIATIONS * np.std(seen)) for name, seen in largest.items()}
    return {**found, "none": found["Wemb"]}


def lists(pairs: Sequence[Pair], size: int) -> list[list[int]]:
    """The likeliest target tokens of each source token by IBM Model 1."""
    lexicon = lexicon_of(pairs, size)
    found = []
    for first, last in zip(lexicon.offsets[:-1].tolist(), lexicon.offsets[1:].tolist(), strict=True):
        best = np.argsort(-lexicon.probabilities[first:last], kind="stable")[:BEST]
        found.append(sorted(lexicon.targets[first:last][best].tolist()))
    return found
