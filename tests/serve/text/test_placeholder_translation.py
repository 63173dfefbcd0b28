"""Translation of texts with placeholders: each is in the translation once, in all kinds of translations."""

import random
import re
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_proto.results import Translation
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.text.markup.catalogue import RULES, Message
from jumok_serve.text.messages import parse_message
from jumok_serve.text.terms.glossary import PLACEHOLDERS
from jumok_serve.translator import Translator
from tests.support.models.variants import edited, without

KINDS = (
    "{0}",
    "{name}",
    "{{ user }}",
    "${file}",
    "%1$s",
    "%(count)d",
    "%@",
    "https://example.org/a?b=1&c=2",
    "anna@example.org",
    "@user@host",
)
WORDS = ("a", "man", "dog", "in", "the", "park", "runs.", "Two", "women,", "(girl)", "climbing")
SHORT: dict[str, Any] = {"max_length": 24}


def made_text(rng: random.Random) -> str:
    parts = [*rng.choices(KINDS, k=rng.randint(1, 5)), *rng.choices(WORDS, k=rng.randint(0, 8))]
    rng.shuffle(parts)
    return rng.choice(["", " ", "\n"]) + rng.choice([" ", "  ", "\n", " "]).join(parts) + rng.choice(["", ".", " "])


def placeholders(text: str) -> Counter[str]:
    return Counter(text[hole.first : hole.after] for hole in PLACEHOLDERS.find(text))


def check(text: str, translation: Translation) -> None:
    """Check all hypotheses of a text."""
    expected = placeholders(text)
    for one in translation.hypotheses:
        assert {content: one.text.count(content) for content in expected} == expected, (text, one.text)
        copied = Counter[str]()
        for term in one.terms:
            assert term.satisfied
            assert term.source_span is not None
            assert term.target_span is not None
            assert text[term.source_span.first : term.source_span.after] == term.source
            assert one.text[term.target_span.first : term.target_span.after] == term.source
            copied[term.source] += 1
        assert sum(len(term) * count for term, count in copied.items()) == sum(
            len(term) * count for term, count in expected.items()
        )


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 4},
    "sampling": {"sample": True, "split_sentences": False},
    "hypotheses": {"beam_size": 4, "num_hypotheses": 3, "split_sentences": False},
    "sampled hypotheses": {"sample": True, "num_hypotheses": 3, "split_sentences": False},
    "whole": {"split_sentences": False},
    "attention": {"attention": True, "split_sentences": False},
    "copied": {"copy_unreadable": True},
    "terms": {"glossary": {"dog": "Hund", "name": "Name", "example": "Beispiel"}},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=[*OPTIONS])
def test_each_is_there_once(translator: Translator, options: dict[str, Any]) -> None:
    rng = random.Random(3)
    texts = [made_text(rng) for _ in range(60)]
    translations = translator.translate(texts, placeholders=True, **{**SHORT, **options})
    for text, translation in zip(texts, translations, strict=True):
        if "glossary" in options:
            kept = [one for one in translation.hypotheses[0].terms if one.targets == (one.source,)]
            assert "name" not in {one.source for one in translation.hypotheses[0].terms}
            assert len(kept) <= sum(placeholders(text).values())
            expected = placeholders(text)
            assert {content: translation.text.count(content) for content in expected} == expected
        else:
            check(text, translation)


def test_a_target_prefix_has_some(translator: Translator) -> None:
    text = "The {name} runs in {0} to %1$s."
    for prefix in ("", "Ein {0}", "Ein %1$s und {name}, ", "ein"):
        translation = translator.translate(
            text, placeholders=True, target_prefix=prefix, split_sentences=False, **SHORT
        )
        check(text, translation)
        if "{" not in prefix:  # the vocabulary lacks digits
            assert translation.text.startswith(prefix)


@pytest.mark.parametrize("prefix", ["ein", "ein  "])
@pytest.mark.parametrize("text", ["Open {name} and %s", "{name}", "{name}, {id}", "{n, plural, other {Dogs}}"])
def test_a_target_prefix_stays_at_the_beginning(translator: Translator, text: str, prefix: str) -> None:
    translation = translator.translate(text, placeholders=True, target_prefix=prefix, split_sentences=False, **SHORT)
    assert translation.text.startswith("ein")
    assert all(translation.text.count(one) == 1 for one in re.findall(r"\{[a-z]+\}|%s|\{n, plural, other", text))


def test_stable_texts_are_beginnings_of_the_translation(translator: Translator) -> None:
    rng = random.Random(4)
    texts = [made_text(rng) for _ in range(30)]
    parameters = TranslationParameters(split_sentences=True, placeholders=PLACEHOLDERS)
    stable = list[list[str]]()
    pending = translator.submit(texts, parameters, on_progress=lambda: stable.append(pending.stable_texts()))
    translations = pending.collect()
    stable.append(pending.stable_texts())
    for texts_then in stable:
        for text, translation in zip(texts_then, translations, strict=True):
            assert translation.text.startswith(text)


@pytest.mark.parametrize("markup", ["html", "xml"])
def test_markup_has_each_once_as_it_was_written(translator: Translator, markup: MarkupKind) -> None:
    rng = random.Random(5)
    contents = ("{name}", "{{ a &amp; b }}", "{{\n  c }}", "https://example.org/?a=1&amp;b=2", "%(count)d")
    for _ in range(40):
        parts = [*rng.choices(contents, k=3), *rng.choices(WORDS, k=4), "<b>", "<code>x{y}</code>"]
        rng.shuffle(parts)
        opened = parts.index("<b>")
        parts.insert(rng.randint(opened + 1, len(parts)), "</b>")
        text = f"<p>{' '.join(parts)}</p>"
        rules = MarkupRules(ignore_tags=("code",))
        written = translator.translate(text, placeholders=True, markup=markup, markup_rules=rules, **SHORT).text
        for content in {*contents, "x{y}"}:
            assert written.count(content) == text.count(content), (text, written)
        assert unescape(written).count("<b>") == unescape(written).count("</b>") == 1


@pytest.mark.parametrize(
    ("markup", "text", "masks"),
    [
        ("xml", 'A dog <x id="16"></x> to <x id="22"></x>.', ['<x id="16"></x>', '<x id="22"></x>']),
        ("xml", '<x id="1"/> runs, <ph\nid="2"/><x/>', ['<x id="1"/>', '<ph\nid="2"/><x/>']),
        ("xml", "A <b>dog <keep/></b> <i>in</i> <m/> the <no translate='no'/> park.", ["<keep/>"]),
        ("xml", "A <keep>%s <b>dogs</b></keep> in <ph>%d</ph>", ["%s dogs", "%d"]),
        ("xml", "A {n, plural, other {# <x/>}} dog", []),  # parted: a branch has no words
        ("html", "A dog <X ID=1 /> to <x id=2></x>", ["<X ID=1 />", "<x id=2></x>"]),
        ("html", 'A <span class="notranslate" id=1></span> dog', ['<span class="notranslate" id=1></span>']),
        ("html", "A <kbd>+</kbd> and <code>a <b>b</b></code>", ["+", "a b"]),
        ("html", 'A <a id=b></a> <img src=a> <i class="notranslate"></i> <b></b> <wbr> <code></code> dog', []),
        ("html", 'A <svg><path d="x"/></svg> dog<br>in <script>a</script> the park', []),
        ("html", '<x id="1"/> <code>a</code>', []),
    ],
)
def test_masks_are_placeholders(translator: Translator, markup: MarkupKind, text: str, masks: list[str]) -> None:
    rules = MarkupRules(ignore_tags=("keep",))
    found = translator.translate(text, placeholders=True, markup=markup, markup_rules=rules, **SHORT)
    assert [term.source for term in found.hypotheses[0].terms] == masks
    for tag in re.findall(r"<[^>]+>", text):
        assert found.text.count(tag) == text.count(tag)
    plain = translator.translate(text, placeholders=False, markup=markup, markup_rules=rules, **SHORT)
    assert sorted(re.findall(r"<[^>]+>", plain.text)) == sorted(re.findall(r"<[^>]+>", text))


def test_a_flagged_message_needs_no_aligner(tiny_bundle: Path, tmp_path: Path) -> None:
    message = Message("A dog %s in %d.\n%s", ["c-format"])
    with Translator(edited(tiny_bundle, tmp_path / "plain", without("aligner")), replicas=1, threads=1) as plain:
        found = plain.translate(message.markup, markup="xml", markup_rules=RULES, placeholders=True, **SHORT)
    written = message.write(found.text)
    assert Counter(re.findall("%.", written)) == message.conversions


def test_ignored_content_like_a_placeholder_is_apart_from_it(translator: Translator) -> None:
    for words in ("a man {name} <code>{name}</code> a dog", "<kbd>%s</kbd> in the <b>park %s</b> %s"):
        written = translator.translate(f"<p>{words}</p>", placeholders=True, markup="html", **SHORT).text
        for part in ("{name}", "%s", "<code>{name}</code>", "<kbd>%s</kbd>"):
            assert written.count(part) == words.count(part), written


@pytest.mark.parametrize("content", ["{name}", "%(n)s", "ask {x}", "https://example.org/a"])
def test_placeholders_in_ignored_content_are_read_as_others_are(translator: Translator, content: str) -> None:
    element = f"<code>{content}</code>"
    for text in (f"A man in {element}.", f"{element} runs in {element}.", f"Two {element}{element} or more"):
        found = translator.translate(text, placeholders=True, markup="html", **SHORT)
        assert "".join(term.source for term in found.hypotheses[0].terms) == content * text.count(content)
        written = found.text
        assert written.count(element) == text.count(element)
        assert not set("{}%$<>/").intersection(written.replace(element, ""))


@pytest.mark.parametrize("text", ["{0}", "%s%d", "{a}/{b}", "%s: %s", " {x} ", "{a} {b}\n{a}", "https://example.org/"])
def test_nothing_but_placeholders_is_copied(translator: Translator, text: str) -> None:
    for split_sentences in (True, False):
        found = translator.translate(text, placeholders=True, split_sentences=split_sentences)
        assert found.text == text
        assert found.hypotheses[0].tokens == ()


PERCENTAGES = ("50% dog", "a 20 % dog, 30% man", "Two dogs: 3.5% of 1,000%.", "{0} of 100% in the park")


@pytest.mark.parametrize("options", [{}, {"beam_size": 4, "num_hypotheses": 2, "split_sentences": False}])
@pytest.mark.parametrize("text", PERCENTAGES)
def test_percentages_are_kept(translator: Translator, text: str, options: dict[str, Any]) -> None:
    """The model, whose vocabulary lacks digits, cannot write them."""
    for one in translator.translate(text, placeholders=True, **SHORT, **options).hypotheses:
        for number in re.findall(r"[\d.,]+(?= ?%)", text):
            assert re.search(rf"{re.escape(number)} ?%", one.text), one.text
    of_some = translator.translate(text, placeholders=("url",), **SHORT)
    without_any = translator.translate(text, **SHORT)
    assert of_some.text == without_any.text or "{" in text


@pytest.mark.parametrize("markup", [None, "html"])
def test_percentages_are_kept_over_tags_and_streams(translator: Translator, markup: MarkupKind | None) -> None:
    texts = ["A <b>50%</b> dog." if markup else "A 50% dog.", "In the park, 20 % run. A man runs."]
    parameters = TranslationParameters(split_sentences=True, placeholders=PLACEHOLDERS, markup=markup)
    stable = list[list[str]]()
    pending = translator.submit(texts, parameters, on_progress=lambda: stable.append(pending.stable_texts()))
    translations = pending.collect()
    assert [one.text.count("%") for one in translations] == [1, 1]
    for texts_then in stable:
        for text, translation in zip(texts_then, translations, strict=True):
            assert translation.text.startswith(text)


@pytest.mark.parametrize(
    "text",
    [
        "\u200eA dog runs.\u200e",
        "\u202bA dog runs.\u202c \u202bA man runs.\u202c",
        "A \u2068{name}\u2069 runs",
        "A \u2066dog\u2069 in the park",
        "\u200f\u061c",
    ],
)
def test_marks_of_direction_are_kept(translator: Translator, text: str) -> None:
    written = translator.translate(text, placeholders=True, **SHORT).text
    marks = "[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
    assert re.findall(marks, written) == re.findall(marks, text)
    for end in (0, -1):
        assert (written[end] == text[end]) or not re.match(marks, text[end])


def test_branches_of_messages_are_translated(translator: Translator) -> None:
    text = (
        "{n, plural, =0 {a man} one {# man in {place}} other {{g, select, f {# women} other {'{'it''s # {name}}}}}"
        " runs in {place}."
    )
    several: dict[str, Any] = {"num_hypotheses": 2, "beam_size": 4, "split_sentences": False}
    for options in ({}, several):
        found = translator.translate(text, placeholders=True, **SHORT, **options)
        for one in found.hypotheses:
            before, after = parse_message(text), parse_message(one.text)
            assert before is not None
            assert after is not None, one.text
            assert [branch.selector for branch in before.branches] == [branch.selector for branch in after.branches]
            for branch, translated in zip(before.branches, after.branches, strict=True):
                kinds = [
                    Counter(one.kind for one in part.holes if one.kind != "quote") for part in (branch, translated)
                ]
                assert kinds[0] == kinds[1], one.text


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        ("{n, plural, one {a <b>man</b>} other {<x id='1'/> women &amp; men}}", "{n, plural, one {*} other {*}}"),
        ("<b>{n, plural, one {a man} other {# men}}</b> in the park", "<b>{n, plural, one {*} other {*}}</b>*"),
        (
            "a {g, select, f {woman {n, plural, one {<i>#</i> dog} other {<i>#</i> dogs}}} other {m<br/>n}} runs",
            "*{g, select, f {*{n, plural, one {*} other {*}}} other {*}}*",
        ),
    ],
)
def test_no_tag_leaves_its_branch(translator: Translator, text: str, syntax: str) -> None:
    written = translator.translate(text, placeholders=True, markup="html", **SHORT).text
    parts = re.fullmatch("([^{}]*)".join(map(re.escape, syntax.split("*"))), written)
    before = re.fullmatch("([^{}]*)".join(map(re.escape, syntax.split("*"))), text)
    assert parts is not None, written
    assert before is not None
    for part, source in zip(parts.groups(), before.groups(), strict=True):
        assert sorted(re.findall("<[^>]+>|#", part)) == sorted(re.findall("<[^>]+>|#", source))


def test_tags_around_messages_are_kept(translator: Translator) -> None:
    message = "{n, plural, one {a <b>{name}</b> man} other {# <b>men</b>}}"
    found = translator.translate(f"<i>{message}</i>", placeholders=True, **SHORT).text
    assert [found.count(tag) for tag in ("<i>", "</i>", "<b>", "</b>")] == [1, 1, 2, 2]


@pytest.mark.parametrize(("part", "count"), [("{a} ", 10_000), ("{a}{b} man. ", 300), ("a{a},", 500), ("{a}", 10_000)])
def test_thousands_are_kept(translator: Translator, part: str, count: int) -> None:
    found = translator.translate(part * count, placeholders=True, max_length=8)
    assert found.text.count("{a}") == count


def test_parts_to_copy_are_translated_by_no_model(translator: Translator) -> None:
    found = translator.translate("A dog in CLASSPATH.", do_not_translate=["dog", "CLASSPATH"], sample=True, **SHORT)
    assert found.text.count("dog") >= 1
    assert found.text.count("CLASSPATH") == 1
    assert [(term.source, term.spliced) for term in found.hypotheses[0].terms][1] == ("CLASSPATH", True)
    with pytest.raises(InvalidArgumentError, match="matches any word"):
        translator.translate("a", do_not_translate=["*"])


def test_no_placeholder_is_kept_unless_that_is_asked_for(translator: Translator) -> None:
    assert translator.translate("A man {name}.", **SHORT) == translator.translate(
        "A man {name}.", placeholders=False, **SHORT
    )
    assert translator.translate("A man.", placeholders=True, **SHORT) == translator.translate("A man.", **SHORT)
