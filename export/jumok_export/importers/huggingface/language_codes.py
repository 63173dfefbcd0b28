"""Language codes of checkpoints as their tokenizers spell them: Marian, M2M100, NLLB, mBART."""

import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from jumok_export.importers.huggingface.languages import LanguageRoles, prefixed, starting, suffixed
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


def roles_and_code_pattern(
    files: TokenizerFiles, config: Mapping[str, Any], special: Set[str]
) -> tuple[Callable[[int], LanguageRoles], re.Pattern[str]] | None:
    """Roles and spelling of language tokens in the tokenizer's class; None without language tokens.

    A general class, which runs any tokenizer.json, is recognized by its tokens.
    """
    name = files.class_name
    if name not in _LANGUAGE_CLASSES and config.get("model_type") in {"m2m_100", "mbart"}:
        if any(_NLLB_CODE.fullmatch(token) for token in special):
            name = "NllbTokenizer"
        elif any(_MBART_CODE.fullmatch(token) for token in special):
            name = "MBart50Tokenizer" if _ONLY_IN_MBART_50 in special else "MBartTokenizer"
    if name == "NllbTokenizer":
        return (suffixed if files.settings.get("legacy_behaviour") else prefixed), _NLLB_CODE
    if name == "MBart50Tokenizer":
        return prefixed, _MBART_CODE
    return (starting, _MBART_CODE) if name == "MBartTokenizer" else None
