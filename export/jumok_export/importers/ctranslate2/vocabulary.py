"""Tokens of a CTranslate2 folder: settings, vocabularies, SentencePiece models and languages."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from jumok_export.importers.ctranslate2.stored import ModelFile
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.language_codes import MARIAN_CODE
from jumok_export.importers.huggingface.language_roles import (
    Directions,
    every_language,
    one_source,
    prefixed,
    starting,
)
from jumok_serve.files import MOST_JSON_BYTES, UnusableFileError, parse_json, read_file
from jumok_serve.manifest.languages import Languages, SourceLanguage

CONFIG = "config.json"
_TOKENS: TypeAdapter[list[str]] = TypeAdapter(list[str])
_PAIRS = (("source.spm", "target.spm"), ("src.spm.model", "tgt.spm.model"), ("source.model", "target.model"))
_SINGLE = (
    "sentencepiece.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "sp.model",
    "tokenizer.model",
    "joint.spm.model",
)
"""Usual names of SentencePiece models in folders of CTranslate2, one for each language or one for both."""
_PADS = ("<pad>", "<blank>")
_LANGUAGE_CODE = re.compile(r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})|([a-z]{2,3}_[A-Z]{2})")
"""Language tokens of M2M100, NLLB and mBART."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Tokens and numbers of a folder's settings.

    A start of None leaves the first token to the caller.
    """

    unknown: str
    bos: str
    eos: str
    start: str | None
    source_bos: bool
    source_eos: bool
    epsilon: float | None


def read_settings(folder: Path, file: ModelFile) -> Settings:
    """Read config.json, or the variables that stood for it before version 6.

    Raises:
        CheckpointError: unreadable or impossible settings.
    """
    config = _config(folder)
    if file.version < 6:
        bos, eos = file.text("bos_token", "<s>"), file.text("eos_token", "</s>")
        start = bos if file.number("with_target_bos", 1) else eos
        config = {
            "unk_token": file.text("unk_token", "<unk>"),
            "bos_token": bos,
            "eos_token": eos,
            "decoder_start_token": None if file.number("user_decoder_start_tokens", 0) else start,
            "add_source_bos": bool(file.number("with_source_bos", 0)),
            "add_source_eos": bool(file.number("with_source_eos", 0)),
        } | {name: value for name, value in config.items() if name == "layer_norm_epsilon"}
    problems = [
        f"{name} of {CONFIG} must be a token, it is {config.get(name)!r}"
        for name in ("unk_token", "bos_token", "eos_token", "decoder_start_token")
        if not isinstance(config.get(name), str) and not (name == "decoder_start_token" and name in config)
    ]
    epsilon = config.get("layer_norm_epsilon")
    if not (epsilon is None or (isinstance(epsilon, int | float) and 0 < epsilon < 1)):
        problems.append(f"layer_norm_epsilon of {CONFIG} must be a number below 1, it is {epsilon!r}")
    if config.get("quantization_type"):
        problems.append(f"quantization_type of {CONFIG} is set: convert the original weights without AWQ")
    if problems:
        raise CheckpointError(problems)
    return Settings(
        unknown=config["unk_token"],
        bos=config["bos_token"],
        eos=config["eos_token"],
        start=config["decoder_start_token"],
        source_bos=config.get("add_source_bos") is True,
        source_eos=config.get("add_source_eos") is True,
        epsilon=epsilon,
    )


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        return {}
    try:
        content = parse_json(read_file(path, MOST_JSON_BYTES))
    except (OSError, UnusableFileError) as error:
        raise CheckpointError([f"{CONFIG} cannot be used: {error}"]) from error
    if not isinstance(content, dict):
        raise CheckpointError([f"{CONFIG} must hold an object"])
    return content


@dataclass(frozen=True, kw_only=True)
class Vocabularies:
    """Ids by token; no target vocabulary: one for both languages."""

    source: Mapping[str, int]
    target: Mapping[str, int] | None

    @property
    def of_target(self) -> Mapping[str, int]:
        """Ids of target tokens."""
        return self.source if self.target is None else self.target


def read_vocabularies(folder: Path) -> Vocabularies:
    """Read ``shared_vocabulary``, or ``source_vocabulary`` and ``target_vocabulary``, each .json or .txt.

    Raises:
        CheckpointError: a missing or unreadable vocabulary.
    """
    shared = _vocabulary(folder, "shared_vocabulary")
    if shared is not None:
        return Vocabularies(source=shared, target=None)
    found = [_vocabulary(folder, f"{side}_vocabulary") for side in ("source", "target")]
    if found[0] is None or found[1] is None:
        raise CheckpointError(
            ["its vocabulary is missing: shared_vocabulary, or source_vocabulary and target_vocabulary"]
        )
    return Vocabularies(source=found[0], target=found[1])


def _vocabulary(folder: Path, name: str) -> dict[str, int] | None:
    for ending in (".json", ".txt"):
        path = folder / f"{name}{ending}"
        if not path.is_file():
            continue
        try:
            content = read_file(path, MOST_JSON_BYTES)
            tokens = _TOKENS.validate_json(content, strict=True) if ending == ".json" else _lines(content)
        except (OSError, UnusableFileError, UnicodeDecodeError, ValidationError) as error:
            raise CheckpointError([f"{path.name} is no list of tokens: {str(error).partition(chr(10))[0]}"]) from error
        ids: dict[str, int] = {}
        for number, token in enumerate(tokens):
            ids.setdefault(token, number)
        return ids
    return None


def _lines(content: bytes) -> list[str]:
    """Split a text file into tokens.

    A carriage return is a part of its token, unless every line has one.
    """
    tokens = content.decode().removesuffix("\n").split("\n")
    if all(token.endswith("\r") for token in tokens):
        return [token[:-1] for token in tokens]
    return tokens


def find_pieces(folder: Path) -> tuple[Path, Path | None]:
    """Find the SentencePiece models of source and target in a folder.

    A target of None means one model for both.

    Raises:
        CheckpointError: no model, or several of unknown roles.
    """
    for source, target in _PAIRS:
        if (folder / source).is_file() and (folder / target).is_file():
            return folder / source, folder / target
    found = [folder / name for name in _SINGLE if (folder / name).is_file()]
    others = sorted(path for path in folder.iterdir() if path.suffix in {".model", ".spm"} and path.is_file())
    if not found and len(others) == 1:
        found = others
    if not found:
        there = f", and the roles of {', '.join(path.name for path in others)} are unknown" if others else ""
        raise CheckpointError(
            [
                f"{folder} has no SentencePiece model{there}: copy the model's into it, as sentencepiece.model, or as "
                "source.spm and target.spm"
            ]
        )
    return found[0], None


def read_languages(
    settings: Settings, vocabularies: Vocabularies, *, requested: Directions, configured: Directions, relative: bool
) -> tuple[Languages, tuple[str, ...]]:
    """Make the languages by the tokens of a vocabulary, and notes on decisions.

    Args:
        relative: True for a model with relative positions, such as T5.

    Raises:
        CheckpointError: a missing token, or an unnamed or unknown language.
    """
    source, target, eos = vocabularies.source, vocabularies.of_target, settings.eos
    codes = {
        next(filter(None, match.groups())): number
        for token, number in target.items()
        if settings.start != settings.bos and (match := _LANGUAGE_CODE.fullmatch(token)) and token in source
    }
    if len(codes) > 1:
        _require(source, eos)
        roles = starting if settings.start is None else prefixed
        return every_language(codes, roles(source[eos]), requested=requested, configured=configured), ()
    if settings.start is None:
        raise CheckpointError([f"{CONFIG} leaves the decoder's start token to the caller, and no languages name one"])
    # Users of models that were trained with an end of sources add it themselves, unless the settings say so.
    ends = settings.source_eos or relative or settings.start != settings.bos or settings.start in _PADS
    marian = settings.bos not in source
    begins = settings.source_bos or (not settings.source_eos and settings.start == eos and not marian)
    around = {"prefix": settings.bos if begins else None, "suffix": eos if ends else None}
    _require(source, *filter(None, around.values()))
    language = SourceLanguage(
        **{role: (source[token],) for role, token in around.items() if token is not None},
    )
    notes = () if ends or settings.source_bos else ("sources have no end token, as the model's settings name none",)
    spelled = {match[1]: number for token, number in source.items() if (match := MARIAN_CODE.fullmatch(token))}
    several = spelled if len(spelled) > 1 else {}
    return one_source(language, several, requested=requested, configured=configured), notes


def _require(vocabulary: Mapping[str, int], *tokens: str) -> None:
    missing = [f"the source vocabulary has no {token!r}, which the model's settings name" for token in tokens]
    missing = [problem for problem, token in zip(missing, tokens, strict=True) if token not in vocabulary]
    if missing:
        raise CheckpointError(missing)


def find_pad(vocabulary: Mapping[str, int]) -> int:
    """Return the id of the padding token, or 0: padding is masked."""
    return next((vocabulary[token] for token in _PADS if token in vocabulary), 0)


def special_tokens(settings: Settings, vocabularies: Vocabularies) -> tuple[str, ...]:
    """List the tokens that are no text."""
    known = dict.fromkeys((settings.unknown, settings.bos, settings.eos, settings.start or settings.eos, *_PADS))
    codes = (
        token for token in vocabularies.source if _LANGUAGE_CODE.fullmatch(token) and settings.start != settings.bos
    )
    return tuple(dict.fromkeys(token for token in (*known, *codes) if token in vocabularies.source))
