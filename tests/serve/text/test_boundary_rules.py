"""Abbreviations, ordinals and markers of lists: full stops that end no sentence."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jumok_serve.manifest.languages import primary_language
from jumok_serve.text.sentence_splitting import list_items, split
from tests.support.growth import calls_made

ITEM = re.compile(r"(?<!\S)(\d{1,2})\.\s+(?=\S)")

SPLIT = {
    "en": [
        ("The console is next-gen.| It ships in May."),
        ("A box weighs approx. 20 kg.| It is heavy."),
        ("Ten lbs. of rice cost 3 euros.| Two cost less."),
        ("Eq. 7 shows it.| Compare Tab. 2 and sec. (b)."),
        ("The hrs. [all] count."),
        ("Mr. Brown met Dr. Green and Sgt. Pepper.| They left."),
        ("We sell fruit.| iPhone users pay less."),
        ("i came home. |he slept."),
        ("It costs 5. |It is cheap."),
        ("Plan B. |It works."),
    ],
    "de": [
        ("Die 2. Liga spielt heute.| Am 3. Oktober ist frei."),
        ("In der 1. Runde verlor der 12. Spieler."),
        ("Er wurde 5.| Dann ging er."),
        ("Das wiegt ca. 5 kg, vgl. oben.| Siehe Abb. (rechts)."),
        ("Dipl.-Kfm. Weber leitet die Fa. Huber.| Er ist neu."),
        ("Geöffnet ist Mo-Fr.| Am Wochenende ist zu."),
        ("Er saß in Reihe 7.| Niemand sah ihn."),
    ],
    "fr": [
        ("M. Dupont arrive.| Voici Mme. Durand et M. Petit."),
        ("Né en 12 av. J.-C. à Arles, il suit J.-L. Godard.| C'est vrai."),
        ("Il habite à l'av. Victor Hugo.| Elle aussi."),
    ],
    "es": [
        ("La Sra. López paga aprox. 50 euros.| El Sr. Ruiz no."),
        ("—¿Quién es? —dijo él.| —¡Yo! —gritó ella.| Nadie abrió."),
    ],
    "it": [("Il sig. Rossi e la dott. Bianchi.| Vedi fig. 3."), ("Nacque nel 70 a.C. a Mantova.| Morì nel 19 a.C.")],
    "ru": [
        ("См. рис. 5 и стр. 7.| Он жил на ул. Ленина."),
        ("«Кто там?» — спросил он.| Это было 9 февр. 1990 г. утром."),  # noqa: RUF001
    ],
}


@pytest.mark.parametrize("language", SPLIT)
def test_abbreviations_and_ordinals_end_no_sentence(language: str) -> None:
    three = {"en": "eng", "de": "deu", "fr": "fra_Latn", "es": "spa-419", "it": "ita", "ru": "rus_Cyrl"}[language]
    for marked in SPLIT[language]:
        wanted = [part.strip() for part in marked.split("|")]
        for tag in (language, three):
            assert list(split(marked.replace("|", ""), tag).sentences) == wanted


@pytest.mark.parametrize(
    ("text", "sentences", "kept"),
    [
        ("7. Close the door. 8. Go.", ("Close the door.", "Go."), ("7. ", " 8. ", "")),
        ("iii. Close it.", ("Close it.",), ("iii. ", "")),
        ("2.10. Close it.\n2.11. Go.", ("Close it.", "Go."), ("2.10. ", "\n2.11. ", "")),
        ("b) Close it.", ("Close it.",), ("b) ", "")),
        ("(iv) Close it.", ("Close it.",), ("(iv) ", "")),
        ("12)\tClose it.", ("Close it.",), ("12)\t", "")),
        ("  • Milk\n  - Eggs", ("Milk", "Eggs"), ("  • ", "\n  - ", "")),
        ("a) Milk", ("Milk",), ("a) ", "")),
        ("3.", ("",), ("3.", "")),
        # Numbers and letters that are none.
        ("3.5 litres of milk", ("3.5 litres of milk",), ("", "")),
        ("-5 degrees", ("-5 degrees",), ("", "")),
        ("(see) Milk", ("(see) Milk",), ("", "")),
        ("J. Smith came.", ("J. Smith came.",), ("", "")),
    ],
)
def test_markers_of_lists_are_kept(text: str, sentences: tuple[str, ...], kept: tuple[str, ...]) -> None:
    found = split(text, "en")
    assert (found.sentences, found.kept) == (sentences, kept)


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("de", "1. Tür öffnen. 2. Licht an. 3. Warten.", ("Tür öffnen.", "Licht an.", "Warten.")),
        ("it", "Ecco: 1. Aprite la porta. 2. Uscite.", ("Ecco:", "Aprite la porta.", "Uscite.")),
        # Not in order, inside of a sentence, or alone.
        ("de", "Die 1. Liga und die 2. Liga.", ("Die 1. Liga und die 2. Liga.",)),
        ("de", "Am 1. Mai und am 3. Mai.", ("Am 1. Mai und am 3. Mai.",)),
        ("de", "Die 1. Liga. Die 2. Liga ist weg.", ("Die 1. Liga.", "Die 2. Liga ist weg.")),
    ],
)
def test_lists_inside_of_a_line(language: str, text: str, sentences: tuple[str, ...]) -> None:
    found = split(text, language)
    assert found.sentences == sentences
    assert "".join(part for pair in zip(found.kept, (*sentences, ""), strict=True) for part in pair) == text


def test_codes_of_three_letters_have_two() -> None:
    tags = ("deu", "deu_Latn", "ger", "zho_Hant", "CMN", "pt-BR", "arb", "swh_Latn", "yue", "", "xx")
    assert [primary_language(tag) for tag in tags] == [
        *("de", "de", "de", "zh", "zh", "pt", "ar", "sw", "yue", "", "xx")
    ]
    assert split("你好。天气很好!", "cmn").sentences == ("你好。", "天气很好!")
    assert split("A. B", "eng").for_target("jpn_Jpan") == split("A. B", "eng").for_target("ja")


def plain_list_items(line: str) -> list[tuple[int, int]]:
    """Find the markers of lists by one pattern, number by number."""
    before = re.compile(r"(?:^|[.!?\u2026:;)\"\u201c\u201d\u00bb]\s{1,7})\Z")
    lists: list[list[tuple[int, int]]] = [[]]
    for found in ITEM.finditer(line):
        if not before.search(line[: found.start()]):
            continue
        if lists[-1] and int(found[1]) == len(lists[-1]) + 1:
            lists[-1].append(found.span())
        elif int(found[1]) == 1:
            lists.append([found.span()])
    return [place for places in lists if len(places) > 1 for place in places]


@given(st.lists(st.sampled_from(["1", "2", "3", "12", "\u0661", ".", ". ", " ", "\u2003", "a", ": "])).map("".join))
@example("1. a. 2. b. 3. c: 1. d. 2. e")
@example("1. 2. 3. a 12. b. 123. c")
def test_markers_of_lists_are_those_that_one_pattern_finds(line: str) -> None:
    assert list(list_items(line)) == plain_list_items(line)


@pytest.mark.parametrize("unit", ["\u201c", "a man and ", "1 2 "])
def test_a_long_line_without_full_stops_is_searched_once(unit: str) -> None:
    line = unit * (100_000 // len(unit))
    assert calls_made(lambda: list(list_items(line))) < 10
    assert calls_made(lambda: list(list_items("1. " * 100))) > 100
