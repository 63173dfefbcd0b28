"""Placeholders in translations that lack, repeat and move their copies."""

import random
from collections import Counter
from itertools import chain

import pytest

from jumok_serve.tasks.stand_ins import Hole
from jumok_serve.tasks.word_alignment import Pair, words
from jumok_serve.text.placeholders import Placeholder
from jumok_serve.text.splicing import Splicing
from tests.support.growth import assert_linear

CONTENTS = {
    "$1": "{a}",
    "$2": "{b}",
    "$3": "%(c)d",
    "$4": "<b>",
    "$5": "</b>",
    "11": "https://example.org/?a=b",
    "$6": "{% if x %}",
    "$7": "{% else %}",
    "$8": "{% endif %}",
    "%s": "%s",
    "Foo": "Foo",
}


def placeholders_of(text: str) -> list[Placeholder]:
    """Return the placeholders of a text in which each word of `CONTENTS` is one."""
    found = list[Placeholder]()
    for first, after in ((first, first + len(read)) for read in CONTENTS for first in starts(text, read)):
        content = CONTENTS[text[first:after]]
        found.append(Placeholder(first, after, content, (Hole(first, after, "x"),), content != text[first:after]))
    return sorted(found, key=lambda one: one.start)


def starts(text: str, part: str) -> list[int]:
    return [index for index in range(len(text)) if text.startswith(part, index)]


def aligned(text: str, target: str, links: str) -> list[Pair]:
    """Return pairs of links such as `2-0`: the third word of the target with the first of the text."""
    sources, targets = words(text), words(target)
    linked = {int(link.split("-")[0]): int(link.split("-")[1]) for link in links.split()}
    return [Pair(place, sources[linked[index]] if index in linked else (0, 0)) for index, place in enumerate(targets)]


@pytest.mark.parametrize(
    ("text", "target", "links", "expected"),
    [
        ("delete $1 now", "jetzt $1 löschen", None, "jetzt {a} löschen"),
        ("$1 and $2", "$2 und $1", None, "{b} und {a}"),
        ("%s: %s", "%s: %s", None, "%s: %s"),
        ("of $1", "$1의 $1", None, "{a}의"),
        ("%s files", "%se Dateien", None, "%s Dateien"),
        ("%s rows", "%sie Zeilen", None, "%s Zeilen"),
        ("%s pages", "%seiten löschen", None, "%s seiten löschen"),
        ("%s times", "%sfach", None, "%s fach"),
        ("%s. edition", "%snd edition", None, "%s nd edition"),
        ("%sie pages", "%sie Seiten", None, "%sie Seiten"),
        ("in $1 of $2", "in$1Datei von $2x", None, "in {a} Datei von {b} x"),
        ("file of %s", "%ss Datei", None, "%ss Datei"),
        ("%s파일 %ss", "%sfile %ss", None, "%sfile %ss"),
        ("of $1.", "von $1 ($1).", None, "von {a}."),
        ("of $1", "von $1 $1 $1", None, "von {a}"),
        ("%s of $1", "%%s von $$1}", None, "%s von {a}"),
        ("%s at 5 %", "%%s bei 5 %", None, "%%s bei 5 %"),
        ("see 11", "siehe 11, 11 und 112", None, "siehe https://example.org/?a=b, und 112"),
        ("Foo", "Foos Foo-x", None, "Foos Foo-x"),
        ("call Foo now", "ruf Fuh jetzt", "0-0 1-1 2-2", "ruf Foo jetzt"),
        ("open $1 now", "$ 1 jetzt öffnen", "0-1 1-2 2-3 3-0", "{a} jetzt öffnen"),
        ("open $1 now", "jetzt öffnen", "0-3 1-0", "jetzt öffnen {a}"),
        ("open ($1) now", "jetzt öffnen", "0-5 1-0", "jetzt öffnen {a}"),
        ("in $1 files", "파일의", "0-3", "{a} 파일의"),
        ("delete $1", "을(를) 삭제", "0-1 4-0", "{a}을(를) 삭제"),
        ("open $1", "", "", "{a}"),
        ("open $1 and $2", "öffnen", "0-0", "öffnen {a} {b}"),
        ("$1 open", "開く", "0-2", "{a}開く"),
        ("$1 $1 $2", "$1", "0-0", "{a} {a} {b}"),
        ("copy %s and $1", "% und $1 kopieren", "1-2 2-3 3-0", "%s und {a} kopieren"),
        ("copy %s at 5 %", "5 % kopieren", "0-2 1-3 2-0", "%s 5 % kopieren"),
        ("delete %s files?", "lösche %sb?", None, "lösche %s b?"),
        ("select %s and $2", "%s$2 wählen", None, "%s {b} wählen"),
        ("see 11 now", "siehe n11jetzt", None, "siehe n https://example.org/?a=b jetzt"),
        ("%s's file", "%ss Datei", None, "%ss Datei"),
        ("chapter %s", "제%s장", None, "제%s장"),
        ("$1$2", "$1$2", None, "{a}{b}"),
        ("delete $1\u00a0files", "$1 Dateien löschen", None, "{a}\u00a0Dateien löschen"),
        ("delete\u00a0$1 files", "$1 Dateien löschen", None, "{a} Dateien löschen"),
        ("open $1\u00a0$2", "$2 $1 öffnen", None, "{b} {a}\u00a0öffnen"),
        ("$1\u00a0files", "$1개 파일", None, "{a}개 파일"),
        ("$6 yes $7 no $8 $1", "$1 $8 ja $6 nein $7", None, "{a} {% if x %} ja {% else %} nein {% endif %}"),
        ("open $1$2 now", "$1 $2 öffnen", None, "{a}{b} öffnen"),
        ("see $4this$5 $4$5", "$5dies $4 $5 ansehen$4", None, "<b>dies</b> <b> ansehen</b>"),
        ("see $4this$5", "dies ansehen", "0-1 1-0", "<b>dies</b> ansehen"),
        # Spaces between tags and words as in the text.
        ("see $4the$5 file", "$4 die $5-Datei ansehen", None, "<b>die</b> -Datei ansehen"),
        ("see $4the$5 file", "die$4 Datei $5 ansehen", None, "die <b>Datei</b> ansehen"),
        ("see $4 the $5 file", "$4 die $5-Datei ansehen", None, "<b> die </b>-Datei ansehen"),
        # Words between tags.
        ("tell $4 us $5 more", "$4 $5 uns mehr sagen", "4-3 5-6 6-0", "<b> uns </b> mehr sagen"),
        ("tell $4 us $5 more", "$4$5을 봅니다", "3-0", "<b> </b>을 봅니다"),
        ("tell $4 $5 more", "mehr $4$5 sagen", None, "mehr <b> </b> sagen"),
    ],
)
def test_examples(text: str, target: str, links: str | None, expected: str) -> None:
    splicing = Splicing(text, placeholders_of(text), target)
    assert splicing.complete is (links is None)
    spliced = splicing.spliced(None if links is None else aligned(text, target, links))
    assert spliced.text == expected
    assert [spliced.text[slice(*place)] for place in spliced.places] == [one.content for one in spliced.placeholders]


def test_a_target_prefix_stays_as_it_is() -> None:
    text = "a $1 b $2"
    spliced = Splicing(text, placeholders_of(text), "x $1 $1 y $1", begin=len("x $1 $1")).spliced(None)
    assert spliced.text.startswith("x {a} $1 ")
    assert spliced.text.count("{a}") == spliced.text.count("{b}") == 1


def made(rng: random.Random) -> tuple[str, str, list[Pair] | None]:
    """Return a text, a translation that lacks, repeats and moves its placeholders, and an alignment of some words."""
    parts = [*rng.choices([*CONTENTS], k=rng.randint(1, 6)), *rng.choices(["see", "the", "(file)", "."], k=5)]
    rng.shuffle(parts)
    text = rng.choice([" ", "", "/", " "]).join(parts)
    placed = [text[one.start : one.end] for one in placeholders_of(text)]
    target_parts = [one for one in placed for _ in range(rng.choice([0, 0, 1, 1, 1, 2]))]
    target_parts += rng.choices(["siehe", "die", "(Datei)", "을", "見", "."], k=rng.randint(0, 6))
    rng.shuffle(target_parts)
    target = rng.choice([" ", "-", " "]).join(target_parts)
    sources = [(0, 0), *words(text)]
    return text, target, rng.choice([None, [Pair(place, rng.choice(sources)) for place in words(target)]])


def test_each_placeholder_is_written_once() -> None:
    rng = random.Random(7)
    seen = Counter[bool]()
    for _ in range(2000):
        text, target, pairs = made(rng)
        placeholders = placeholders_of(text)
        splicing = Splicing(text, placeholders, target)
        spliced = splicing.spliced(pairs)
        seen[splicing.complete] += 1
        places = sorted(spliced.places)
        assert [spliced.text[slice(*place)] for place in spliced.places] == [one.content for one in placeholders]
        edges = [0, *chain.from_iterable(places), len(spliced.text)]
        assert edges == sorted(edges)
        between = "".join(spliced.text[first:after] for first, after in zip(edges[::2], edges[1::2], strict=True))
        assert not any(text[one.start : one.end] in between for one in placeholders if one.spliced)
        for (first, after), *_ in spliced.words(pairs or []):
            assert spliced.text[first:after].strip()
    assert min(seen.values()) > 200


@pytest.mark.parametrize("left", ["{ } ", "} ", "$ ", "open "])
def test_time_grows_with_the_copies_that_broke(left: str) -> None:
    def make(size: int) -> tuple[str, list[Placeholder], str, list[Pair]]:
        text, target = "open $1 " * size, ("open " + left) * size
        sources = words(text)
        pairs = [Pair(place, sources[min(index, len(sources) - 1)]) for index, place in enumerate(words(target))]
        return text, placeholders_of(text), target, pairs

    assert_linear(make, lambda given: Splicing(*given[:3]).spliced(given[3]), 40)


@pytest.mark.parametrize(
    ("text", "target", "links", "expected"),
    [
        ("Save 50% a month", "50 % im Monat sparen", None, "50 % im Monat sparen"),
        ("Save 50 % now", "jetzt 50% sparen", None, "jetzt 50% sparen"),
        ("Save 50% now", "spare 50 Prozent", None, "spare 50 Prozent"),
        ("Save 50% now", "50\u202f% \u0440\u0430\u0437", None, "50\u202f% \u0440\u0430\u0437"),
        ("Save 50% now", "50퍼센트 할인", None, "50퍼센트 할인"),
        ("Save 50% now", "\u066a\u0665\u0660 \u062e", None, "\u066a\u0665\u0660 \u062e"),
        ("Save 50% now", "%50 indirim", None, "%50 indirim"),
        ("about 3.5% of 1,000%", "rund 3,5 % von 1.000 %", None, "rund 3,5 % von 1.000 %"),
        ("Save 50% a month", "50 월을 저장", "0-1 1-4", "50% 월을 저장"),
        ("Save 50% a month", "30 월을 저장", "0-1 1-4", "50% 월을 저장"),
        ("Save 50% on 3 files", "3 Dateien sparen", "0-1 1-5 2-0", "50% 3 Dateien sparen"),
        ("5% of $1, 20% of $2", "5 % von $1, 2 % von $2", None, "5 % von {a}, 20% von {b}"),
        ("Save 50% now", "jetzt sparen", "0-3 1-0", "jetzt sparen 50%"),
        ("Save 50% now", "spare 150 %", None, "spare 50%"),
        ("at 90% now", "90 % oder 100 %", None, "90 % oder 100 %"),
        ("%s of 50%", "%s von 5", "3-3", "%s von 50%"),
    ],
)
def test_a_percentage_that_a_translation_lacks_is_placed(
    text: str, target: str, links: str | None, expected: str
) -> None:
    splicing = Splicing(text, placeholders_of(text), target, percentages=True)
    spliced = splicing.spliced(None if links is None else aligned(text, target, links))
    assert spliced.text == expected
