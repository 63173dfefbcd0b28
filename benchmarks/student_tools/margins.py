"""Margins of our choices at the tokens from which another engine's translations differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jumok_export.verification.runtime_side import RuntimeSide
from jumok_export.verification.sides import StepInputs
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Floats, Graphs
from jumok_serve.tokenizers.tokenizer import Tokenizer

DECODE = "decode"
"""The check of a verification that states the error of int8 logits."""


@dataclass(frozen=True, kw_only=True)
class Margin:
    """The first token from which a translation differs.

    Attributes:
        gap: difference of our two best logits there.
        noise: root mean square error of int8 logits there: the share that the bundle states, times their spread.
    """

    text: str
    ours: str
    theirs: str
    position: int
    gap: float
    noise: float

    @property
    def multiple(self) -> float:
        """The gap as a multiple of the noise."""
        return self.gap / self.noise


def margins(
    bundle: Bundle, texts: Sequence[str], ours: Sequence[Sequence[int]], theirs: Sequence[str], *, listed: bool
) -> list[Margin]:
    """Measure the margin in each text whose translations differ.

    Args:
        ours: token ids of our translations, without the end token.
        theirs: the other engine's translations.
        listed: True if both used the bundle's shortlist.
    """
    manifest, tokenizer = bundle.manifest, bundle.tokenizer
    [error] = [check.worst for check in manifest.verification["int8"].checks if check.name == DECODE]
    shortlist = bundle.shortlist() if listed else None
    side = RuntimeSide(Graphs(bundle, "int8", device=CPU, threads=1))
    found = []
    for text, tokens, other in zip(texts, ours, theirs, strict=True):
        written = tokenizer.decode(tokens)
        if written == other:
            continue
        position = first_difference(tokenizer, tokens, other)
        source = [*tokenizer.encode(text), manifest.special_tokens.eos[0]]
        logits = logits_at(side, source, [manifest.special_tokens.start, *tokens][: position + 1])
        spread = error * float(np.sqrt(np.mean(np.square(logits - logits.mean()))))
        allowed = np.arange(len(logits)) if shortlist is None else shortlist.of(source)
        allowed = np.setdiff1d(allowed, manifest.special_tokens.suppress)
        second, best = np.sort(logits[allowed])[-2:].tolist()
        found.append(Margin(text=text, ours=written, theirs=other, position=position, gap=best - second, noise=spread))
    return found


def first_difference(tokenizer: Tokenizer, tokens: Sequence[int], other: str) -> int:
    """Index of the first of our tokens that another translation does not have there; their number for the end token."""
    theirs = tokenizer.encode_target(other)
    same = [ours == their for ours, their in zip(tokens, theirs, strict=False)]
    return same.index(False) if False in same else min(len(tokens), len(theirs))


def logits_at(side: RuntimeSide, source: Sequence[int], decoded: Sequence[int]) -> Floats:
    """Logits [V] after tokens, the start token first."""
    lengths = np.array([len(source)])
    memory, state = side.encode(np.array([source]), lengths)
    state = side.empty_state() | state
    rows = np.zeros(1, np.int64)
    for position, token in enumerate(decoded):
        given = StepInputs(np.array([token]), np.array([position]), rows, lengths, memory, state)
        logits, state = side.step(given)
    found: Floats = logits[0]
    return found
