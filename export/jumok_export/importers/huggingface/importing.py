"""From a checkpoint in Hugging Face's layout to a verified bundle."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from jumok_export.bundles.export import DEFAULT_PRECISIONS, describe_architecture, describe_provenance, export_bundle
from jumok_export.errors import ExportError
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.families import build_model, require_supported
from jumok_export.importers.huggingface.folder import CheckpointFolder, open_checkpoint
from jumok_export.importers.huggingface.generation import ImportedGeneration, read_generation
from jumok_export.importers.huggingface.imported import ImportedModel
from jumok_export.importers.huggingface.tokenizer import ImportedTokenizer, read_tokenizer
from jumok_export.models.t5 import T5
from jumok_export.models.transformer import Transformer
from jumok_export.shortlists.sources import ShortlistPlan
from jumok_proto.errors import InvalidArgumentError
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.fields import Name
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Architecture, Limits, SourceCheckpoint
from jumok_serve.search.options import DecodingOptions

_Part = TypeVar("_Part")
_NAME: TypeAdapter[str] = TypeAdapter(Name)
_OF_TRAINING = ("dropout", "attention_dropout", "activation_dropout", "max_positions")
"""Sizes of a model that do not describe an imported one."""
_MOST_UNUSED = 8
"""Tensors that are named as unused; of more, their number is told."""


def import_checkpoint(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    precisions: Sequence[str] = DEFAULT_PRECISIONS,
    source_language: str | None = None,
    target_language: str | None = None,
    calibration: Sequence[str] | None = None,
    shortlist: ShortlistPlan | None = None,
    name: str | None = None,
    version: str = "1",
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Makes a bundle of a checkpoint: it decodes as `generate` of transformers 5 does by the checkpoint's settings.

    The folder is as `save_pretrained` leaves it: config.json, generation_config.json if there is one, weights in
    model.safetensors or pytorch_model.bin, and the tokenizer's files. Nothing in it is executed. Families are those of
    `jumok_export.importers.huggingface.ARCHITECTURES`.

    Args:
        folder: the checkpoint's; it must be local.
        out: the bundle's folder.
        precisions: variants to write, of "fp32", "fp16" and "int8".
        source_language: of a request that names none; also tells a checkpoint's language where it does not itself.
        target_language: likewise, of translations.
        calibration: source texts that the scales of int8 activations are taken from; default: each row has its own.
        shortlist: how to make one; default: there is none.
        name: under which the model is served; default: the folder's name.
        version: of the model.
        overwrite: replace a bundle that is there already.
        progress: told what is being done, and what was decided where the checkpoint leaves something open.

    Returns:
        The bundle, opened. Its `manifest.provenance.notes` say what was decided.

    Raises:
        CheckpointError: the checkpoint cannot be imported; lists everything that is wrong with it.
        ExportError, ShortlistError, VerificationError, BundleError: as `export_bundle`.
    """
    progress("reading the checkpoint")
    checkpoint = open_checkpoint(folder)
    model_name = _model_name(checkpoint.name if name is None else name, given=name is not None)
    parts = _read(checkpoint, source_language, target_language)
    if calibration is not None or shortlist is not None:
        what = "calibration translates in" if calibration is not None else "a shortlist is for"
        try:
            parts.tokenizer.languages.direction()
        except InvalidArgumentError as error:
            raise ExportError(
                f"{what} the default direction, and there is none: give both languages ({error})"
            ) from error
    notes = (*parts.generation.notes, *_unused(parts.model))
    for note in notes:
        progress(f"note: {note}")
    return export_bundle(
        parts.model.model,
        parts.tokenizer.tokenizer,
        out,
        name=model_name,
        version=version,
        languages=parts.tokenizer.languages,
        special_tokens=parts.generation.special_tokens,
        limits=parts.limits,
        generation=parts.generation.generation,
        architecture=_architecture(parts.model),
        provenance=describe_provenance(
            checkpoint=SourceCheckpoint(
                name=checkpoint.name,
                weights=checkpoint.sha256,
                transformers_version=_text(parts.config.get("transformers_version")),
            ),
            configuration=json.dumps(parts.config, indent=2, ensure_ascii=False),
            notes="; ".join(notes),
        ),
        precisions=precisions,
        calibration=calibration,
        shortlist=shortlist,
        overwrite=overwrite,
        progress=progress,
    )


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What a checkpoint has to offer."""

    config: Mapping[str, Any]
    model: ImportedModel
    tokenizer: ImportedTokenizer
    generation: ImportedGeneration

    @property
    def limits(self) -> Limits:
        model = self.model
        return Limits(max_source_length=model.max_source_length, max_target_length=model.max_target_length)


def _read(checkpoint: CheckpointFolder, source: str | None, target: str | None) -> _Parts:
    """The parts of a checkpoint.

    Raises:
        CheckpointError: lists what is wrong with any of them.
    """
    problems, config = list(checkpoint.problems), checkpoint.config
    if config is None:
        raise CheckpointError(problems)
    try:
        require_supported(config)
    except CheckpointError as error:  # what else may be wrong is of no interest
        raise CheckpointError([*error.problems, *problems]) from error
    tensors = checkpoint.tensors
    model = None if tensors is None else _gather(problems, partial(build_model, config, tensors))
    sizes = _stated_sizes(config) if model is None else (model.source_vocabulary, model.target_vocabulary)
    tokenizer = generation = None
    if sizes is not None:
        tokenizer = _gather(
            problems,
            partial(
                read_tokenizer,
                checkpoint.path,
                config,
                source_language=source,
                target_language=target,
                source_vocabulary=sizes[0],
                target_vocabulary=sizes[1],
            ),
        )
        settings = config if checkpoint.legacy else checkpoint.generation
        if settings is not None:
            generation = _gather(
                problems,
                partial(
                    read_generation,
                    settings,
                    legacy=checkpoint.legacy,
                    vocabulary=sizes[1],
                    pad=0 if model is None else model.pad,
                    max_target_length=sizes[1] if model is None else model.max_target_length,
                    start=None if tokenizer is None else _language_start(tokenizer.languages),
                ),
            )
    if problems or model is None or tokenizer is None or generation is None:
        raise CheckpointError(problems)
    parts = _Parts(config=config, model=model, tokenizer=tokenizer, generation=generation)
    _check_defaults(parts)
    return parts


def _gather(problems: list[str], read: Callable[[], _Part]) -> _Part | None:
    """What `read` returns; None where it finds problems, which are noted."""
    try:
        return read()
    except CheckpointError as error:
        problems += error.problems
        return None


def _stated_sizes(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Source and target vocabulary as config.json states them, to look at the rest by where the weights are broken."""
    source = config.get("vocab_size")
    target = config.get("decoder_vocab_size") or source
    return (source, target) if isinstance(source, int) and isinstance(target, int) else None


def _language_start(languages: Languages) -> int | None:
    """The start token of the default target language, or any, if every target has one of its own."""
    starts = {tag: target.start for tag, target in languages.targets.items()}
    if None in starts.values():
        return None
    return starts[languages.default.target] if languages.default else next(iter(starts.values()))


def _check_defaults(parts: _Parts) -> None:
    """Sees to it that requests which leave everything open can be decoded, into every language."""
    generation, problems = parts.generation, dict[str, None]()
    for target in parts.tokenizer.languages.targets.values():
        try:
            DecodingOptions().resolve(
                generation.generation,
                generation.special_tokens,
                parts.limits,
                vocabulary=parts.model.target_vocabulary,
                forced_first=target.forced_first,
            )
        except InvalidArgumentError as error:
            problems[f"its decoding defaults contradict each other: {error}"] = None
    if problems:
        raise CheckpointError(list(problems))


def _model_name(wanted: str, *, given: bool) -> str:
    """A model's name; a folder's is made one.

    Raises:
        ExportError: the name that was given cannot be one.
    """
    name = wanted if given else re.sub(r"[^A-Za-z0-9._-]+", "-", wanted).lstrip("._-")[:128]
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        raise ExportError(
            f"{wanted!r} cannot be a model's name, which is of letters, digits, '.', '_' and '-': give another"
        ) from error


def _architecture(imported: ImportedModel) -> Architecture:
    model = imported.model
    sizes: dict[str, Any] = asdict(model.sizes) if isinstance(model, Transformer | T5) else {}
    described = {name: size for name, size in sizes.items() if size is not None and name not in _OF_TRAINING}
    return describe_architecture(model, family=imported.family, **described)


def _unused(model: ImportedModel) -> Iterator[str]:
    """A note on the tensors that were not used."""
    unused = model.unused
    if unused:
        more = f" and {len(unused) - _MOST_UNUSED} more" if len(unused) > _MOST_UNUSED else ""
        yield f"weights that the model has no use for: {', '.join(unused[:_MOST_UNUSED])}{more}"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
