"""What stands around a text for each language of a checkpoint, as its family's tokenizer and `generate` have it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_proto.errors import LanguageNotFoundError
from jumok_serve.manifest.fields import LanguageTag
from jumok_serve.manifest.languages import LanguagePair, Languages, SourceLanguage, TargetLanguage

_TAG: TypeAdapter[str] = TypeAdapter(LanguageTag)
_TASK = re.compile(r"translation_(?P<source>.+)_to_(?P<target>.+)")


@dataclass(frozen=True, kw_only=True)
class Directions:
    """Languages that somebody named, as codes or tags; None: not named."""

    source: str | None = None
    target: str | None = None


Frame = Callable[[int], tuple[SourceLanguage, TargetLanguage]]
"""What a language needs as source and as target, by the id of its token."""


def prefixed(eos: int) -> Frame:
    """M2M100, NLLB, mBART-50: the language before the text, EOS behind it; the first new token is the language's."""
    return lambda token: (SourceLanguage(prefix=(token,), suffix=(eos,)), TargetLanguage(forced_first=token))


def suffixed(eos: int) -> Frame:
    """NLLB in its older form: EOS and the language behind the text; the first new token is the language's."""
    return lambda token: (SourceLanguage(suffix=(eos, token)), TargetLanguage(forced_first=token))


def starting(eos: int) -> Frame:
    """The first mBART: EOS and the language behind the text; decoding starts with the language's token."""
    return lambda token: (SourceLanguage(suffix=(eos, token)), TargetLanguage(start=token))


def language_tag(code: str) -> str | None:
    """The tag of a checkpoint's language code, ``eng-Latn`` for ``eng_Latn``; None for what is no language."""
    try:
        return _TAG.validate_python(code.replace("_", "-"))
    except ValidationError:
        return None


def every_language(tokens: Mapping[str, int], frame: Frame, *, asked: Directions, configured: Directions) -> Languages:
    """Every language as source and as target.

    Args:
        tokens: id of each language's token, by the language's code.
        frame: what a language needs.
        asked: the default direction that the caller wants.
        configured: the default direction that the checkpoint names.

    Raises:
        CheckpointError: there are no languages, or not those that were asked for.
    """
    framed = {tag: frame(token) for tag, token in _by_tag(tokens).items()}
    if not framed:
        raise CheckpointError(["the tokenizer has no language tokens within the model's vocabulary"])
    languages = Languages(
        sources={tag: source for tag, (source, _) in framed.items()},
        targets={tag: target for tag, (_, target) in framed.items()},
    )
    return _with_default(languages, asked, configured)


def one_source(
    source: SourceLanguage, codes: Mapping[str, int], *, asked: Directions, configured: Directions
) -> Languages:
    """One source language, and as many targets as there are codes that stand before a text; without codes, one.

    Args:
        source: what the source language needs.
        codes: id of each target language's token, by the language's code.
        asked: the languages that the caller names; where there is a choice, the default direction.
        configured: the languages that the checkpoint names.

    Raises:
        CheckpointError: nobody names a language, or the one that was asked for is not there.
    """
    targets = {tag: TargetLanguage(source_prefix=(token,)) for tag, token in _by_tag(codes).items()}
    named = {"source": _named("source", asked.source, configured.source)}
    if not targets:
        named["target"] = _named("target", asked.target, configured.target)
    problems = [problem for _, problem in named.values() if problem is not None]
    if problems:
        raise CheckpointError(problems)
    tags = {role: tag for role, (tag, _) in named.items() if tag is not None}
    if not targets:
        return Languages(
            sources={tags["source"]: source},
            targets={tags["target"]: TargetLanguage()},
            default=LanguagePair(source=tags["source"], target=tags["target"]),
        )
    return _with_default(
        Languages(sources={tags["source"]: source}, targets=targets),
        Directions(source=tags["source"] if asked.target else None, target=asked.target),
        Directions(source=tags["source"]),
    )


def task_pairs(config: Mapping[str, Any]) -> tuple[LanguagePair, ...]:
    """The translations among ``task_specific_params``, with the text that each wants before its own."""
    pairs = []
    for name, parameters in (config.get("task_specific_params") or {}).items():
        task = _TASK.fullmatch(name)
        if task is not None and isinstance(parameters, Mapping):
            source, target = language_tag(task["source"]), language_tag(task["target"])
            if source is not None and target is not None:
                prefix = str(parameters.get("prefix") or "")
                pairs.append(LanguagePair(source=source, target=target, task_prefix=prefix))
    return tuple(pairs)


def tasks(source: SourceLanguage, pairs: tuple[LanguagePair, ...], *, asked: Directions) -> Languages:
    """The pairs of a checkpoint that is told by a text what to do; all sources need the same.

    Raises:
        CheckpointError: the checkpoint does not have the pair that was asked for.
    """
    languages = Languages(
        sources={pair.source: source for pair in pairs},
        targets={pair.target: TargetLanguage() for pair in pairs},
        pairs=pairs,
        default=pairs[0] if len(pairs) == 1 else None,
    )
    chosen = _with_default(languages, asked, Directions())
    if asked == Directions() or chosen.default is None:
        return languages
    try:
        direction = languages.direction(chosen.default.source, chosen.default.target)
    except LanguageNotFoundError as error:
        raise CheckpointError(
            [f"{error}; to import it for another, take task_specific_params out of config.json"]
        ) from error
    default = LanguagePair(source=direction.source, target=direction.target, task_prefix=direction.task_prefix)
    return languages.model_copy(update={"default": default})


def _named(role: str, asked: str | None, configured: str | None) -> tuple[str | None, str | None]:
    """The tag of a language that only has a name, or what is wrong with it."""
    option = f"--{role}-lang"
    if asked is not None:
        tag = language_tag(asked)
        return tag, None if tag else f"{option} {asked!r} is no language tag such as 'en' or 'eng-Latn'"
    tag = None if configured is None else language_tag(configured)
    said = "does not name" if configured is None else f"names {configured!r}, which is no tag of"
    return tag, None if tag else f"the checkpoint {said} its {role} language: give {option}"


def _by_tag(tokens: Mapping[str, int]) -> dict[str, int]:
    """Ids of language tokens by tag; of codes that differ in nothing but their spelling, the first."""
    found: dict[str, tuple[str, int]] = {}
    for code, token in tokens.items():
        tag = language_tag(code)
        if tag is not None:
            found.setdefault(tag.casefold(), (tag, token))
    return dict(found.values())


def _with_default(languages: Languages, asked: Directions, configured: Directions) -> Languages:
    """The same with a default direction: what was asked for, and for the rest what the checkpoint names."""
    sides = (
        ("source", list(languages.sources), asked.source, configured.source),
        ("target", list(languages.targets), asked.target, configured.target),
    )
    problems: list[str] = []
    tags: dict[str, str] = {}
    for role, known, wanted, named in sides:
        tag = None if named is None else language_tag(named)
        if wanted is not None:
            try:
                tags[role] = _find(role, wanted, languages)
            except LanguageNotFoundError as error:
                problems.append(f"--{role}-lang: {error}")
        elif tag in known:
            tags[role] = tag
        elif len(known) == 1:
            tags[role] = known[0]
        elif asked != Directions():
            problems.append(f"--{role}-lang is missing: name both languages or none")
    if problems:
        raise CheckpointError(problems)
    if len(tags) < len(sides):
        return languages
    return languages.model_copy(update={"default": LanguagePair(source=tags["source"], target=tags["target"])})


def _find(role: str, asked: str, languages: Languages) -> str:
    """The tag of one side's language, in whatever spelling it is asked for."""
    anything = "und"
    if role == "source":
        one_side = Languages(sources=languages.sources, targets={anything: TargetLanguage()})
        return one_side.direction(asked, anything).source
    one_side = Languages(sources={anything: SourceLanguage()}, targets=languages.targets)
    return one_side.direction(anything, asked).target
