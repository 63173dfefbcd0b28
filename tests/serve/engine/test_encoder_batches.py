"""Groups for the encoder against every possible split."""

import random
from collections.abc import Iterator, Sequence

import pytest

from jumok_serve.engine.batch import CALL_TOKENS, MAX_CALL_TOKENS, split_by_length
from jumok_serve.engine.sentence import Sentence
from tests.serve.engine.test_scheduling_policy import sentence


def padded(group: Sequence[int]) -> int:
    return len(group) * max(group)


def splits(lengths: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to put things into groups."""
    if not lengths:
        yield []
        return
    first, *rest = lengths
    for split in splits(rest):
        yield [[first], *split]
        for place, group in enumerate(split):
            yield [*split[:place], [first, *group], *split[place + 1 :]]


def group_lengths(sentences: Sequence[Sentence]) -> list[list[int]]:
    groups = split_by_length(sentences)
    assert sorted(map(id, sentences)) == sorted(id(one) for group in groups for one in group)
    return [[len(one.source_ids) for one in group] for group in groups]


def test_no_split_is_cheaper() -> None:
    generator = random.Random(2)
    for _ in range(40):
        lengths = [generator.choice([2, 5, 9, 20, 30, 45, 70, 80]) for _ in range(generator.randint(1, 7))]
        found = group_lengths([sentence(length) for length in lengths])
        least = min(sum(map(padded, split)) + CALL_TOKENS * len(split) for split in splits(lengths))
        assert sum(map(padded, found)) + CALL_TOKENS * len(found) == least
        assert [length for group in found for length in group] == sorted(lengths)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([20], [[20]]),
        ([20, 20, 20], [[20, 20, 20]]),
        ([50, 10], [[10], [50]]),
        ([30, 20], [[20, 30]]),
        ([35, 20, 20], [[20, 20], [35]]),
        ([2000, 2000], [[2000], [2000]]),
    ],
)
def test_sentences_share_a_call_if_padding_costs_less(lengths: list[int], expected: list[list[int]]) -> None:
    assert group_lengths([sentence(length) for length in lengths]) == expected


def test_a_call_is_bounded() -> None:
    groups = group_lengths([sentence(30) for _ in range(100)])
    assert [len(group) for group in groups] == [16, 17, 17, 16, 17, 17]
    assert all(padded(group) <= MAX_CALL_TOKENS for group in groups)


def test_arrival_decides_among_equals() -> None:
    first, second = sentence(7), sentence(7)
    assert split_by_length([first, second]) == [[first, second]]
