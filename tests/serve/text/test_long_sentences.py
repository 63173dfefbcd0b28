"""Sentences that are too long for the model, and sentences that it cannot read."""

# ruff: noqa: RUF001

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jumok
from jumok_proto.errors import InvalidArgumentError
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.text.sentence_splitting import cut, joint
from jumok_serve.translator import Translator
from tests.support.servers.in_process_server import serving

CLAUSE = "A cat sleeps in the tree and a bird sings over the house, two women read a red book in the street"
LONG = f"{'; '.join([CLAUSE] * 8)}."


@given(st.text("ab,; \u0301。，", max_size=80), st.integers(1, 9))
def test_parts_are_the_sentence_and_fit(sentence: str, longest: int) -> None:
    parts = cut(sentence, lambda part: len(part) <= longest)
    assert "".join(parts) == sentence
    for part in parts:
        assert len(part) <= longest or all(character == "\u0301" for character in part[1:])


@pytest.mark.parametrize(
    ("sentence", "longest", "parts"),
    [
        ("one, two; three, four", 12, ["one, two; ", "three, four"]),
        ("one two, three four", 12, ["one two, ", "three four"]),
        ("one two three four", 12, ["one two ", "three four"]),
        ("onetwothreefour", 8, ["onetwot", "hreefour"]),
        ("短い文，長い文。", 5, ["短い文，", "長い文。"]),
        ("short", 9, ["short"]),
    ],
)
def test_a_cut_is_at_the_best_place_near_the_middle(sentence: str, longest: int, parts: list[str]) -> None:
    assert cut(sentence, lambda part: len(part) <= longest) == parts


def test_cutting_a_long_text_takes_few_looks() -> None:
    looks = 0

    def fits(part: str) -> bool:
        nonlocal looks
        looks += 1
        return len(part) <= 100

    for text in ("a" * 100_000, "a " * 50_000, "a, " * 33_000, "，" * 100_000):
        looks = 0
        assert "".join(cut(text, fits)) == text
        assert looks < 5000


def test_joints_are_white_space_of_the_target() -> None:
    assert joint("one, ", "two", source_spaces=True, space=" ") == " "
    assert joint("one,  ", "two", source_spaces=True, space=" ") == "  "
    assert joint("one", "two", source_spaces=True, space=" ") == ""
    assert joint("短い文，", "長い文", source_spaces=False, space=" ") == " "
    assert joint("one ", "two", source_spaces=True, space="") == ""


def test_only_a_long_sentence_is_cut(translator: Translator) -> None:
    text = f"A bird sings. {LONG} The cat sleeps."
    found = translator.translate(text, beam_size=1)
    assert found.cut_sentences == (LONG,)
    assert not found.source_truncated
    first, last = translator.translate(["A bird sings.", "The cat sleeps."], beam_size=1)
    assert found.text.startswith(f"{first.text} ")
    assert found.text.endswith(f" {last.text}")
    assert translator.translate("A bird sings.").cut_sentences == ()
    (whole,) = translator.translate([LONG], split_sentences=False, cut_long_sentences=True, beam_size=1)
    assert whole.cut_sentences == (LONG,)
    assert f" {whole.text} " in found.text
    for split, cutting in ((False, None), (None, False)):
        with pytest.raises(InvalidArgumentError, match="the model reads at most"):
            translator.translate(text, split_sentences=split, cut_long_sentences=cutting)
    assert translator.translate(text, truncate=True).cut_sentences == ()
    assert translator.translate(text, truncate=True).source_truncated


@pytest.mark.parametrize("text", ["***", "😀", "  ***\n\n😀 … ", "안녕하세요", "你好。 안녕"])
def test_text_that_the_model_cannot_read_is_copied(text: str, translator: Translator) -> None:
    for split_sentences in (True, False):
        found = translator.translate(text, copy_unreadable=True, split_sentences=split_sentences)
        assert (found.text, found.output_token_count) == (text, 0)


def test_only_unreadable_sentences_are_copied(translator: Translator) -> None:
    bird = translator.translate("A bird sings.", beam_size=1)
    found = translator.translate("A bird sings.\n***\n안녕\nThe cat sleeps. 😀", copy_unreadable=True, beam_size=1)
    assert found.text.startswith(f"{bird.text}\n***\n안녕\n")
    assert translator.translate("A bird sings. ***", beam_size=1, target_prefix="***", copy_unreadable=True).text


def test_a_server_cuts_and_copies(translator: Translator) -> None:
    with serving(translator) as address, jumok.Client(address) as client:
        wanted = translator.translate(LONG, beam_size=1)
        assert client.translate(LONG, beam_size=1).cut_sentences == (LONG,)
        assert list(client.translate_stream(LONG, beam_size=1))[-1].text == wanted.text
        one, two = client.translate_iter([LONG, "***"], beam_size=1, copy_unreadable=True)
        assert (one.translation.text, two.translation.text) == (wanted.text, "***")
        with pytest.raises(jumok.InvalidArgumentError, match="reads at most"):
            client.translate(LONG, cut_long_sentences=False)


def test_a_text_too_large_for_the_queue_fails_alone(tiny_bundle: Path) -> None:
    many = "The cat sleeps. " * 30
    limits = EngineLimits(max_queue_requests=20)
    with (
        Translator(tiny_bundle, precision="fp32", replicas=1, threads=1, limits=limits) as translator,
        serving(translator) as address,
        jumok.Client(address) as client,
    ):
        results = list(client.translate_iter(["A bird sings.", many, "The cat sleeps."], beam_size=1, max_length=2))
        assert [result.error is None for result in results] == [True, False, True]
        assert isinstance(results[1].error, jumok.InvalidArgumentError)
        assert results[1].error.field == "content"
