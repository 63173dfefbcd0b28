"""What translates texts: the signature of `Translator.translate`, and how it waits for what was submitted."""

from collections.abc import Sequence
from typing import Unpack, cast, overload

from jumok_proto.options import Options, check_names
from jumok_proto.results import Translation
from jumok_serve.engine.deadline import deadline_after
from jumok_serve.search.options import DecodingOptions
from jumok_serve.text.sentence_splitting import SplitsTexts


class TranslatesTexts(SplitsTexts):
    """What translates texts: the part of `Translator` that does."""

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] to the type checker
        self,
        texts: str,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Translation: ...

    @overload
    def translate(
        self,
        texts: Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: Sequence[str | None] | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> list[Translation]: ...

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: str | Sequence[str | None] | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Translation | list[Translation]:
        """Translates one text, or several in the order they are given.

        Args:
            texts: a text, or a sequence of them; each is decoded as one sentence, if it is not to be split. One without
                content has an empty translation.
            source_language: language of the texts, in the bundle's spelling or with other case, or `_` for `-`.
            target_language: language to translate into. What is left out is the bundle's default.
            target_prefix: what the translation begins with; for several texts one for each, or None. A hypothesis'
                `text` is the whole translation, its tokens and scores are those behind the prefix.
            attention: give every hypothesis the cross-attention from its tokens to the source's, and every translation
                its `source_tokens`.
            truncate: cut texts that are longer than the model's limit instead of refusing them.
            split_sentences: translate the sentences of each text one by one; see `submit_sentences`.
            timeout_s: give up after so many seconds.
            options: how to decode; see `jumok_proto.options.Options`.

        Raises:
            InvalidArgumentError: a text or an option cannot be used; `field` names it.
            LanguageNotFoundError: the model does not have a language, or not this pair.
            AttentionUnavailableError, SamplingUnavailableError: the bundle lacks the graph for it.
            OverloadedError: the queue is full.
            DeadlineExceededError: `timeout_s` has passed.
            UnavailableError: the translator is closed.
            TypeError: there is no such option.
        """
        check_names(options)
        alone = isinstance(texts, str)
        submit = self.submit_sentences if split_sentences else self.submit
        pending = submit(
            [texts] if isinstance(texts, str) else texts,
            DecodingOptions(**options),
            source_language=source_language,
            target_language=target_language,
            # What is of another type is refused where it is read.
            target_prefixes=cast(
                "Sequence[str | None] | None",
                [target_prefix] if alone and target_prefix is not None else target_prefix,
            ),
            attention=attention,
            truncate=truncate,
            deadline=deadline_after(timeout_s),
        )
        translations = pending.collect()
        return translations[0] if alone else translations
