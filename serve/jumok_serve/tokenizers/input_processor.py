"""Input of a model: texts as token ids with language tokens."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.errors import ForeignCodeError
from jumok_serve.interrupts import check
from jumok_serve.manifest.languages import MAX_LISTED, Direction, Languages
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.tokenizers.tokenizer import Tokenizer

_ANY_CODE = re.compile(r">>[^<>\s]+<<")


class LanguageCodes:
    """Spellings of the tokens that choose a target language; plain words are none."""

    def __init__(self, languages: Languages, tokenizer: Tokenizer) -> None:
        before = [(tag, token) for tag, target in languages.targets.items() for token in target.source_prefix]
        first = [
            (tag, token)
            for tag, target in languages.targets.items()
            for token in (target.start, target.forced_first)
            if token is not None
        ]
        uses = Counter(token for _, token in (*before, *first))
        spelled = [
            *((tag, tokenizer.source_tokens([token])[0], token) for tag, token in before),
            *((tag, tokenizer.tokens([token])[0], token) for tag, token in first),
        ]
        self._tags = {code: tag for tag, code, token in spelled if uses[token] == 1 and code and not code.isalpha()}
        self._known = {code for _, code, _ in spelled}
        self._before_texts = {tokenizer.source_tokens([token])[0] for _, token in before} & self._tags.keys()
        longest_first = sorted(self._tags, key=len, reverse=True)
        # A code in letters must end as a word does.
        codes = "|".join(re.escape(code) + (r"(?!\w)" if code[-1].isalnum() else "") for code in longest_first)
        self._beginning = re.compile(rf"\s*+({codes})") if codes else None
        self._marked = any(_ANY_CODE.fullmatch(code) for code in self._before_texts)

    def without(self, text: str, direction: Direction, *, field: str) -> str:
        """Remove the target language's code from the beginning of a text, if the model reads it there.

        Raises:
            InvalidArgumentError: the text begins with another code.
        """
        if self._beginning is None:
            return text
        found = self._beginning.match(text)
        if found is None:
            self._check_unknown(text, field)
            return text
        code = found[1]
        tag = self._tags[code]
        if code not in self._before_texts:
            raise InvalidArgumentError(
                f"the text begins with the language code {code!r}: name source and target language in the request, and "
                "leave the code out",
                field=field,
            )
        if tag != direction.target:
            raise InvalidArgumentError(
                f"the text begins with {code!r}, and the target language is {direction.target}: name {tag} as target "
                "language, or leave the code out",
                field=field,
            )
        return text[found.end() :]

    def _check_unknown(self, text: str, field: str) -> None:
        found = _ANY_CODE.match(text) if self._marked else None
        if found is None or found[0] in self._known:
            return
        codes = sorted(self._before_texts)
        more = f" and {len(codes) - MAX_LISTED} more" if len(codes) > MAX_LISTED else ""
        raise InvalidArgumentError(
            f"the text begins with {found[0]!r}, which is no code of the model; its codes are "
            f"{', '.join(codes[:MAX_LISTED])}{more}",
            field=field,
        )


logger = logging.getLogger(__name__)

CHARACTERS_PER_TOKEN = 32
"""More than any token spells: SentencePiece's longest have 16 characters."""
TEXTS_PER_DEADLINE_CHECK, CHARACTERS_PER_DEADLINE_CHECK = 256, 2**15
"""Most texts, and about as many characters, that are tokenized between two looks at the deadline: up to 0.1 s."""
MAX_CACHED = 256
"""Entries of the caches of directions and search options; requests use few different ones."""

# NUL ends a string in many libraries; a lone surrogate has no UTF-8 form, so no tokenizer accepts it.
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")

_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A token for a byte of a character that the vocabulary lacks."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text as token ids; none if it has no content.

    Attributes:
        unknown: number of unknown tokens.
        text: text that was tokenized, if it has unknown tokens and was to be kept.
        given: the text as given, as far as it is read, if it was to be kept.
    """

    token_ids: tuple[int, ...]
    truncated: bool
    unknown: int = 0
    text: str = ""
    given: str = ""


class Target(NamedTuple):
    """A given translation and its token ids, EOS and a forced first token included."""

    text: str
    token_ids: Sequence[int]


EMPTY_SOURCE = Source((), truncated=False)


class InputProcessor:
    """Turns the texts of a request into token ids, within a model's limits."""

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest) -> None:
        self._tokenizer = tokenizer
        self._special_tokens = manifest.special_tokens
        self._limits = manifest.limits
        self._unknown = tokenizer.source_unknown
        self._target_unknown = tokenizer.target_unknown
        self._codes = LanguageCodes(manifest.languages, tokenizer)
        self._direction = lru_cache(MAX_CACHED)(manifest.languages.direction)

    def direction(self, source_language: str | None, target_language: str | None) -> Direction:
        """Return the direction between two languages; None or an empty name: the model's default.

        Raises:
            InvalidArgumentError: a language is left out and the model has no default.
            LanguageNotFoundError: the model does not have a language, or not this pair.
        """
        return self._direction(source_language or None, target_language or None)

    def start(self, direction: Direction) -> int:
        """Return the decoder's start token."""
        return self._special_tokens.start if direction.start is None else direction.start

    def sources(
        self,
        texts: Sequence[str],
        direction: Direction,
        *,
        truncate: bool,
        deadline: float | None,
        keep_unknown: bool = False,
        keep_given: bool = False,
    ) -> list[Source]:
        """Tokenize texts, with task prefix and token ids of the direction; keeps texts for `spelled` if needed.

        A text has no content if it is white space, has no tokens, or has only tokens that follow every text, as EOS.
        The target language's code at its beginning is not doubled.

        Raises:
            InvalidArgumentError: there is no text, a text cannot be used or begins with the code of another language,
                or one is too long and not to be truncated.
            DeadlineExceededError: the deadline, in `time.monotonic()` seconds, has passed.
        """
        check_texts(texts)
        if not texts:
            raise InvalidArgumentError("no texts: send at least one", field="contents")
        sources: list[Source] = []
        read = partial(self._sources, truncate=truncate, keep_unknown=keep_unknown, keep_given=keep_given)
        for some in _groups(texts):
            check(deadline, "the texts were tokenized")
            sources += read(some, direction, first=len(sources))
        return sources

    def prefixes(
        self, prefixes: Sequence[str | None] | None, texts: int, forced_first: int | None
    ) -> list[tuple[int, ...]]:
        """Tokenize target prefixes, after a forced first token if not empty.

        Raises:
            InvalidArgumentError: a prefix cannot be used, or their number is not that of the texts.
        """
        if prefixes is None:
            return [()] * texts
        check_count("target_prefixes", prefixes, texts)
        first = () if forced_first is None else (forced_first,)
        token_ids = [
            () if prefix is None else self._encode_target(prefix, field=f"target_prefixes[{index}]")
            for index, prefix in enumerate(prefixes)
        ]
        return [(*first, *ids) if ids else () for ids in token_ids]

    def targets_or_none(
        self,
        targets: Sequence[str | None] | None,
        sources: Sequence[Source],
        forced_first: int | None,
        deadline: float | None = None,
    ) -> list[Target | None]:
        """Tokenize translations as `targets` does; None and an empty translation become None.

        Raises:
            InvalidArgumentError: a target cannot be used or is too long, or their number is not that of the sources.
            DeadlineExceededError: the deadline has passed.
        """
        if targets is None:
            return [None] * len(sources)
        check_count("targets", targets, len(sources))
        token_ids = self.targets([target or [] for target in targets], sources, forced_first, deadline)
        return [Target(text, ids) if text else None for text, ids in zip(targets, token_ids, strict=True)]

    def targets(
        self,
        targets: Sequence[str | Sequence[int]],
        sources: Sequence[Source],
        forced_first: int | None,
        deadline: float | None = None,
    ) -> list[Sequence[int]]:
        """Tokenize translations, EOS and a forced first token included; token ids stay unchanged.

        Raises:
            InvalidArgumentError: a target cannot be used or is too long, or their number is not that of the sources.
            DeadlineExceededError: the deadline has passed.
        """
        check_count("targets", targets, len(sources))
        first = () if forced_first is None else (forced_first,)
        eos, longest = self._special_tokens.eos[0], self._limits.max_target_length
        token_ids: list[Sequence[int]] = []
        characters = 0
        for index, (target, source) in enumerate(zip(targets, sources, strict=True)):
            characters += len(target) if isinstance(target, str) else 0
            if characters > CHARACTERS_PER_DEADLINE_CHECK:
                check(deadline, "the texts were tokenized")
                characters = 0
            field = f"targets[{index}]"
            if isinstance(target, str):
                written = self._encode_target(target, field=field)
                ids = [*first, *written, eos] if written or source.token_ids else []
            else:
                ids = self._check_ids(target, field=field)
            if ids and not source.token_ids:
                raise InvalidArgumentError(
                    "the text has no content, so its only translation is the empty one: leave the pair out",
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

    def unknown_in_target(self, token_ids: Sequence[int]) -> int:
        """Count the unknown tokens of a translation or its beginning."""
        return 0 if self._target_unknown is None else token_ids.count(self._target_unknown)

    def spelled(self, source: Source, direction: Direction) -> list[tuple[str, bool]]:
        """Spell the tokens of a source, unknown ones as in its text; True for those."""
        spelled = [(text, False) for text in self._tokenizer.source_tokens(source.token_ids)]
        if source.text:
            first = len(direction.source_prefix)
            for place, piece in enumerate(self._tokenizer.pieces(source.text), start=first):
                if place < len(spelled) - len(direction.source_suffix) and source.token_ids[place] == self._unknown:
                    spelled[place] = piece, True
        return spelled

    def spelled_text(self, source: Source, direction: Direction) -> list[str]:
        """Spell the tokens of a source; those around the text are empty."""
        task = self._tokenizer.encode(direction.task_prefix.rstrip()) if direction.task_prefix else ()
        first = len(direction.source_prefix) + len(task)
        after = len(source.token_ids) - len(direction.source_suffix)
        spelled = self.spelled(source, direction)
        return [text if first <= place < after else "" for place, (text, _) in enumerate(spelled)]

    def is_readable(self, text: str, source: Source, direction: Direction) -> bool:
        """True if a text has a letter or digit in a token that the model knows."""
        if not any(map(str.isalnum, text)):
            return False
        tokens = source.token_ids[len(direction.source_prefix) : len(source.token_ids) - len(direction.source_suffix)]
        pieces = self._tokenizer.source_tokens([token for token in tokens if token != self._unknown])
        return any(any(map(str.isalnum, piece)) and not _BYTE.fullmatch(piece) for piece in pieces)

    def _sources(
        self,
        texts: Sequence[str],
        direction: Direction,
        *,
        first: int,
        truncate: bool,
        keep_unknown: bool,
        keep_given: bool,
    ) -> list[Source]:
        """Tokenize some texts of a request; ``first`` is the index of the first one."""
        limit, prefix, suffix = self._limits.max_source_length, direction.source_prefix, direction.source_suffix
        max_tokens = limit - len(prefix) - len(suffix)
        max_characters = limit * CHARACTERS_PER_TOKEN  # a longer text is too long in any case: not worth tokenizing
        whole = [
            self._readable(text, direction, max_characters, field=f"contents[{first + index}]", truncate=truncate)
            for index, text in enumerate(texts)
        ]
        read = [text[:max_characters] for text in whole]
        tokens = self._encode_all(read, first)
        after_every_text = frozenset(direction.source_suffix)
        has_content = [not after_every_text.issuperset(token_ids) for token_ids in tokens]
        task = ""
        if direction.task_prefix:
            task = f"those of the task prefix {direction.task_prefix!r} and "
            read = [direction.task_prefix + text for text in read]
            tokens = self._encode_all(read, first)
        sources = []
        for index, token_ids in enumerate(tokens):
            too_long = len(token_ids) > max_tokens
            if not has_content[index]:
                sources.append(EMPTY_SOURCE)
                continue
            if too_long and not truncate:
                around = len(prefix) + len(suffix)
                raise InvalidArgumentError(
                    f"the text has {len(token_ids) + around} tokens, {task}special ones included, and the model reads "
                    f"at most {limit}: split it, or set truncate",
                    field=f"contents[{first + index}]",
                )
            truncated = too_long or len(whole[index]) > max_characters
            kept = token_ids[:max_tokens]
            unknown = 0 if self._unknown is None else kept.count(self._unknown)
            text = read[index] if unknown and keep_unknown else ""
            given = ""
            if keep_given:
                begin = len(texts[index].rstrip()) - len(whole[index].rstrip())  # of what is read
                given = texts[index][: begin + max_characters]
            sources.append(Source((*prefix, *kept, *suffix), truncated, unknown=unknown, text=text, given=given))
        return sources

    def _readable(self, text: str, direction: Direction, max_characters: int, *, field: str, truncate: bool) -> str:
        """Return a text that can be tokenized; an empty one for white space."""
        check_text(text, field)
        text = self._codes.without(text, direction, field=field)
        if text.isspace():
            return ""
        if len(text) > max_characters:
            text = text.strip()
        if len(text) > max_characters and not truncate:
            raise InvalidArgumentError(
                f"the text has {len(text)} characters, far more than the {self._limits.max_source_length} tokens that "
                "the model reads: split it, or set truncate",
                field=field,
            )
        return text

    def _check_ids(self, token_ids: Sequence[int], *, field: str) -> list[int]:
        size = self._tokenizer.vocab_size
        usable = isinstance(token_ids, Sequence) and not isinstance(token_ids, bytes)
        if not usable or not all(isinstance(token, int) and 0 <= token < size for token in token_ids):
            raise InvalidArgumentError(f"{field} must be a string, or token ids below {size}", field=field)
        return list(token_ids)

    def _encode_target(self, text: str, *, field: str) -> list[int]:
        check_text(text, field)
        longest = self._limits.max_target_length
        if len(text) > longest * CHARACTERS_PER_TOKEN:
            raise InvalidArgumentError(
                f"the target text has {len(text)} characters, far more than the {longest} tokens that the model writes",
                field=field,
            )
        return _encode(self._tokenizer.encode_target, text, field)

    def _encode_all(self, texts: Sequence[str], first: int) -> list[list[int]]:
        """Tokenize some texts of a request; ``first`` is the index of the first one."""
        try:
            return self._tokenizer.encode_all(texts)
        except ForeignCodeError:  # of one text, which the second attempt finds
            return [
                _encode(self._tokenizer.encode, text, f"contents[{number}]")
                for number, text in enumerate(texts, start=first)
            ]


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Group texts in their order, each group of about the same work at most."""
    group: list[str] = []
    characters = 0
    for text in texts:
        group.append(text)
        characters += len(text) if isinstance(text, str) else 0  # others are refused later
        if len(group) == TEXTS_PER_DEADLINE_CHECK or characters >= CHARACTERS_PER_DEADLINE_CHECK:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _encode(encode: Callable[[str], list[int]], text: str, field: str) -> list[int]:
    """Tokenize a text.

    Raises:
        InvalidArgumentError: the tokenizer fails on the text.
    """
    try:
        return encode(text)
    except ForeignCodeError as error:
        logger.warning("%s; the text is refused", error)
        raise InvalidArgumentError(
            f"{field}: the model's tokenizer cannot read the text; change it", field=field
        ) from error


def check_texts(texts: object) -> None:
    """Check that texts are an ordered sequence, not a str.

    Raises:
        InvalidArgumentError: they are not.
    """
    if isinstance(texts, str | bytes | Mapping) or not hasattr(texts, "__getitem__"):
        raise InvalidArgumentError(
            f"texts must be a str, or a sequence of them for several texts, got {texts!r}", field="contents"
        )


def check_text(text: str, field: str) -> None:
    """Check that a text is a string without NUL or lone surrogate.

    Raises:
        InvalidArgumentError: it is not.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{field} must be a string, got {type(text).__name__}", field=field)
    found = None if _is_usable(text) else _UNUSABLE.search(text)
    if found is None:
        return
    point = ord(found.group())
    name = "the NUL character" if point == 0 else "a lone surrogate, which is no character"
    raise InvalidArgumentError(f"{field}: character {found.start()} is U+{point:04X}, {name}; remove it", field=field)


def _is_usable(text: str) -> bool:
    """True if a text has no NUL and no lone surrogate; ten times as fast as the search that finds one."""
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False


def check_count(field: str, values: Sequence[object], texts: int) -> None:
    """Raise InvalidArgumentError if there is not one value for each text."""
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != texts:
        got = str(len(values)) if isinstance(values, list | tuple) else type(values).__name__
        raise InvalidArgumentError(f"{field} must be one for each of {texts} texts, got {got}", field=field)
