"""Texts as token ids: checked, tokenized, put between what their language needs, and cut where that is asked for."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError
from jumok_serve.manifest.languages import Direction
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.tokenizers.readable import check_text
from jumok_serve.tokenizers.tokenizer import Tokenizer

CHARACTERS_PER_TOKEN = 32
"""More than any token spells: SentencePiece's longest have 16 characters."""

TEXTS_AT_ONCE = 256
"""So many are tokenized before a look at the time."""

MOST_REMEMBERED = 256
"""Directions, and resolved options, that are kept for the next request: few are ever asked for."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text as the model reads it; ``token_ids`` are none where the text has no content."""

    token_ids: tuple[int, ...]
    truncated: bool


class Target(NamedTuple):
    """A translation that is given, and its token ids, EOS and a forced first token included."""

    text: str
    token_ids: Sequence[int]


NO_SOURCE = Source((), truncated=False)


class Reader:
    """Makes token ids of what a request brings, within a model's limits.

    Args:
        tokenizer: the model's.
        manifest: the model's.
    """

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest) -> None:
        self._tokenizer = tokenizer
        self._manifest = manifest
        self._limits = manifest.limits
        self._direction = lru_cache(MOST_REMEMBERED)(manifest.languages.direction)

    def direction(self, source_language: str | None, target_language: str | None) -> Direction:
        """What a translation from and to these languages needs; None, or no name, is the model's default.

        Raises:
            InvalidArgumentError: a language is left out and there is no default.
            LanguageNotFoundError: the model does not have it, or not this pair.
        """
        return self._direction(source_language or None, target_language or None)

    def start(self, direction: Direction) -> int:
        """What the decoder is fed first."""
        return self._manifest.special_tokens.start if direction.start is None else direction.start

    def sources(
        self, texts: Sequence[str], direction: Direction, *, truncate: bool, deadline: float | None
    ) -> list[Source]:
        """The ids of texts, with the direction's around them and the tokens of its task prefix before.

        A text has no content where it is white space alone, where it has no tokens, and where these are only such as
        stand behind every text, as EOS does.

        Raises:
            InvalidArgumentError: a text cannot be used, or is too long and is not to be cut, or there is none.
            DeadlineExceededError: the deadline, in ``time.monotonic()`` seconds, has passed.
        """
        if not texts:
            raise InvalidArgumentError("no texts: send at least one", field="contents")
        sources: list[Source] = []
        for first in range(0, len(texts), TEXTS_AT_ONCE):
            if deadline is not None and time.monotonic() > deadline:
                raise DeadlineExceededError("the deadline passed while the texts were tokenized")
            some = list(islice(texts, first, first + TEXTS_AT_ONCE))
            sources += self._sources(some, direction, first=first, truncate=truncate)
        return sources

    def prefixes(self, prefixes: Sequence[str | None] | None, texts: int, forced: int | None) -> list[tuple[int, ...]]:
        """The ids that each text's hypotheses continue; a forced first token is the first of these, where there are.

        Raises:
            InvalidArgumentError: a prefix cannot be used, or they are not as many as the texts.
        """
        if prefixes is None:
            return [()] * texts
        _check_count("target_prefixes", prefixes, texts)
        first = () if forced is None else (forced,)
        token_ids = [
            () if prefix is None else self._target(prefix, field=f"target_prefixes[{index}]")
            for index, prefix in enumerate(prefixes)
        ]
        return [(*first, *ids) if ids else () for ids in token_ids]

    def targets_or_none(
        self, targets: Sequence[str | None] | None, sources: Sequence[Source], forced: int | None
    ) -> list[Target | None]:
        """As `targets`, where a text may have none, which an empty one is too.

        Raises:
            InvalidArgumentError: a target cannot be used, or is too long, or they are not as many as the sources.
        """
        if targets is None:
            return [None] * len(sources)
        _check_count("targets", targets, len(sources))
        token_ids = self.targets([target or [] for target in targets], sources, forced)
        return [Target(text, ids) if text else None for text, ids in zip(targets, token_ids, strict=True)]

    def targets(
        self, targets: Sequence[str | Sequence[int]], sources: Sequence[Source], forced: int | None
    ) -> list[Sequence[int]]:
        """The ids of translations that are given, EOS and a forced first token included; ids stay what they are.

        Raises:
            InvalidArgumentError: a target cannot be used, or is too long, or they are not as many as the sources.
        """
        _check_count("targets", targets, len(sources))
        first = () if forced is None else (forced,)
        eos, longest = self._manifest.special_tokens.eos[0], self._limits.max_target_length
        token_ids: list[Sequence[int]] = []
        for index, (target, source) in enumerate(zip(targets, sources, strict=True)):
            field = f"targets[{index}]"
            if isinstance(target, str):
                written = self._target(target, field=field)
                ids = [*first, *written, eos] if written or source.token_ids else []
            else:
                ids = self._known(target, field=field)
            if ids and not source.token_ids:
                raise InvalidArgumentError(
                    "the text has no content, and its only translation is the empty one: leave the pair out",
                    field=field,
                )
            if len(ids) > longest:
                raise InvalidArgumentError(
                    f"the target has {len(ids)} tokens, its end included, and the model writes at most {longest}: "
                    "split the pair",
                    field=field,
                )
            token_ids.append(ids)
        return token_ids

    def _sources(self, texts: Sequence[str], direction: Direction, *, first: int, truncate: bool) -> list[Source]:
        """The ids of texts, of which the first has a number."""
        limit, prefix, suffix = self._limits.max_source_length, direction.source_prefix, direction.source_suffix
        room = limit - len(prefix) - len(suffix)
        most_characters = limit * CHARACTERS_PER_TOKEN  # more is too long for certain, and not worth tokenizing
        whole = [
            self._readable(text, most_characters, field=f"contents[{first + number}]", truncate=truncate)
            for number, text in enumerate(texts)
        ]
        read = [text[:most_characters] for text in whole]
        tokens = self._tokenizer.encode_all(read)
        nothing = frozenset(direction.source_suffix)
        present = [not nothing.issuperset(token_ids) for token_ids in tokens]
        task = ""
        if direction.task_prefix:
            task = f", those of {direction.task_prefix!r} before it included,"
            tokens = self._tokenizer.encode_all([direction.task_prefix + text for text in read])
        sources = []
        for index, token_ids in enumerate(tokens):
            too_long = len(token_ids) > room
            if not present[index]:
                sources.append(NO_SOURCE)
                continue
            if too_long and not truncate:
                raise InvalidArgumentError(
                    f"the text has {len(token_ids)} tokens{task} and the model reads at most {room}: split it, or ask "
                    "for it to be truncated",
                    field=f"contents[{first + index}]",
                )
            cut = too_long or len(whole[index]) > most_characters
            sources.append(Source((*prefix, *token_ids[:room], *suffix), truncated=cut))
        return sources

    def _readable(self, text: str, most_characters: int, *, field: str, truncate: bool) -> str:
        """A text that can be read: an empty one where it is white space alone."""
        check_text(text, field)
        if text.isspace():
            return ""
        if len(text) > most_characters:
            text = text.strip()
        if len(text) > most_characters and not truncate:
            raise InvalidArgumentError(
                f"the text has {len(text)} characters, far more than the {self._limits.max_source_length} tokens that "
                "the model reads: split it, or ask for it to be truncated",
                field=field,
            )
        return text

    def _known(self, token_ids: Sequence[int], *, field: str) -> list[int]:
        size = self._tokenizer.vocab_size
        usable = isinstance(token_ids, Sequence) and not isinstance(token_ids, bytes)
        if not usable or not all(isinstance(token, int) and 0 <= token < size for token in token_ids):
            raise InvalidArgumentError(f"{field} must be a string, or token ids below {size}", field=field)
        return list(token_ids)

    def _target(self, text: str, *, field: str) -> list[int]:
        check_text(text, field)
        longest = self._limits.max_target_length
        if len(text) > longest * CHARACTERS_PER_TOKEN:
            raise InvalidArgumentError(
                f"the target text has {len(text)} characters, far more than the {longest} tokens that the model writes",
                field=field,
            )
        return self._tokenizer.encode_target(text)


def _check_count(field: str, values: Sequence[object], texts: int) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != texts:
        got = str(len(values)) if isinstance(values, list | tuple) else type(values).__name__
        raise InvalidArgumentError(f"{field} must be one for each of {texts} texts, got {got}", field=field)
