"""What verification asks of the graphs that choose tokens, and what these should answer, computed in PyTorch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jumok_serve.search import Constraints, Draw, Entries
from jumok_serve.session import Booleans, Floats, Integers

CASES = 12


@dataclass(frozen=True, kw_only=True)
class Selection:
    """One call of the select graph.

    Attributes:
        logits: [R, V].
        scores: [R], running scores.
        candidates: how many of each row, C.
        on_logits: constraints before the log-softmax.
        on_log_probs: constraints after it.
        renormalize: [R], whether a log-softmax follows.
    """

    logits: Floats
    scores: Floats
    candidates: int
    on_logits: Constraints
    on_log_probs: Constraints
    renormalize: Booleans

    def expected(self) -> tuple[Integers, Floats]:
        """Token ids and running scores [R, C]: two log-softmaxes and a stable sort."""
        log_probabilities = _constrained(torch.from_numpy(self.logits), self.on_logits).log_softmax(dim=-1)
        constrained = _constrained(log_probabilities, self.on_log_probs)
        asking = torch.from_numpy(self.renormalize)[:, None]
        processed = torch.where(asking, constrained.log_softmax(dim=-1), constrained)
        best, tokens = processed.sort(dim=-1, descending=True, stable=True)
        totals = best + torch.from_numpy(self.scores)[:, None]
        return tokens[:, : self.candidates].numpy(), totals[:, : self.candidates].numpy()


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One call of the sampler graph, with what it should draw.

    Attributes:
        logits: [R, V].
        rows: [D], the rows that draw.
        scores: [D], their running scores.
        draws: how each draws, D.
        on_logits: constraints on these rows.
        tokens: [D, 1], what should be drawn.
        totals: [D, 1], running score + log-probability of that.
    """

    logits: Floats
    rows: Integers
    scores: Floats
    draws: tuple[Draw, ...]
    on_logits: Constraints
    tokens: Integers
    totals: Floats


def selections(vocabulary: int) -> Iterator[Selection]:
    """Calls of the select graph in many shapes; the same ones each time.

    Logits and constraints lie on a coarse grid: values are far apart or exactly equal, so that ties are met and
    rounding makes none.
    """
    random = np.random.default_rng(5)
    for rows in (1, *random.integers(2, 13, CASES).tolist()):
        scores = random.integers(-9, 1, rows).astype(np.float32)
        scores[random.random(rows) < 0.2] = -1e9  # rows that are dead
        yield Selection(
            logits=_logits(random, rows, vocabulary),
            scores=scores,
            candidates=int(random.choice([1, 2, 10, vocabulary, vocabulary + 5])),
            on_logits=_constraints(random, rows, vocabulary),
            on_log_probs=_constraints(random, rows, vocabulary),
            renormalize=random.random(rows) < random.choice([0.0, 0.5]),
        )


def drawings(vocabulary: int) -> Iterator[Drawing]:
    """Calls of the sampler graph in many shapes; the same ones each time.

    What is to be drawn is chosen first, and then a number in the middle of its share of the distribution, so that
    rounding cannot change it.
    """
    random = np.random.default_rng(6)
    for rows in (1, *random.integers(2, 13, CASES).tolist()):
        drawing = np.sort(random.permutation(rows)[: int(random.integers(1, rows + 1))])
        logits, scores = _logits(random, rows, vocabulary), random.integers(-9, 1, len(drawing)).astype(np.float32)
        constraints = _constraints(random, len(drawing), vocabulary)
        constrained = _constrained(torch.from_numpy(logits[drawing]), constraints)
        draws, tokens, totals = [], [], []
        for row, score in zip(constrained, scores, strict=True):
            temperature = float(random.choice([0.5, 1.0, 2.0]))
            top_k = int(random.choice([0, 1, 3, vocabulary, vocabulary + 7]))
            top_p = float(random.choice([1e-6, 0.3, 0.9, 1.0]))
            kept = nucleus(row, temperature=temperature, top_k=top_k, top_p=top_p)
            probabilities, order = kept.double().softmax(dim=-1).sort(descending=True, stable=True)
            place = int(random.integers(int((probabilities > 1e-3).sum())))
            uniform = float(probabilities[:place].sum() + probabilities[place] / 2)
            draws.append(Draw(temperature, top_k, top_p, uniform))
            tokens.append(int(order[place]))
            totals.append(float(kept.log_softmax(dim=-1)[order[place]]) + float(score))
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
    """Logits [V] over the temperature, -inf where top-k or top-p (Holtzman et al., 2020) leave a token out."""
    warm = logits / temperature
    if 0 < top_k < len(warm):
        warm = warm.masked_fill(warm < warm.topk(top_k).values[-1], -torch.inf)
    ordered, order = warm.sort(descending=True, stable=True)
    probabilities = ordered.softmax(dim=-1)
    beyond = (probabilities.cumsum(dim=-1) - probabilities >= top_p) & (top_p < 1)
    return warm.masked_fill(torch.zeros_like(beyond).scatter(0, order, beyond), -torch.inf)


def _logits(random: np.random.Generator, rows: int, vocabulary: int) -> Floats:
    return (random.integers(-40, 41, (rows, vocabulary)) / 4).astype(np.float32)


def _constraints(random: np.random.Generator, rows: int, vocabulary: int) -> Constraints:
    """Up to a dozen entries of either kind; of the biases some forbid and some meet at one token."""
    biased = _places(random, rows, vocabulary)
    biases: Entries = [(row, token, float(random.choice([-np.inf, -1.5, 3.0]))) for row, token in biased]
    biases += [(row, token, -2.25) for row, token in biased[:2]]
    penalised = sorted(set(_places(random, rows, vocabulary)))
    return Constraints([(row, token, float(random.choice([0.5, 1.25, 2.0]))) for row, token in penalised], biases)


def _places(random: np.random.Generator, rows: int, vocabulary: int) -> list[tuple[int, int]]:
    places = random.integers((rows, vocabulary), size=(int(random.integers(12)), 2))
    return [(int(row), int(token)) for row, token in places]


def _constrained(scores: Tensor, constraints: Constraints) -> Tensor:
    constrained = scores.clone()
    for row, token, factor in constraints.factors:
        value = constrained[row, token]
        constrained[row, token] = value * factor if value < 0 else value / factor
    for row, token, added in constraints.biases:
        constrained[row, token] += added
    return constrained
