"""Plural categories of languages, as CLDR has them for whole and other numbers."""

from collections.abc import Collection
from typing import Final

from jumok_serve.manifest.languages import primary_language

CATEGORIES: Final = ("zero", "one", "two", "few", "many", "other")
"""Their names, in CLDR's order."""
_BY_CATEGORIES: Final = {
    "other": "bm bo dz hnj id ig ii ja jbo jv jw kde kea km ko lkt lo ms my nqo osa sah ses sg su th to tpi wo "
    "yo yue zh",
    "one other": "af ak am an asa ast az bal bem bez bg bn brx ce ceb ckb da de dv ee el en eo et eu fa ff fi fil fo "
    "fur fy gsw gu ha haw hi hu hy ia is ka kab kk kl kn ku ky lb lg ln mas mg mk ml mn mr nb nd ne nl nn "
    "no nr nso ny nyn om or os pa pap pcm ps rm rof sc sd si sn so sq ss st sv sw syr ta te teo ti tig tk "
    "tl tn tr ts tzm ug ur uz ve vi wa xh xog yi zu",
    "zero one other": "blo cv ksh lag lv prg",
    "one two other": "he iu naq sat se sma smj smn sms",
    "one few other": "bs hr mo ro sh shi sr",
    "one many other": "ca es fr gl it lld pt scn vec",
    "one two few other": "dsb gd hsb sl",
    "one few many other": "be cs lt pl ru sk uk",
    "one two few many other": "br ga gv mt",
    "zero one two few many other": "ar cy kw",
}
_CATEGORIES_OF: Final = {
    language: tuple(categories.split()) for categories, names in _BY_CATEGORIES.items() for language in names.split()
}


def plural_categories(language: str) -> tuple[str, ...]:
    """Return the categories of a language, by its tag; none if they are not known."""
    return _CATEGORIES_OF.get(primary_language(language), ())


def missing_categories(language: str, present: Collection[str]) -> list[str]:
    """Return the categories that forms in a language lack; none without a form for all other numbers."""
    return [name for name in plural_categories(language) if name not in present] if "other" in present else []


def is_unused(language: str, category: str) -> bool:
    """True if no number has a category in a language; ``zero`` is read by some programs in each language."""
    known = plural_categories(language)
    return bool(known) and category in CATEGORIES and category not in {*known, "zero"}


_WITH_SCRIPT: Final = frozenset({"az", "bs", "pa", "sr", "uz", "zh"})
"""Languages that are written in several scripts."""


def locale_name(language: str, separator: str = "-") -> str:
    """Return the name that catalogues have for a language: ``de`` for ``deu_Latn``, ``zh-Hans`` for ``zho_Hans``."""
    _, *rest = language.replace("_", "-").split("-")
    first = primary_language(language)
    kept = [part for part in rest if len(part) != len("Latn") or first in _WITH_SCRIPT]
    return separator.join((first, *kept))
