"""Special tokens of each language of a checkpoint, as in its tokenizer and `generate`."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.settings import shown
from jumok_proto.errors import LanguageNotFoundError
from jumok_serve.manifest.languages import LanguagePair, Languages, SourceLanguage, TargetLanguage
from jumok_serve.manifest.parts import LanguageTag

_TAG: TypeAdapter[str] = TypeAdapter(LanguageTag)
UNDETERMINED = "und"
"""Tag of a language that a checkpoint leaves open (ISO 639-2)."""
_DEFAULT_SOURCES = ("en", "eng_Latn", "en_XX")
"""Default source of transformers' tokenizers for many languages, in each spelling."""
_TASK = re.compile(r"translation_(?P<source>.+)_to_(?P<target>.+)")


@dataclass(frozen=True, kw_only=True)
class Directions:
    """A pair of languages as codes or tags; None: not named."""

    source: str | None = None
    target: str | None = None


LanguageRoles = Callable[[int], tuple[SourceLanguage, TargetLanguage]]
"""Function from a language's token to its special tokens as source and as target."""


def prefixed(eos: int) -> LanguageRoles:
    """M2M100, NLLB and mBART-50: language token, text, EOS.

    The first new token is the target language's.
    """
    return lambda token: (SourceLanguage(prefix=(token,), suffix=(eos,)), TargetLanguage(forced_first=token))


def suffixed(eos: int) -> LanguageRoles:
    """Former NLLB: text, EOS, language token; the first new token is the target language's."""
    return lambda token: (SourceLanguage(suffix=(eos, token)), TargetLanguage(forced_first=token))


def starting(eos: int) -> LanguageRoles:
    """The original mBART: text, EOS, language token; decoding starts with the target language's token."""
    return lambda token: (SourceLanguage(suffix=(eos, token)), TargetLanguage(start=token))


def language_tag(code: str) -> str | None:
    """Convert a code such as ``eng_Latn`` to a tag, or None."""
    try:
        return _TAG.validate_python(code.replace("_", "-"))
    except ValidationError:
        return None


def every_language(
    tokens: Mapping[str, int], roles: LanguageRoles, *, requested: Directions, configured: Directions
) -> Languages:
    """Make every language a source and a target.

    Args:
        tokens: id of each language's token, by language code.
        requested: the caller's default direction.
        configured: the checkpoint's default direction.

    Raises:
        CheckpointError: no languages, or an unknown default.
    """
    languages_by_tag = {tag: roles(token) for tag, token in _by_tag(tokens).items()}
    if not languages_by_tag:
        raise CheckpointError(["the tokenizer has no language tokens within the model's vocabulary"])
    languages = Languages(
        sources={tag: source for tag, (source, _) in languages_by_tag.items()},
        targets={tag: target for tag, (_, target) in languages_by_tag.items()},
    )
    return _with_default(languages, requested, configured)


def one_source(
    source: SourceLanguage, codes: Mapping[str, int], *, requested: Directions, configured: Directions
) -> Languages:
    """Make one source language, and a target for each code that may stand before a text.

    Without codes there is one target.

    Args:
        codes: id of each target language's token, by language code.
        requested: languages that the caller names; with several targets, the default direction.
        configured: languages that the checkpoint names.

    Raises:
        CheckpointError: an unnamed language, or an unknown default.
    """
    targets = {tag: TargetLanguage(source_prefix=(token,)) for tag, token in _by_tag(codes).items()}
    named = {"source": _named("source", requested.source, configured.source)}
    if not targets:
        named["target"] = _named("target", requested.target, configured.target)
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
        Directions(source=tags["source"] if requested.target else None, target=requested.target),
        Directions(source=tags["source"]),
    )


def task_pairs(config: Mapping[str, Any]) -> tuple[LanguagePair, ...]:
    """Read the language pairs and their prefixes from ``task_specific_params``."""
    pairs = []
    named = config.get("task_specific_params") or {}
    if not isinstance(named, Mapping):
        raise CheckpointError([f"task_specific_params must be an object, got {shown(named)}"])
    for name, parameters in named.items():
        task = _TASK.fullmatch(name)
        if task is not None and isinstance(parameters, Mapping):
            source, target = language_tag(task["source"]), language_tag(task["target"])
            if source is not None and target is not None:
                prefix = str(parameters.get("prefix") or "")
                pairs.append(LanguagePair(source=source, target=target, task_prefix=prefix))
    return tuple(pairs)


def tasks(source: SourceLanguage, pairs: tuple[LanguagePair, ...], *, requested: Directions) -> Languages:
    """Make the languages of a checkpoint with task prefixes.

    All sources have the same tokens.

    Raises:
        CheckpointError: an unknown default pair.
    """
    languages = Languages(
        sources={pair.source: source for pair in pairs},
        targets={pair.target: TargetLanguage() for pair in pairs},
        pairs=pairs,
        default=pairs[0] if len(pairs) == 1 else None,
    )
    chosen = _with_default(languages, requested, Directions())
    if requested == Directions() or chosen.default is None:
        return languages
    try:
        direction = languages.direction(chosen.default.source, chosen.default.target)
    except LanguageNotFoundError as error:
        raise CheckpointError(
            [f"{error}; to import it for another, take task_specific_params out of config.json"]
        ) from error
    default = LanguagePair(source=direction.source, target=direction.target, task_prefix=direction.task_prefix)
    return languages.model_copy(update={"default": default})


def _named(role: str, requested: str | None, configured: str | None) -> tuple[str | None, str | None]:
    """Tag of a language without a token, or the problem with its name."""
    option = f"--{role}-language"
    if requested is not None:
        tag = language_tag(requested)
        return tag, None if tag else f"{option} {requested!r} is no language tag such as 'en' or 'eng-Latn'"
    tag = None if configured is None else language_tag(configured)
    said = "does not name" if configured is None else f"names {configured!r}, which is no tag of"
    return tag, None if tag else f"the checkpoint {said} its {role} language: give {option}"


def _by_tag(tokens: Mapping[str, int]) -> dict[str, int]:
    """Ids of language tokens by tag.

    Tags have no case: of codes that differ only by case, the second one's tag gets ``-x-2``, and so on.
    """
    return {tag: tokens[code] for code, tag in _tags(tokens).items()}


def same_tags(codes: Iterable[str]) -> tuple[str, ...]:
    """Describe the tags of codes that differ only by case from an earlier code."""
    return tuple(
        f"the codes of several languages differ only by case: {code!r} is the language {tag}"
        for code, tag in _tags(codes).items()
        if tag != language_tag(code)
    )


def _tags(codes: Iterable[str]) -> dict[str, str]:
    found, uses = dict[str, str](), Counter[str]()
    for code in codes:
        tag = language_tag(code)
        if tag is not None:
            uses[tag.casefold()] += 1
            number = uses[tag.casefold()]
            found[code] = tag if number == 1 else f"{tag}-x-{number}"
    return found


def with_forced_target(configured: Directions, tokens: Mapping[str, int], forced_first: object) -> Directions:
    """Take the default target from the forced first token, if the tokenizer names none.

    The source is then transformers' default, if the tokenizer names none.

    Args:
        tokens: id of each language's token, by language code.
    """
    target = next((code for code, token in tokens.items() if token == forced_first), None)
    if configured.target is not None or target is None:
        return configured
    default = next((code for code in _DEFAULT_SOURCES if code in tokens), None)
    return Directions(source=configured.source or default, target=target)


def _with_default(languages: Languages, requested: Directions, configured: Directions) -> Languages:
    """Set the default direction: the caller's, else the checkpoint's."""
    roles = (
        ("source", list(languages.sources), requested.source, configured.source),
        ("target", list(languages.targets), requested.target, configured.target),
    )
    problems: list[str] = []
    tags: dict[str, str] = {}
    for role, known, wanted, named in roles:
        tag = None if named is None else language_tag(named)
        if wanted is not None:
            try:
                tags[role] = _find(role, wanted, languages)
            except LanguageNotFoundError as error:
                problems.append(f"--{role}-language: {error}")
        elif tag in known:
            tags[role] = tag
        elif len(known) == 1:
            tags[role] = known[0]
        elif requested != Directions():
            problems.append(f"--{role}-language is missing: name both languages or none")
    if problems:
        raise CheckpointError(problems)
    if len(tags) < len(roles):
        return languages
    return languages.model_copy(update={"default": LanguagePair(source=tags["source"], target=tags["target"])})


def _find(role: str, requested: str, languages: Languages) -> str:
    """Find the tag of a source or target language in any spelling."""
    other = "und"
    if role == "source":
        candidates = Languages(sources=languages.sources, targets={other: TargetLanguage()})
        return candidates.direction(requested, other).source
    candidates = Languages(sources={other: SourceLanguage()}, targets=languages.targets)
    return candidates.direction(other, requested).target
