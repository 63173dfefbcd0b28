"""Parameters of a translation from keyword options, and translation of texts with them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from jumok_proto.errors import GlossariesUnavailableError
from jumok_proto.options import check_names
from jumok_proto.results import Translation
from jumok_proto.text_options import TranslateOptions, separate, separate_terms, splits_sentences
from jumok_serve.manifest.languages import Languages, is_auto
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.tasks.terms import TermFinder
from jumok_serve.text.detection import translate_detected
from jumok_serve.text.terms import GlossaryStore, terminology
from jumok_serve.text.translation import PendingTexts, blamed_texts
from jumok_serve.tokenizers.input_processor import check_count, check_text, check_texts


def translate_texts(
    submit: Callable[..., PendingTexts],
    languages: Languages,
    texts: Sequence[str],
    prefixes: Sequence[str | None] | None,
    options: TranslateOptions,
    *,
    source_language: str | None,
    target_language: str | None,
    **others: Any,
) -> list[Translation]:
    """Translate texts with one model, each from its own language if that shall be detected.

    Args:
        submit: queues texts.
        others: further arguments of `translation_parameters`.

    Raises:
        InvalidArgumentError: an option cannot be used.
        TypeError: an option does not exist.
    """
    parameters = partial(
        translation_parameters, options, languages=languages, target_language=target_language, **others
    )
    if not is_auto(source_language):
        return submit(texts, parameters(source_language=source_language), target_prefixes=prefixes).collect()
    check_texts(texts)
    for index, text in enumerate(texts):
        check_text(text, f"contents[{index}]")
    if prefixes is not None:
        check_count("target_prefixes", prefixes, len(texts))

    def translate(language: str, indices: Sequence[int]) -> list[Translation]:
        own = None if prefixes is None else [prefixes[index] for index in indices]
        with blamed_texts(indices.__getitem__):
            return submit(
                [texts[index] for index in indices], parameters(source_language=language), target_prefixes=own
            ).collect()

    return translate_detected(texts, languages, target_language, translate)


def translation_parameters(
    options: TranslateOptions,
    *,
    languages: Languages,
    glossaries: GlossaryStore | None,
    source_language: str | None,
    target_language: str | None,
    split_sentences: bool | None,
    target_prefix: object,
    attention: bool,
    **others: Any,
) -> TranslationParameters:
    """Make the parameters of a translation; `others` are those without a default of their own here.

    Args:
        languages: languages of the model.
        glossaries: stored glossaries.

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
        source_language=source_language,
        target_language=target_language,
        attention=attention,
        split_sentences=splits,
        terms=terminology(
            terms, _stored(glossaries, languages, stored, source_language, target_language) if stored else None
        ),
        **for_parts,
        **others,
    )


def _stored(
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
