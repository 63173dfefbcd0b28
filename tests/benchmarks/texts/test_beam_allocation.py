"""Dynamic beam allocation, the peer of search with terms: hand-worked tables, and brute force over all translations."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from benchmarks.texts.beam_allocation import Progress, Term, bank_rows, search
from jumok_export.models.seq2seq import Tensors
from jumok_export.models.transformer import Transformer, TransformerSizes

START, END, WORDS = 0, 1, (2, 3, 4)
TERMS: list[Term] = [(2,), (3, 4, 3)]
"""The second may be interrupted by its own first token."""
SIZES = TransformerSizes(
    source_vocabulary=5, target_vocabulary=5, width=8, heads=2, feed_forward=16, encoder_layers=1, decoder_layers=1
)


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(3)
    return Transformer(SIZES).eval()


@pytest.mark.parametrize(
    ("rows", "candidates", "given"),
    [
        (8, [9, 9, 9], [2, 2, 4]),  # even parts, and the rest for all terms
        (8, [9, 9, 0], [2, 6, 0]),  # rows go to the nearest bank,
        (8, [9, 0, 9], [4, 0, 4]),  # to that with fewer tokens if two are as near,
        (8, [9, 1, 1], [6, 1, 1]),
        (8, [1, 1, 1], [1, 1, 1]),  # and to none without candidates
        (8, [9], [8]),
        (2, [5, 5, 5], [0, 0, 2]),
    ],
)
def test_banks_share_the_rows(rows: int, candidates: list[int], given: list[int]) -> None:
    assert bank_rows(rows, candidates) == given


def test_progress_of_terms() -> None:
    none = Progress((0, 1))
    assert none.following(TERMS) == {2, 3}
    begun = none.after(3, TERMS)
    assert (begun, begun.tokens(TERMS), begun.following(TERMS)) == (Progress((0, 1), 1, 1), 1, {4})
    assert begun.after(3, TERMS) == begun  # interrupted, and begun again
    assert begun.after(2, TERMS) == Progress((1,))  # interrupted by the other term
    assert begun.after(1, TERMS) == none
    done = begun.after(4, TERMS).after(3, TERMS)
    assert (done, done.tokens(TERMS), done.following(TERMS)) == (Progress((0,)), 3, {2})
    assert done.after(2, TERMS).tokens(TERMS) == 4


def _has(token_ids: Sequence[int], terms: Sequence[Term]) -> bool:
    """True if a sequence has all terms, at places of their own."""
    if not terms:
        return True
    first, *others = terms
    for place in range(len(token_ids) - len(first) + 1):
        if tuple(token_ids[place : place + len(first)]) == first:
            rest = [*token_ids[:place], END, *token_ids[place + len(first) :]]
            if _has(rest, others):
                return True
    return False


class Pairs(Transformer):
    """A model whose next token depends on the last one alone: on its row of a table of logits."""

    def __init__(self, logits: Sequence[Sequence[float]]) -> None:
        super().__init__(SIZES)
        self.table = torch.tensor(logits)

    def step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors]:
        """See `Seq2Seq`."""
        return self.table[token_ids], state

    def score_of(self, tokens: Sequence[int]) -> float:
        """Return the score of a translation by its length, end token included."""
        pairs = itertools.pairwise((START, *tokens, END))
        return sum(float(self.table.log_softmax(-1)[pair]) for pair in pairs) / (len(tokens) + 1)


UNLIKELY_TERM = Pairs(
    [  # START, END and three words; the last one is never among the best, least seldom after 2
        [-9, 2, 1, 0, -25],
        [-9, -9, -9, -9, -9],
        [-9, 2, -1, 1, -15],
        [-9, 2, 1, 0, -25],
        [-9, 1, -2, 1.5, -25],
    ]
)


@torch.no_grad()
@pytest.mark.parametrize("rows", [4, 6, 8])
@pytest.mark.parametrize("terms", [[(4,)], [(4, 3)]])
def test_few_rows_find_unlikely_terms(terms: list[Term], rows: int) -> None:
    length = 4
    best = max(
        (
            list(tokens)
            for count in range(length)
            for tokens in itertools.product(WORDS, repeat=count)
            if _has(tokens, terms)
        ),
        key=UNLIKELY_TERM.score_of,
    )
    assert search(UNLIKELY_TERM, [2, END], terms, start=START, end=END, rows=rows, max_length=length) == best


def test_terms_that_do_not_fit() -> None:
    assert search(UNLIKELY_TERM, [2, END], TERMS, start=START, end=END, rows=6, max_length=4) == []


@torch.no_grad()
@pytest.mark.parametrize("terms", [[], TERMS[:1], TERMS, [(3,), (3,)]])
def test_a_large_beam_finds_the_best_translation(model: Transformer, terms: list[Term]) -> None:
    source, length = [3, 2, 4, END], 5
    best, best_score = [-1], -float("inf")
    for count in range(length):
        for tokens in itertools.product((START, *WORDS), repeat=count):
            if not _has(tokens, terms):
                continue
            target = torch.tensor([[*tokens, END]])
            scores = model.score(
                torch.tensor([source]), torch.tensor([4]), torch.tensor([START]), target, torch.tensor([count + 1])
            )
            if (score := float(scores.sum()) / (count + 1)) > best_score:
                best, best_score = list(tokens), score
    found = search(model, source, terms, start=START, end=END, rows=4**length * 8, max_length=length)
    assert found == best
