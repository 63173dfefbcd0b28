"""Sentences in three made-up languages, parallel and endless, for small models to half learn."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

# English, and what a German or French sentence may have in its place.
LEXICON = """
    the    der|die|das   le|la
    a      ein|eine      un|une
    old    alte|alter    vieux
    young  junge|junger  jeune
    small  kleine        petit|petite
    red    rote|roter    rouge
    man    Mann|Herr     homme
    woman  Frau|Dame     femme|dame
    child  Kind          enfant
    dog    Hund|Köter    chien
    cat    Katze|Kater   chat|chatte
    bird   Vogel|Spatz   oiseau
    sees   sieht         voit
    finds  findet        trouve
    calls  ruft|nennt    appelle|nomme
    in     in|im         dans|en
    near   bei|neben     vers
    garden Garten|Hof    jardin|parc
    house  Haus|Heim     maison
    street Gasse|Weg     rue|route
    and    und|sowie     et|puis
    .      .             .
    !      !             !
"""
ADJECTIVES = ["old", "young", "small", "red"]
NOUNS = ["man", "woman", "child", "dog", "cat", "bird"]
VERBS = ["sees", "finds", "calls"]
PREPOSITIONS = ["in", "near"]
PLACES = ["garden", "house", "street"]

_ROWS = [line.split() for line in LEXICON.strip().splitlines()]
GERMAN = {english: german.split("|") for english, german, _ in _ROWS}
FRENCH = {english: french.split("|") for english, _, french in _ROWS}


@dataclass(frozen=True)
class Parallel:
    """One sentence in the three languages."""

    english: str
    german: str
    french: str


def parallel_sentences(count: int, seed: int) -> list[Parallel]:
    """Sentences of 4 to 16 words, the same for the same seed.

    Translations choose among synonyms, swap neighbours and lose words at random, so that a model which learns them has
    several continuations to weigh at every step, and sentences of several lengths.
    """
    generator = random.Random(seed)
    return [_parallel(generator) for _ in range(count)]


def english(sentences: Sequence[Parallel]) -> list[str]:
    """The source texts."""
    return [sentence.english for sentence in sentences]


def german(sentences: Sequence[Parallel]) -> list[str]:
    """The texts of one target language."""
    return [sentence.german for sentence in sentences]


def targets(sentences: Sequence[Parallel]) -> list[str]:
    """The texts of both target languages."""
    return [text for sentence in sentences for text in (sentence.german, sentence.french)]


def all_texts(sentences: Sequence[Parallel]) -> list[str]:
    """The texts of all languages."""
    return [*english(sentences), *targets(sentences)]


def _parallel(generator: random.Random) -> Parallel:
    words = [*_noun(generator), generator.choice(VERBS), *_noun(generator)]
    for _ in range(generator.choice((0, 0, 0, 1, 1, 2))):
        words += [generator.choice(PREPOSITIONS), "the", generator.choice(PLACES)]
    words.append(generator.choice("..!"))
    return Parallel(" ".join(words), _translated(words, GERMAN, generator), _translated(words, FRENCH, generator))


def _noun(generator: random.Random) -> list[str]:
    adjectives = generator.sample(ADJECTIVES, generator.choice((0, 0, 0, 1, 2)))
    more = ["and", "a", generator.choice(NOUNS)] if generator.random() < 0.1 else []
    return [generator.choice(("the", "a")), *adjectives, generator.choice(NOUNS), *more]


def _translated(words: list[str], lexicon: dict[str, list[str]], generator: random.Random) -> str:
    *said, end = [generator.choice(lexicon[word]) for word in words]
    kept = [word for word in said if generator.random() > 0.08]
    for index in range(len(kept) - 1):
        if generator.random() < 0.1:
            kept[index : index + 2] = reversed(kept[index : index + 2])
    return " ".join([*kept, end])
