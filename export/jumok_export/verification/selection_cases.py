"""Test cases of selection and sampling, with the expected results computed in PyTorch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jumok_serve.runtime.graphs import Booleans, Floats, Integers
from jumok_serve.search.constraints import Constraints, Entries
from jumok_serve.search.search import Draw

CASES = 12
NEAR = 1e-4
"""Processed log-probabilities this close, plus a share of `NEAR` / 10, may be in either order."""
EDGE = 1e-4
"""Least distance of top-p from a sum of probabilities at which the kept tokens change."""
MOVED_BY = 0.1
"""Largest distance by which top-p is moved from such an edge."""

Candidates = tuple[Integers, Floats]
"""Tokens and running scores of rows, [R, C] each."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """One call of a selection.

    Attributes:
        logits: logits, [R, V].
        scores: running scores, [R].
        candidates: candidates per row, C.
        on_logits: constraints before the log-softmax.
        on_log_probs: constraints after it.
        renormalize: True for rows with another log-softmax at the end, [R].
    """

    logits: Floats
    scores: Floats
    candidates: int
    on_logits: Constraints
    on_log_probs: Constraints
    renormalize: Booleans

    @cached_property
    def processed(self) -> Tensor:
        """Log-probabilities [R, V] in fp64, after all constraints."""
        log_probabilities = (
            constrained_scores(torch.from_numpy(self.logits), self.on_logits).double().log_softmax(dim=-1)
        )
        constrained = constrained_scores(log_probabilities, self.on_log_probs)
        again = torch.from_numpy(self.renormalize)
        constrained[again] = constrained[again].log_softmax(dim=-1)
        return constrained

    def expected(self) -> Candidates:
        """Expected token ids and running scores [R, C], by a stable sort."""
        tokens = torch.stack([_best(row, self.candidates) for row in self.processed])
        return tokens.numpy(), self.totals(tokens.numpy())

    def totals(self, tokens: Integers) -> Floats:
        """Running scores [R, C] of tokens [R, C]."""
        processed = self.processed.gather(1, torch.from_numpy(tokens))
        totals: Floats = (processed + torch.from_numpy(self.scores)[:, None]).float().numpy()
        return totals

    def misplaced(self, tokens: Integers) -> int:
        """Count the tokens [R, C] that do not belong where they are.

        Nearly equal tokens may be in either order, because rounding decides on it. Exactly equal ones are in the order
        of their ids, and the first of them are chosen.
        """
        rows, vocabulary = self.logits.shape
        if (
            tokens.shape != (rows, min(self.candidates, vocabulary))
            or not 0 <= tokens.min() <= tokens.max() < vocabulary
        ):
            return max(1, tokens.size)
        scores = self.processed.numpy()
        own = np.take_along_axis(scores, tokens, axis=1)
        in_order = (own[:, 1:] < own[:, :-1]).all(axis=1)
        doubtful = np.flatnonzero(~in_order | ((scores >= own[:, -1:]).sum(axis=1) != tokens.shape[1]))
        return sum(_misplaced(scores[row], tokens[row]) for row in doubtful)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One call of the sampler, with the expected result.

    Attributes:
        logits: logits, [R, V].
        rows: rows that draw, [D].
        scores: running scores of these rows, [D].
        draws: sampling parameters of these rows, D.
        on_logits: constraints on these rows.
        tokens: expected tokens, [D, 1].
        totals: expected running scores, [D, 1].
    """

    logits: Floats
    rows: Integers
    scores: Floats
    draws: tuple[Draw, ...]
    on_logits: Constraints
    tokens: Integers
    totals: Floats


def selections(vocabulary: int, unlisted: float = 0.0) -> Iterator[Selection]:
    """Yield calls of a selection in many shapes, always the same.

    Logits lie on a coarse grid, so that equal ones are frequent.

    Args:
        unlisted: share of logits that are -inf.
    """
    random = np.random.default_rng(5)
    for rows in (1, *random.integers(2, 13, CASES).tolist()):
        scores = random.integers(-9, 1, rows).astype(np.float32)
        scores[random.random(rows) < 0.2] = -1e9  # rows that are dead
        yield Selection(
            logits=_logits(random, rows, vocabulary, unlisted),
            scores=scores,
            candidates=int(random.choice([1, 2, 10, vocabulary, vocabulary + 5])),
            on_logits=_constraints(random, rows, vocabulary),
            on_log_probs=_constraints(random, rows, vocabulary, biases=(-2.28, 4.06)),
            renormalize=random.random(rows) < random.choice([0.0, 0.5]),
        )


def drawings(vocabulary: int, unlisted: float = 0.0) -> Iterator[Drawing]:
    """Yield calls of the sampler in many shapes, always the same.

    Logits and constraints lie on grids: values are far apart or exactly equal. A likely token is chosen first, then a
    number in the middle of its share of the distribution, and top-p is no sum of probabilities: rounding changes
    neither the kept tokens nor the drawn one.
    """
    random = np.random.default_rng(6)
    for rows in (1, *random.integers(2, 13, CASES).tolist()):
        drawing = np.sort(random.permutation(rows)[: int(random.integers(1, rows + 1))])
        logits = _logits(random, rows, vocabulary, unlisted)
        scores = random.integers(-9, 1, len(drawing)).astype(np.float32)
        constraints = _constraints(random, len(drawing), vocabulary)
        constrained = constrained_scores(torch.from_numpy(logits[drawing]), constraints)
        draws, tokens, totals = [], [], []
        for row, score in zip(constrained, scores, strict=True):
            temperature = float(random.choice([0.5, 1.0, 2.0]))
            top_k = int(random.choice([0, 1, 3, vocabulary, vocabulary + 7]))
            of_top_k = nucleus(row, temperature=temperature, top_k=top_k, top_p=1.0)
            top_p = between_edges(of_top_k, float(random.choice([1e-6, 0.3, 0.9, 1.0])))
            kept = nucleus(row, temperature=temperature, top_k=top_k, top_p=top_p)
            probabilities = kept.double().softmax(dim=-1)
            token = int(random.choice(np.flatnonzero(probabilities > probabilities.max() / 2)))
            uniform = float(probabilities[:token].sum() + probabilities[token] / 2)
            draws.append(Draw(temperature, top_k, top_p, uniform))
            tokens.append(token)
            totals.append(float(kept.log_softmax(dim=-1)[token]) + float(score))
        yield Drawing(
            logits=logits,
            rows=drawing,
            scores=scores,
            draws=tuple(draws),
            on_logits=constraints,
            tokens=np.array(tokens)[:, None],
            totals=np.array(totals, np.float32)[:, None],
        )


def nucleus(logits: Tensor, *, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Logits [V] over the temperature, -inf outside top-k or top-p.

    See Holtzman et al. (2020).

    Ties with the last token that stays, stay too.
    """
    warm = logits / temperature
    if 0 < top_k < len(warm):
        warm = warm.masked_fill(warm < warm.topk(top_k).values[-1], -torch.inf)
    if top_p < 1:
        ordered, _ = warm.sort(descending=True)
        probabilities = ordered.double().softmax(dim=-1)
        within = probabilities.cumsum(dim=-1) - probabilities < top_p
        warm = warm.masked_fill(warm < ordered[within][-1], -torch.inf)
    return warm


def between_edges(logits: Tensor, top_p: float) -> float:
    """Top-p, moved if rounding could change which of the logits [V] it keeps."""
    if top_p == 1:
        return top_p
    values, groups = torch.unique(logits.double()[logits.isfinite()], return_inverse=True)  # equal logits stay together
    shares = torch.zeros_like(values).index_add(0, groups, logits.double()[logits.isfinite()].softmax(dim=-1))
    upper = shares.flip(0).cumsum(dim=-1)
    lower = torch.cat((-torch.ones(1, dtype=upper.dtype), upper[:-1]))  # the most likely token always stays
    if float((upper - top_p).abs().min()) >= EDGE:
        return top_p
    middles = (lower.clamp(min=0) + upper) / 2
    widths = torch.where((middles - top_p).abs() <= MOVED_BY, upper - lower.clamp(min=0), -1.0)
    return float(middles[widths.argmax()])


def _misplaced(scores: NDArray[np.float64], tokens: Integers) -> int:
    """Count the tokens [C] that are not the best of the scores [V] in order; see `Selection.misplaced`."""
    if np.isnan(scores).any():
        return 0  # no order
    if np.bincount(tokens).max() > 1:
        return len(tokens)
    own = scores[tokens]
    best = -np.partition(-scores, len(tokens) - 1)[: len(tokens)]
    best[::-1].sort()
    with np.errstate(invalid="ignore"):
        far = ~((own == best) | (np.abs(own - best) <= NEAR + NEAR / 10 * np.abs(best)))
    # Of exactly equal tokens, the one with the next lower id has to come before.
    rivals = np.flatnonzero(scores >= own.min())
    order = rivals[np.argsort(-scores[rivals], kind="stable")]
    rank, place = np.zeros(len(scores), np.int64), np.full(len(scores), len(tokens))
    rank[order], place[tokens] = np.arange(len(order)), np.arange(len(tokens))
    before = order[rank[tokens] - 1]
    tied = (rank[tokens] > 0) & (scores[before] == own)
    return int((far | (tied & (place[before] >= np.arange(len(tokens))))).sum())


def _best(scores: Tensor, number: int) -> Tensor:
    """The tokens of the best scores [V], ties by lower token."""
    least = scores.kthvalue(max(1, len(scores) + 1 - number)).values
    tokens = torch.nonzero(~(scores < least))[:, 0]  # NaN is not less
    return tokens[scores[tokens].sort(descending=True, stable=True).indices[:number]]


def _logits(random: np.random.Generator, rows: int, vocabulary: int, unlisted: float) -> Floats:
    logits = (random.integers(-40, 41, (rows, vocabulary)) / 4).astype(np.float32)
    if unlisted:
        logits[:, :-1][random.random((rows, vocabulary - 1)) < unlisted] = -np.inf  # one always remains
    return logits


def _constraints(
    random: np.random.Generator, rows: int, vocabulary: int, biases: tuple[float, float] = (-1.6, 3.1)
) -> Constraints:
    """Up to twelve entries per kind; some forbid a token, maybe twice.

    Logits are multiples of 1 / 4, and with factors of 1 / 16. Biases lie off this grid, each at a distance of its own,
    so that no two tokens become nearly equal before the log-softmax.
    """
    added = [(place, float(random.choice([-np.inf, *biases]))) for place in _places(random, rows, vocabulary)]
    added += [(place, -np.inf) for place, value in added if value == -np.inf]
    factors = [(place, float(random.choice([0.5, 2.0, 4.0]))) for place in _places(random, rows, vocabulary)]
    return Constraints(_entries(factors), _entries(added))


def _entries(entries: Sequence[tuple[tuple[int, int], float]]) -> Entries:
    places = np.array([place for place, _ in entries], np.int64).reshape(-1, 2)
    return Entries(places, np.array([value for _, value in entries], np.float32))


def _places(random: np.random.Generator, rows: int, vocabulary: int) -> list[tuple[int, int]]:
    """Up to a dozen distinct (row, token), without the last token: one always remains."""
    places = random.integers((rows, vocabulary), size=(int(random.integers(12)), 2))
    return sorted({(int(row), int(token)) for row, token in places if token < vocabulary - 1})


def constrained_scores(scores: Tensor, constraints: Constraints) -> Tensor:
    """Scores [R, V] under constraints: factors, then biases."""
    constrained = scores.clone()
    (scaled, factors), (shifted, biases) = (
        (torch.from_numpy(places).unbind(dim=-1), torch.from_numpy(values).to(scores.dtype))
        for places, values in constraints
    )
    before = constrained[scaled]
    constrained[scaled] = torch.where(before < 0, before * factors, before / factors)
    return constrained.index_put_(shifted, biases, accumulate=True)
