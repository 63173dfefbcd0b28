"""Language codes of checkpoints as their tokenizers spell them: Marian, M2M100, NLLB, mBART."""

import re
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

from jumok_export.importers.huggingface.language_roles import LanguageRoles, prefixed, starting, suffixed
from jumok_export.importers.huggingface.tokenizer_files import TokenizerFiles

M2M100_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
        "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
        "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
"""Languages by the value of `language_codes`, in the order of their ids after the vocabulary file's."""

_NLLB_CODE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")
_MBART_CODE = re.compile(r"[a-z]{2,3}_[A-Z]{2}")
_ONLY_IN_MBART_50 = "gl_ES"
_LANGUAGE_CLASSES = {"NllbTokenizer", "MBartTokenizer", "MBart50Tokenizer"}
MARIAN_CODE = re.compile(r">>(.+)<<")


class LanguageTokens(NamedTuple):
    """The language tokens of a tokenizer's class.

    Attributes:
        roles: where sources and targets have them, given the EOS id.
        code: their spelling.
    """

    roles: Callable[[int], LanguageRoles]
    code: re.Pattern[str]

    def read(self, special: Mapping[str, int]) -> dict[str, int]:
        """Read the language codes, and their ids, from a tokenizer's special tokens."""
        return {token: number for token, number in special.items() if self.code.fullmatch(token)}


def language_tokens(files: TokenizerFiles, config: Mapping[str, Any], special: Set[str]) -> LanguageTokens | None:
    """Find the language tokens of the tokenizer's class, or None.

    A general class, which runs any tokenizer.json, is recognized by its tokens.
    """
    name = files.class_name
    if name not in _LANGUAGE_CLASSES and config.get("model_type") in {"m2m_100", "mbart"}:
        if any(_NLLB_CODE.fullmatch(token) for token in special):
            name = "NllbTokenizer"
        elif any(_MBART_CODE.fullmatch(token) for token in special):
            name = "MBart50Tokenizer" if _ONLY_IN_MBART_50 in special else "MBartTokenizer"
    if name == "NllbTokenizer":
        return LanguageTokens(suffixed if files.settings.get("legacy_behaviour") else prefixed, _NLLB_CODE)
    if name == "MBart50Tokenizer":
        return LanguageTokens(prefixed, _MBART_CODE)
    return LanguageTokens(starting, _MBART_CODE) if name == "MBartTokenizer" else None
