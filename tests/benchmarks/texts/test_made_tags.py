"""The measurement of made tags: tags around words of a sentence, and their words by links."""

import random
import sys

import numpy as np
import pytest

from benchmarks.texts.made_tags import (
    eflomal_links,
    grow_diagonal,
    linked_words,
    scores,
    with_tags,
    words_by_token,
    words_of,
)
from benchmarks.texts.markup import Pair, spans_of
from jumok_serve.tasks.word_alignment import token_places
from jumok_serve.text.markup.parser import parse

SENTENCE = "A man & a dog <play> in front of the old house."


def pair(source: str, target: str, attention: list[list[float]]) -> Pair:
    """A pair whose tokens are its words."""
    (of_source,), (of_target,) = parse(source, "html").blocks, parse(target, "html").blocks
    return Pair(
        source=of_source,
        target=of_target,
        attention={"made": np.array(attention)},
        source_tokens=token_places(of_source.text.split(), of_source.text),
        target_tokens=token_places(of_target.text.split(), of_target.text),
    )


def test_tags_stand_around_words_and_leave_the_sentence() -> None:
    chosen = random.Random(1)
    nested = count = 0
    for _ in range(300):
        (block,) = parse(with_tags(SENTENCE, chosen), "html").blocks
        assert block.text == SENTENCE
        spans = [*spans_of(block.spans)]
        assert 1 <= len(spans) <= 3
        for span in spans:
            assert block.text[span.start : span.end] == block.text[span.start : span.end].strip()
        count += len(spans)
        nested += sum(bool(span.children) for span in spans)
    assert count > 400
    assert nested > 20
    assert with_tags("...", chosen) == "..."


def test_links_of_two_directions_grow_together() -> None:
    forward, backward = {(0, 0), (1, 1), (2, 1), (4, 4)}, {(0, 0), (1, 1), (1, 2), (5, 0)}
    # (2, 1) and (1, 2) stand beside (1, 1), and each has a word without a link; (4, 4) has two; (5, 0) has one.
    assert grow_diagonal(forward, backward) == {(0, 0), (1, 1), (2, 1), (1, 2), (4, 4)}
    assert grow_diagonal(set(), set()) == set()


def test_words_of_spans_by_links_and_by_tokens() -> None:
    made = pair("A <b>brown dog</b> runs .", "Es rennt brauner Hund .", np.eye(5)[[0, 3, 1, 2, 4]].tolist())
    (span,) = made.source.spans
    wanted = linked_words(made, {(1, 2), (2, 3), (3, 1), (4, 4)})
    assert wanted == {span: {2, 3}}
    assert words_by_token(made, made.attention["made"]) == {span: {2, 3}}
    half = words_of({span: (0, len("Es rennt brauner"))}, made)
    assert half == {span: {0, 1, 2}}
    assert scores([half], [wanted]) == pytest.approx((100 / 3, 50, 40))


def test_a_missing_aligner_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eflomal", None)
    with pytest.raises(SystemExit, match="run 'pip install eflomal'"):
        eflomal_links([("a", "b")], 1)
