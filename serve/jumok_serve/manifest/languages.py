"""Languages of a model, and the tokens that each needs around a text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from pydantic import model_validator

from jumok_proto.errors import InvalidArgumentError, LanguageNotFoundError
from jumok_serve.manifest.fields import LanguageTag, Part, TokenId
from jumok_serve.manifest.language_codes import tag_key

MAX_LISTED = 24
"""Most languages or pairs in an error message."""


class SourceLanguage(Part):
    """Token ids around a text, such as a language token and EOS."""

    prefix: tuple[TokenId, ...] = ()
    suffix: tuple[TokenId, ...] = ()


class TargetLanguage(Part):
    """Token ids that a translation into this language needs.

    Attributes:
        source_prefix: ids at the beginning of the source (``>>deu<<``), before the source language's prefix.
        start: start token of the decoder; None: the model's.
        forced_first: token that the decoder must write first; None: none.
    """

    source_prefix: tuple[TokenId, ...] = ()
    start: TokenId | None = None
    forced_first: TokenId | None = None


class LanguagePair(Part):
    """A direction of translation; ``task_prefix`` is text that the model needs before every source."""

    source: LanguageTag
    target: LanguageTag
    task_prefix: str = ""


class Languages(Part):
    """Languages of a model.

    Attributes:
        pairs: directions of the model; empty: every source with every target.
        default: direction of requests without languages.
    """

    sources: dict[LanguageTag, SourceLanguage]
    targets: dict[LanguageTag, TargetLanguage]
    pairs: tuple[LanguagePair, ...] = ()
    default: LanguagePair | None = None

    @classmethod
    def of_pair(cls, source: str, target: str, *, prefix: tuple[int, ...] = (), suffix: tuple[int, ...]) -> Self:
        """Return the languages of a model with one direction.

        The tokens ``prefix`` begin every source, and ``suffix``, usually EOS, ends it.
        """
        return cls(
            sources={source: SourceLanguage(prefix=prefix, suffix=suffix)},
            targets={target: TargetLanguage()},
            default=LanguagePair(source=source, target=target),
        )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        for known, role in ((self.sources, "source"), (self.targets, "target")):
            if not known:
                raise ValueError(f"name at least one {role} language")
            if len({tag_key(tag) for tag in known}) < len(known):
                raise ValueError(f"two {role} languages differ only in case or hyphens: {', '.join(known)}")
        for pair in (*self.pairs, *([self.default] if self.default else [])):
            for tag, known, role in ((pair.source, self.sources, "source"), (pair.target, self.targets, "target")):
                if tag not in known:
                    raise ValueError(f"pair {pair.source} to {pair.target}: {tag} is not a {role} language")
        return self

    @property
    def all_pairs(self) -> Iterator[tuple[str, str]]:
        """All directions, as (source, target)."""
        if self.pairs:
            return ((pair.source, pair.target) for pair in self.pairs)
        return ((source, target) for source in self.sources for target in self.targets)

    def direction(self, source: str | None = None, target: str | None = None) -> "Direction":
        """Return the direction between two languages, in any case and with ``-`` or ``_``.

        A language that is None becomes that of the default, or the only language.

        Raises:
            LanguageNotFoundError: the model does not have a language, or not this pair.
            InvalidArgumentError: a language is None and the model has no default.
        """
        default = self.default
        source_tag = _find("source", source, self.sources, default.source if default else None)
        target_tag = _find("target", target, self.targets, default.target if default else None)
        task_prefix = ""
        if default is not None and (default.source, default.target) == (source_tag, target_tag):
            task_prefix = default.task_prefix
        elif self.pairs:
            pairs = {(pair.source, pair.target): pair for pair in self.pairs}
            if (source_tag, target_tag) not in pairs:
                raise LanguageNotFoundError(
                    f"the model does not translate from {source_tag} to {target_tag}; its pairs are "
                    f"{_join(f'{pair.source} to {pair.target}' for pair in self.pairs)}",
                    field="target_language_code",
                )
            task_prefix = pairs[source_tag, target_tag].task_prefix
        reads, writes = self.sources[source_tag], self.targets[target_tag]
        return Direction(
            source=source_tag,
            target=target_tag,
            source_prefix=(*writes.source_prefix, *reads.prefix),
            source_suffix=reads.suffix,
            task_prefix=task_prefix,
            start=writes.start,
            forced_first=writes.forced_first,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """A direction of translation, with the token ids that it needs.

    Attributes:
        source_prefix: ids before those of the text.
        source_suffix: ids after those of the text.
        task_prefix: text before the text.
        start: start token of the decoder; None: the model's.
        forced_first: token that the decoder must write first; None: none.
    """

    source: str
    target: str
    source_prefix: tuple[int, ...]
    source_suffix: tuple[int, ...]
    task_prefix: str
    start: int | None
    forced_first: int | None


def _find(role: str, tag: str | None, known: Iterable[str], default: str | None) -> str:
    tags = {tag_key(known_tag): known_tag for known_tag in known}
    if tag is None:
        if default is not None:
            return default
        if len(tags) == 1:
            return next(iter(tags.values()))
        raise InvalidArgumentError(
            f"the model has several {role} languages and no default: name one of {_join(tags.values())}",
            field=f"{role}_language_code",
        )
    if tag_key(tag) not in tags:
        raise LanguageNotFoundError(
            f"the model has no {role} language {tag!r}; it has {_join(tags.values())}",
            field=f"{role}_language_code",
        )
    return tags[tag_key(tag)]


def _join(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    return ", ".join(listed[:MAX_LISTED]) + more
