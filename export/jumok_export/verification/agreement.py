"""Agreement of a precision with fp32: the shares of target tokens and of whole translations that both choose."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jumok_export.parallel import concurrently
from jumok_export.quantization.calibration import TARGET_TOKENS, GreedySearch
from jumok_export.verification.rollout import pad
from jumok_export.verification.sides import Side, StepInputs
from jumok_serve.manifest.manifest import Agreement
from jumok_serve.runtime.graphs import Booleans, Integers

SENTENCES = 200
"""Sources that are translated, if there are as many; fewer for large models."""
TOGETHER = 25
"""Sources that are translated together."""
SHORTEST, LONGEST = 3, 12
"""Tokens of a random source."""


@dataclass(frozen=True, kw_only=True)
class SourceTexts:
    """Texts on which a precision is compared with fp32.

    Attributes:
        sources: token ids of each text, as the encoder reads them.
        search: options of greedy search over them.
        pad: token after the end of shorter sources.
        described: the texts, for the manifest.
        most: most sources that are translated, evenly spread over those given.
    """

    sources: Sequence[Sequence[int]]
    search: GreedySearch
    pad: int
    described: Literal["calibration texts", "random tokens"]
    most: int = SENTENCES

    def batches(self) -> list[list[Integers]]:
        """Sources that are translated together, the shortest first."""
        spread = self.sources[:: -(-len(self.sources) // self.most)]
        ordered = sorted((np.array(source) for source in spread), key=len)
        return [ordered[first : first + TOGETHER] for first in range(0, len(ordered), TOGETHER)]


def random_sources(vocabulary: int, left_out: Sequence[int], longest: int) -> list[list[int]]:
    """Sources of random tokens, always the same.

    Args:
        left_out: tokens that are no text.
        longest: most tokens of a source.
    """
    random = np.random.default_rng(8)
    tokens = np.setdiff1d(np.arange(vocabulary), left_out)
    lengths = np.minimum(random.integers(SHORTEST, LONGEST + 1, SENTENCES), longest)
    return [random.choice(tokens, length).tolist() for length in lengths]


def measure_agreement(expected: Side, found: Side, texts: SourceTexts) -> Agreement:
    """Translate texts greedily in fp32, and compare each token with the choice of another precision.

    Both see the same tokens before. If all tokens of a translation agree, greedy search leaves it unchanged.
    """
    batches = texts.batches()

    def compare(sources: list[Integers]) -> tuple[int, int, int]:
        chosen = _choices(expected, sources, texts, None)
        others = _choices(found, sources, texts, chosen)
        ends = np.isin(chosen, texts.search.eos).astype(np.int64)
        ended: Booleans = np.cumsum(ends, axis=1) > ends
        agree = (chosen == others) | ended
        return int((agree & ~ended).sum()), int((~ended).sum()), int(agree.all(axis=1).sum())

    same, tokens, unchanged = map(sum, zip(*concurrently(compare, batches), strict=True))
    translations = sum(map(len, batches))
    return Agreement(
        share=same / tokens,
        tokens=tokens,
        texts=texts.described,
        translations=translations,
        unchanged=unchanged / translations,
    )


def _choices(side: Side, sources: Sequence[Integers], texts: SourceTexts, given: Integers | None) -> Integers:
    """The most likely token at each step, [B, T].

    Args:
        given: tokens to decode, [B, T]; None: the chosen ones, until all sentences have ended.
    """
    search, rows = texts.search, np.arange(len(sources))
    ids, lengths = pad(sources, texts.pad)
    memory, first_state = side.encode(ids, lengths)
    state = {name: np.repeat(value, len(rows), axis=0) for name, value in side.empty_state().items()} | first_state
    longest = min(search.max_length, TARGET_TOKENS * ids.shape[1]) if given is None else given.shape[1]
    tokens, ended = np.full(len(rows), search.start), np.zeros(len(rows), np.bool_)
    chosen: list[Integers] = []
    for position in range(longest):
        logits, state = side.step(StepInputs(tokens, np.full(len(rows), position), rows, lengths, memory, state))
        logits = logits.copy()
        logits[:, list(search.suppress)] = -np.inf
        best: Integers = logits.argmax(axis=-1)
        if position == 0 and search.forced_first is not None:
            best = np.full(len(rows), search.forced_first)
        chosen.append(best)
        tokens = best if given is None else given[:, position]
        ended |= np.isin(tokens, search.eos)
        if ended.all():
            break
    return np.stack(chosen, axis=1)
