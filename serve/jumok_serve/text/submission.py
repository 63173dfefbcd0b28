"""Parameters of a translation from keyword options, and the function that queues its texts."""

from collections.abc import Callable
from typing import Any

from jumok_proto.errors import GlossariesUnavailableError
from jumok_proto.options import check_names
from jumok_proto.text_options import TranslateOptions, separate, separate_terms, splits_sentences
from jumok_serve.manifest.languages import Languages
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.parameters import TranslationParameters
from jumok_serve.tasks.terms import TermFinder
from jumok_serve.tasks.translation import PendingTexts, submit_texts
from jumok_serve.text.markup.translation import submit_documents
from jumok_serve.text.sentence_translation import submit_sentences
from jumok_serve.text.terms import GlossaryStore, terminology


def translation_parameters(
    options: TranslateOptions,
    *,
    split_sentences: bool | None,
    target_prefix: object,
    attention: bool,
    source_language: str | None,
    target_language: str | None,
    find_stored: Callable[[str, str | None, str | None], TermFinder],
    **others: Any,
) -> TranslationParameters:
    """Make the parameters of a translation; `others` are those without a default of their own here.

    Args:
        find_stored: returns the stored glossary of a name for two languages.

    Raises:
        InvalidArgumentError: an option cannot be used.
        TypeError: an option does not exist.
    """
    text_options, decoding = separate(options)
    terms, for_parts = separate_terms(text_options)
    check_names(decoding)
    stored = terms.get("stored_glossary")
    splits = splits_sentences(split_sentences, attention=attention, target_prefix=target_prefix, options=decoding)
    return TranslationParameters(
        options=DecodingOptions(**decoding),
        attention=attention,
        split_sentences=splits,
        source_language=source_language,
        target_language=target_language,
        terms=terminology(terms, find_stored(stored, source_language, target_language) if stored else None),
        **for_parts,
        **others,
    )


def find_stored(
    store: GlossaryStore | None, languages: Languages, name: str, source: str | None, target: str | None
) -> TermFinder:
    """Return a stored glossary of this process for a pair of languages.

    Raises:
        GlossariesUnavailableError: there is no store.
        GlossaryNotFoundError, InvalidArgumentError: errors of `GlossaryStore.terms`.
    """
    if store is None:
        raise GlossariesUnavailableError("this translator keeps no glossaries: give it the parameter glossaries")
    direction = languages.direction(source or None, target or None)
    return store.terms("", name, direction.source, direction.target)


def submit_function(parameters: TranslationParameters) -> Callable[..., PendingTexts]:
    """Return the function that queues texts of this kind."""
    if parameters.markup is not None:
        return submit_documents
    return submit_sentences if parameters.in_parts else submit_texts
