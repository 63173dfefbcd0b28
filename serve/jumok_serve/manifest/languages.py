"""The languages of a model: which it reads and writes, and what each needs of the tokens around a text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from pydantic import model_validator

from jumok_proto.errors import InvalidArgumentError, LanguageNotFoundError
from jumok_serve.manifest.fields import LanguageTag, Part, TokenId

MOST_NAMED = 24
"""Languages that an error message lists."""


class SourceLanguage(Part):
    """What stands around a text of this language: ids before and after its own, such as a language token and EOS."""

    prefix: tuple[TokenId, ...] = ()
    suffix: tuple[TokenId, ...] = ()


class TargetLanguage(Part):
    """What a translation into this language needs.

    ``source_prefix`` stands before everything else of the source (``>>deu<<``), ``start`` is what the decoder is fed
    first (default: the model's start token), and ``forced_first`` is the first token that it must write.
    """

    source_prefix: tuple[TokenId, ...] = ()
    start: TokenId | None = None
    forced_first: TokenId | None = None


class LanguagePair(Part):
    """A direction of translation; ``task_prefix`` is text that the model wants before the text itself."""

    source: LanguageTag
    target: LanguageTag
    task_prefix: str = ""


class Languages(Part):
    """All languages of a model. ``pairs`` are the directions it knows (none listed: every source with every target).

    ``default`` is the direction of a request that names no language.
    """

    sources: dict[LanguageTag, SourceLanguage]
    targets: dict[LanguageTag, TargetLanguage]
    pairs: tuple[LanguagePair, ...] = ()
    default: LanguagePair | None = None

    @classmethod
    def of_pair(cls, source: str, target: str, *, suffix: tuple[int, ...]) -> Self:
        """The languages of a model for one direction, whose sources end with ``suffix``: usually the id of EOS."""
        return cls(
            sources={source: SourceLanguage(suffix=suffix)},
            targets={target: TargetLanguage()},
            default=LanguagePair(source=source, target=target),
        )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        for known, role in ((self.sources, "source"), (self.targets, "target")):
            if not known:
                raise ValueError(f"there must be a {role} language")
            if len({_key(tag) for tag in known}) < len(known):
                raise ValueError(f"two {role} languages differ in nothing but their spelling: {', '.join(known)}")
        for pair in (*self.pairs, *([self.default] if self.default else [])):
            for tag, known, role in ((pair.source, self.sources, "source"), (pair.target, self.targets, "target")):
                if tag not in known:
                    raise ValueError(f"pair {pair.source} to {pair.target}: {tag} is not a {role} language")
        return self

    @property
    def all_pairs(self) -> Iterator[tuple[str, str]]:
        """Every direction, the source language first."""
        if self.pairs:
            return ((pair.source, pair.target) for pair in self.pairs)
        return ((source, target) for source in self.sources for target in self.targets)

    def direction(self, source: str | None = None, target: str | None = None) -> "Direction":
        """The direction that a request asks for; what it leaves open is the default's, or the only one there is.

        Languages are found whatever their case, and with ``_`` for ``-``.

        Raises:
            LanguageNotFoundError: the model does not have the language, or not this pair of them.
            InvalidArgumentError: a language is left open and there is no default.
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
                    f"{_listed(f'{pair.source} to {pair.target}' for pair in self.pairs)}",
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
    """What one direction of translation needs: token ids around the source's own, and where the decoder begins.

    Attributes:
        source: language of the text.
        target: language of the translation.
        source_prefix: ids before the text's.
        source_suffix: ids after the text's.
        task_prefix: text before the text.
        start: what the decoder is fed first; None: the model's start token.
        forced_first: the first token that it must write, if it must.
    """

    source: str
    target: str
    source_prefix: tuple[int, ...]
    source_suffix: tuple[int, ...]
    task_prefix: str
    start: int | None
    forced_first: int | None


def _find(role: str, asked: str | None, known: Iterable[str], default: str | None) -> str:
    tags = {_key(tag): tag for tag in known}
    if asked is None:
        if default is not None:
            return default
        if len(tags) == 1:
            return next(iter(tags.values()))
        raise InvalidArgumentError(
            f"the model has several {role} languages and no default: name one of {_listed(tags.values())}",
            field=f"{role}_language_code",
        )
    if _key(asked) not in tags:
        raise LanguageNotFoundError(
            f"the model has no {role} language {asked!r}; it has {_listed(tags.values())}",
            field=f"{role}_language_code",
        )
    return tags[_key(asked)]


def _key(tag: str) -> str:
    return tag.replace("_", "-").casefold()


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
    return ", ".join(listed[:MOST_NAMED]) + more
