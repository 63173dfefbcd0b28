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
        gap: difference of our best logit there and that of the token by which the other translation can go on.
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
    [end] = manifest.special_tokens.eos
    side = RuntimeSide(Graphs(bundle, "int8", device=CPU, threads=1))
    found = []
    for text, tokens, other in zip(texts, ours, theirs, strict=True):
        written = tokenizer.decode(tokens)
        if written == other:
            continue
        source = [*tokenizer.encode(text), end]
        common = common_tokens(tokenizer, tokens, other)
        logits = logits_of(side, source, [manifest.special_tokens.start, *tokens[:common]])
        allowed = np.arange(logits.shape[1]) if shortlist is None else shortlist.of(source)
        forbidden = np.setdiff1d(np.arange(logits.shape[1]), np.setdiff1d(allowed, manifest.special_tokens.suppress))
        bounded = logits.copy()
        bounded[:, forbidden] = -np.inf
        position, gap = first_difference(tokenizer, end, bounded, tokens, other)
        spread = error * float(np.std(logits[position]))
        found.append(Margin(text=text, ours=written, theirs=other, position=position, gap=gap, noise=spread))
    return found


def common_tokens(tokenizer: Tokenizer, tokens: Sequence[int], other: str) -> int:
    """Number of our first tokens with which another translation can begin."""
    return next(
        (end - 1 for end in range(1, len(tokens) + 1) if not other.startswith(tokenizer.decode_stable(tokens[:end]))),
        len(tokens),
    )


def first_difference(
    tokenizer: Tokenizer, end: int, logits: Floats, tokens: Sequence[int], other: str
) -> tuple[int, float]:
    """Find the token from which another translation differs, and how much likelier ours is.

    A text can be written in several tokens, so the text alone does not tell where the other engine left our tokens.
    It did so at one of those with which the text can begin, or at the next: the one with the smallest gap is taken.

    Args:
        end: the end token.
        logits: of the tokens after 0 .. `common_tokens` of ours, [N, V]; -inf for tokens that may not follow.

    Returns:
        The token's index, and the gap of the logits of our best token and of the best that the other text goes on by.
    """
    gaps = []
    for position, of_token in enumerate(logits):
        ours = tokens[position] if position < len(tokens) else end
        before = [*tokens[:position]]
        theirs = next(
            token
            for token in np.argsort(-of_token, kind="stable").tolist()
            if token != ours and _goes_on(tokenizer, before, token, end, other)
        )
        gaps.append(float(of_token.max() - of_token[theirs]))
    position = int(np.argmin(gaps))
    return position, gaps[position]


def _goes_on(tokenizer: Tokenizer, before: list[int], token: int, end: int, other: str) -> bool:
    """True if a text can go on by a token, or end with it."""
    if token == end:
        return tokenizer.decode(before) == other
    return other.startswith(tokenizer.decode_stable([*before, token]))


def logits_of(side: RuntimeSide, source: Sequence[int], decoded: Sequence[int]) -> Floats:
    """Logits [N, V] after each of N tokens, the start token first."""
    lengths = np.array([len(source)])
    memory, state = side.encode(np.array([source]), lengths)
    state = side.empty_state() | state
    rows = np.zeros(1, np.int64)
    found = []
    for position, token in enumerate(decoded):
        given = StepInputs(np.array([token]), np.array([position]), rows, lengths, memory, state)
        logits, state = side.step(given)
        found.append(logits[0])
    return np.stack(found)
