"""Search with terms by dynamic beam allocation (Post and Vilar, 2018), in PyTorch: the peer of our search.

The rows of a beam are shared out among banks. Here a bank has the hypotheses with the same number of tokens of terms,
as in the paper; those of our search count terms. Each bank gets as many rows, the one with all terms the rest, and rows
that a bank has no candidates for go to the nearest.

A hypothesis follows one reading of its tokens: it may miss a term that begins inside of another one.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch

from jumok_export.models.seq2seq import Seq2Seq

Term: TypeAlias = tuple[int, ...]
"""Token ids."""


class Progress(NamedTuple):
    """Progress of a hypothesis in its terms.

    Attributes:
        left: indices of the terms that it does not have, ascending.
        current: index of the term that it is writing, or None.
        written: tokens of that term so far.
    """

    left: tuple[int, ...]
    current: int | None = None
    written: int = 0

    def following(self, terms: Sequence[Term]) -> set[int]:
        """Return the tokens that bring a term forward: of the one being written, or the first of any that is left."""
        if self.current is not None:
            return {terms[self.current][self.written]}
        return {terms[index][0] for index in self.left}

    def after(self, token: int, terms: Sequence[Term]) -> "Progress":
        """Return the progress after a token; a term that is interrupted is lost."""
        begun = [(self.current, self.written)] if self.current is not None else []
        for index, written in (*begun, *((index, 0) for index in self.left)):
            if terms[index][written] == token:
                if written + 1 < len(terms[index]):
                    return Progress(self.left, index, written + 1)
                return Progress(tuple(other for other in self.left if other != index))
        return Progress(self.left)

    def tokens(self, terms: Sequence[Term]) -> int:
        """Return the number of tokens of terms that it has."""
        return sum(map(len, terms)) - sum(len(terms[index]) for index in self.left) + self.written


class Hypothesis(NamedTuple):
    """New tokens with the sum of their log-probabilities."""

    score: float
    row: int
    token_ids: tuple[int, ...]
    progress: Progress


def bank_rows(rows: int, candidates: Sequence[int]) -> list[int]:
    """Return the rows of each bank.

    Args:
        rows: rows of the beam.
        candidates: candidates of each bank, [banks].
    """
    banks = len(candidates)
    wanted = [rows // banks] * (banks - 1) + [rows - rows // banks * (banks - 1)]
    given = [min(pair) for pair in zip(wanted, candidates, strict=True)]
    for bank in reversed(range(banks)):
        spare = max(0, wanted[bank] - candidates[bank])
        for _, other in sorted((abs(other - bank), other) for other in range(banks)):
            moved = min(spare, candidates[other] - given[other])
            given[other] += moved
            spare -= moved
    return given


@torch.no_grad()
def search(
    model: Seq2Seq,
    source_ids: Sequence[int],
    terms: Sequence[Term],
    *,
    start: int,
    end: int,
    rows: int,
    max_length: int,
) -> list[int]:
    """Return a translation that has all terms, without its end token; empty if there is none.

    It is the best by score / length of those that end until there are `rows`.

    Args:
        model: the model.
        source_ids: tokens of the source, end token included.
        terms: tokens of each term.
        start: token that decoding starts with.
        end: end token, written only after all terms.
        rows: rows of the beam.
        max_length: most new tokens.
    """
    lengths = torch.tensor([len(source_ids)])
    memory, first_state = model.encode(torch.tensor([source_ids]), lengths)
    state = first_state or model.empty_state()
    beam = [Hypothesis(0.0, 0, (), Progress(tuple(range(len(terms)))))]
    tokens, parents, ended = [start], [0], list[Hypothesis]()
    for position in range(max_length):
        count = len(beam)
        logits, state = model.step(
            torch.tensor(tokens),
            torch.full((count,), position),
            torch.tensor(parents),
            lengths,
            memory,
            state,
        )
        scores = logits.log_softmax(-1) + torch.tensor([[one.score] for one in beam])  # [rows, V]
        banks: dict[int, list[Hypothesis]] = defaultdict(list)
        for candidate in _candidates(beam, scores, terms, end, rows):
            banks[candidate.progress.tokens(terms)].append(candidate)
        total = sum(map(len, terms))
        allowed = bank_rows(rows, [len(banks[bank]) for bank in range(total + 1)])
        kept = [
            one for bank, most in enumerate(allowed) for one in sorted(banks[bank], key=_score, reverse=True)[:most]
        ]
        ended += [one for one in kept if one.token_ids[-1] == end]
        beam = [one for one in kept if one.token_ids[-1] != end]
        if len(ended) >= rows or not beam:
            break
        tokens, parents = [one.token_ids[-1] for one in beam], [one.row for one in beam]
    best = max(ended, key=lambda one: one.score / len(one.token_ids), default=None)
    return [] if best is None else list(best.token_ids[:-1])


def _score(hypothesis: Hypothesis) -> float:
    return hypothesis.score


def _candidates(
    beam: Sequence[Hypothesis], scores: torch.Tensor, terms: Sequence[Term], end: int, rows: int
) -> Iterator[Hypothesis]:
    """Yield the best continuations of all, the best of each row, and those that bring a term forward."""
    # The end of each row may be refused.
    best = scores.flatten().topk(min(rows + len(beam), scores.numel())).indices.tolist()
    chosen = {divmod(place, scores.shape[1]) for place in best}
    chosen |= set(enumerate(scores.argmax(-1).tolist()))
    for row, hypothesis in enumerate(beam):
        chosen |= {(row, token) for token in hypothesis.progress.following(terms)}
    for row, token in sorted(chosen):
        hypothesis = beam[row]
        if token == end and hypothesis.progress.left:
            continue
        yield Hypothesis(
            float(scores[row, token]),
            row,
            (*hypothesis.token_ids, token),
            hypothesis.progress.after(token, terms),
        )
