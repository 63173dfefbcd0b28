"""Sentence splitting, and translations joined from those of sentences."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

import jumok
from jumok_proto.errors import InvalidArgumentError
from jumok_proto.results import FinishReason
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.text.sentence_splitting import MAX_SENTENCES, SplitText, split
from jumok_serve.translator import Translator
from tests.support.servers.in_process_server import serving

TEXT = "  The cat sleeps. A bird sings in the tree!\r\n\r\nDr. Smith reads\n a book.  Two women talk.\n"
SENTENCES = ("The cat sleeps.", "A bird sings in the tree!", "Dr. Smith reads", "a book.", "Two women talk.")
SPACES = ("  ", " ", "\r\n\r\n", "\n ", "  ", "\n")


@pytest.fixture(scope="module")
def address(translator: Translator) -> Iterator[str]:
    with serving(translator) as address:
        yield address


def joined(parts: list[str], spaces: tuple[str, ...]) -> str:
    assert len(spaces) == len(parts) + 1
    return spaces[0] + "".join(part + space for part, space in zip(parts, spaces[1:], strict=True))


def test_sentences_end_by_language_and_at_line_breaks() -> None:
    assert split(TEXT, "en") == SplitText(SENTENCES, SPACES)
    assert split("She has 3 cats.\x0cHe left.\u2028\r\n\r\n\x0cYes.", "eng_Latn") == SplitText(
        ("She has 3 cats.", "He left.", "Yes."), ("", "\x0c", "\u2028\r\n\r\n\x0c", "")
    )
    assert split("Das kostet z. B. 3,5 Mio. Euro. Am 3. Oktober kam er.", "de-DE").sentences == (
        "Das kostet z. B. 3,5 Mio. Euro.",
        "Am 3. Oktober kam er.",
    )
    assert split("你好。今天天气很好!", "zh_Hans") == SplitText(("你好。", "今天天气很好!"), ("", "", ""))


@pytest.mark.parametrize(
    "text", ["", " \n ", "a", "\u2028a.\x85 b. ﷽ 😀! 😀?", ". . .", "\x1ca.\x1c\x1cb", "a.\u3000b.", '"(' * 99]
)
def test_splitting_keeps_every_character(text: str) -> None:
    for language in ("en", "zh", "hi", "xx", "deu_Latn", ""):
        found = split(text, language)
        assert joined(list(found.sentences), found.kept) == text


def test_translation_joins_the_sentences(translator: Translator) -> None:
    parts = translator.translate(list(SENTENCES), beam_size=2, length_penalty=0.7)
    best = [part.hypotheses[0] for part in parts]
    (whole, empty, alone) = translator.translate(
        [TEXT, " \n", SENTENCES[0]], beam_size=2, length_penalty=0.7, split_sentences=True
    )
    (found,) = whole.hypotheses
    # A single space and two are both kept.
    assert found.text == joined([one.text for one in best], SPACES)
    assert found.tokens == tuple(token for one in best for token in one.tokens)
    assert found.token_ids == tuple(token for one in best for token in one.token_ids)
    assert found.token_scores == pytest.approx([score for one in best for score in one.token_scores], abs=1e-4)
    assert found.score == pytest.approx(sum(found.token_scores) / len(found.token_scores) ** 0.7)
    assert whole.source_token_count == sum(part.source_token_count for part in parts)
    assert (whole.source_truncated, whole.source_language, whole.target_language) == (False, "en", "de")
    assert (empty.text, empty.score, empty.output_token_count) == (" \n", 0.0, 0)
    assert alone.hypotheses[0].token_ids == best[0].token_ids
    assert alone.score == pytest.approx(parts[0].score, abs=1e-4)


def test_a_text_counts_once_and_each_of_its_sentences(translator: Translator) -> None:
    before = translator.counters()
    translator.translate(["A bird sings. The cat sleeps. It rains.", "A bird sings."], split_sentences=True)
    translator.translate(["A bird sings.", "The cat sleeps."])
    after = translator.counters()
    assert (after.texts - before.texts, after.finished - before.finished) == (4, 6)


def test_a_text_of_any_length_has_a_translation(translator: Translator) -> None:
    text = "The cat sleeps. " * 40
    with pytest.raises(InvalidArgumentError):
        translator.translate(text, split_sentences=False)
    found = translator.translate(text, split_sentences=True, beam_size=1)
    assert found.text == f"{translator.translate('The cat sleeps.', beam_size=1).text} " * 40
    assert found.source_token_count > translator.manifest.limits.max_source_length
    # One that ends for its length is said to, whatever its other sentences do.
    short = translator.translate("A bird sings. A bird sings in the tree.", split_sentences=True, max_length=2)
    assert short.hypotheses[0].finish_reason is FinishReason.LENGTH


def test_a_prefix_begins_the_first_sentence(translator: Translator) -> None:
    found = translator.translate(
        ["A bird sings. The cat sleeps.", "The cat sleeps."],
        target_prefix=["Ein", None],
        split_sentences=True,
        beam_size=1,
    )
    first = translator.translate("A bird sings.", target_prefix="Ein", beam_size=1).text
    second = translator.translate("The cat sleeps.", beam_size=1).text
    assert [one.text for one in found] == [f"{first} {second}", second]


LONG = "cat " * 400


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        ({"num_hypotheses": 2, "beam_size": 2}, "options.num_hypotheses", "must be 1 if sentences are split, got 2"),
        ({"attention": True}, "attention", "that of one sentence"),
        ({"texts": ["A. B.", f"The cat sleeps. {LONG}"], "cut_long_sentences": False}, "contents[1]", "tokens"),
        ({"texts": ["A.", "a\0b"]}, "contents[1]", ""),
        ({"texts": ["A.", "\udcff"]}, "contents[1]", ""),
        ({"texts": ["A.", 3]}, "contents[1]", ""),
        ({"texts": ["a\n" * (MAX_SENTENCES + 1)]}, "contents[0]", f"at most {MAX_SENTENCES} sentences"),
        ({"texts": ["a\n" * MAX_SENTENCES, "b"]}, "contents", f"at most {MAX_SENTENCES} sentences"),
        ({"texts": ["a " * 200_000]}, "contents", f"at most {MAX_SENTENCES} sentences"),  # its parts
        ({"texts": ["A. B."] * 2, "target_prefix": ["Ein", "Ein " * 60]}, "target_prefixes[1]", ""),
        ({"texts": ["A. B."] * 2, "target_prefix": ["Ein"]}, "target_prefixes", "one for each of 2 texts"),
    ],
)
def test_refusals_name_the_text(settings: dict[str, object], field: str, message: str, translator: Translator) -> None:
    arguments: dict[str, object] = {"texts": ["A. B."], **settings}
    with pytest.raises(InvalidArgumentError) as refused:
        translator.translate(**arguments, split_sentences=True)  # type: ignore[call-overload]
    assert refused.value.field == field
    assert message in str(refused.value)


def test_every_call_of_a_server_splits(translator: Translator, address: str) -> None:
    wanted = translator.translate(TEXT, split_sentences=True, beam_size=2)

    async def asynchronous() -> list[str]:
        async with jumok.AsyncClient(address) as client:
            texts = [(await client.translate(TEXT, split_sentences=True, beam_size=2)).text]
            updates = [update async for update in client.translate_stream(TEXT, split_sentences=True, beam_size=2)]
            results = client.translate_iter([TEXT, TEXT], split_sentences=True, beam_size=2)
            return [*texts, updates[-1].text, *[result.translation.text async for result in results]]

    assert asyncio.run(asynchronous()) == [wanted.text] * 4
    with jumok.Client(address) as client:
        assert client.translate(TEXT, split_sentences=True, beam_size=2).hypotheses[0].token_ids == (
            wanted.hypotheses[0].token_ids
        )
        assert client.translate(TEXT, beam_size=2, truncate=True, split_sentences=False).text != wanted.text
        assert client.translate(TEXT, beam_size=2).text == wanted.text
        assert list(client.translate_stream(TEXT, beam_size=2))[-1].text == wanted.text
        assert next(client.translate_iter([TEXT], beam_size=2)).translation.text == wanted.text
        updates = list(client.translate_stream(TEXT, split_sentences=True, beam_size=2))
        assert "".join(update.added for update in updates) == wanted.text
        good, bad = client.translate_iter(["A. B.", f"A. {LONG}"], split_sentences=True, cut_long_sentences=False)
        assert good.translation.text
        assert isinstance(bad.error, jumok.InvalidArgumentError)
        assert bad.error.field == "content"
        with pytest.raises(jumok.InvalidArgumentError, match="must be 1 if sentences are split"):
            client.translate(TEXT, split_sentences=True, beam_size=2, num_hypotheses=2)


def test_stable_text_grows_sentence_by_sentence(translator: Translator) -> None:
    wanted = translator.translate(TEXT, split_sentences=True, beam_size=1).text
    sure: list[str] = []
    pending = translator.submit(
        [TEXT],
        TranslationParameters(options=DecodingOptions(beam_size=1), split_sentences=True),
        on_progress=lambda: None,
    )
    while not all(future.done() for future in pending.futures):
        sure += pending.stable_texts()
    sure += pending.stable_texts()
    assert sure[-1] == wanted
    for shorter, longer in itertools.pairwise(sure):
        assert longer.startswith(shorter)
