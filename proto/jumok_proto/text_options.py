"""Options for texts around the model, of the SDK, the server and a translator in this process."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_proto.options import Options


class TermOptions(TypedDict, total=False):
    """Options for terms, by keyword."""

    glossary: Mapping[str, str | Sequence[str]] | None
    """Target terms by source term. Where a text has a source term, its translation contains a target term."""
    stored_glossary: str | None
    """Id or name of a stored glossary, whose terms count besides those of ``glossary``."""
    do_not_translate: Sequence[str] | None
    """Texts that are copied into translations; ``*`` stands for one or more letters, digits or ``_``."""
    placeholders: bool | Sequence[str] | None
    """Placeholders that are copied, each as often as it is in the text: all kinds (True), none (False), or those named,
    of ``jumok_proto.conversion.PLACEHOLDER_KINDS``.

    None: True for a client of a server, and False for a translator in this process."""


class TextOptions(TermOptions, total=False):
    """Options for the parts of a text, by keyword."""

    cut_long_sentences: bool | None
    """Cut a sentence that is too long for the model at clauses, commas or spaces, and join the translations.

    None: True if sentences are split and texts are not truncated. ``Translation.cut_sentences`` names them."""
    copy_unreadable: bool
    """Copy sentences that have nothing that the model can read, as ``***`` or another script."""
    markup: MarkupKind | None
    """Markup of the texts, ``"html"`` or ``"xml"``; each tag is in the translation once. None: plain texts."""
    markup_rules: MarkupRules
    """Rules for elements of the markup."""


class TranslateOptions(Options, TextOptions, total=False):
    """Options of a translation, by keyword: for texts, and for decoding."""


def separate(options: TranslateOptions) -> tuple[TextOptions, Options]:
    """Separate options for texts, without those that are None, from those for decoding."""
    text = {name: value for name, value in options.items() if name in TextOptions.__annotations__}
    decoding = {name: value for name, value in options.items() if name not in text}
    return cast("TextOptions", {name: value for name, value in text.items() if value is not None}), cast(
        "Options", decoding
    )


def separate_terms(options: TextOptions) -> tuple[TermOptions, dict[str, Any]]:
    """Separate options for terms from the other options for texts."""
    terms = {name: value for name, value in options.items() if name in TermOptions.__annotations__}
    others = {name: value for name, value in options.items() if name not in terms}
    return cast("TermOptions", terms), others


def splits_sentences(split_sentences: bool | None, *, attention: bool, target_prefix: object, options: Options) -> bool:
    """Return the parameter, or its default: True unless the result needs whole texts.

    Args:
        target_prefix: the beginnings of translations; None or empty: none.
    """
    if split_sentences is not None:
        return split_sentences
    return not attention and not target_prefix and options.get("num_hypotheses") in (None, 1)
