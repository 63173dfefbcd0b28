"""Import of a Hugging Face checkpoint to a verified bundle."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from jumok_export.bundles.alignment_heads import AlignmentText
from jumok_export.bundles.export import (
    DEFAULT_PRECISIONS,
    describe_architecture,
    describe_provenance,
    export_bundle,
    scratch_weights,
)
from jumok_export.bundles.resources import begin_export
from jumok_export.errors import ExportError, listed
from jumok_export.graphs.storage import WeightsFile
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.families import build_model, choose_family
from jumok_export.importers.huggingface.folder import CheckpointFolder, open_checkpoint, stored_parameters
from jumok_export.importers.huggingface.generation import ImportedGeneration, read_generation
from jumok_export.importers.huggingface.imported import ImportedModel
from jumok_export.importers.huggingface.language_roles import Directions
from jumok_export.importers.huggingface.tokenizer import ImportedTokenizer, read_tokenizer
from jumok_export.importers.naming import model_name
from jumok_export.models.t5 import T5
from jumok_export.models.transformer import Transformer
from jumok_export.parallel import both
from jumok_export.shortlists.sources import ShortlistPlan
from jumok_proto.errors import InvalidArgumentError
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Architecture, Limits
from jumok_serve.manifest.parts import SourceCheckpoint
from jumok_serve.search.options import DecodingOptions

_Part = TypeVar("_Part")
_OF_TRAINING = ("dropout", "attention_dropout", "activation_dropout", "max_positions")
"""Sizes that matter only in training."""


def import_checkpoint(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    precisions: Sequence[str] = DEFAULT_PRECISIONS,
    source_language: str | None = None,
    target_language: str | None = None,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    calibration: Sequence[str] | None = None,
    shortlist: ShortlistPlan | None = None,
    alignment_text: AlignmentText | None = None,
    name: str | None = None,
    version: str = "1",
    unverified: bool = False,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Import a checkpoint to a bundle.

    The bundle decodes as `generate` of transformers 5 does by the checkpoint's settings. The folder is one of
    `save_pretrained`: config.json, an optional generation_config.json, weights in model.safetensors or
    pytorch_model.bin, and the tokenizer's files. Nothing in it is executed. The supported architectures are
    `jumok_export.importers.huggingface.ARCHITECTURES`.

    Args:
        folder: local folder of the checkpoint.
        out: the bundle's folder.
        precisions: precisions to write, of "fp32", "fp16" and "int8".
        source_language: default source language of requests; names the source language if the checkpoint does not.
        target_language: default target language of requests; names the target language if the checkpoint does not.
        max_source_length: longest source, in tokens; default: the model's positions, or a limit that suits its memory.
        max_target_length: longest translation, in tokens; default: as for sources, or the checkpoint's maximum.
        calibration: source texts for constant int8 scales of activations; default: one scale per row.
        shortlist: plan of a shortlist; default: none.
        alignment_text: sentences and translations, to choose the heads that align tokens; default: none are chosen.
        name: name of the model; default: the folder's name.
        version: version of the model.
        unverified: True to write the bundle even if its verification fails.
        overwrite: True to replace an existing bundle.
        progress: function that is called with messages, such as decisions that the checkpoint leaves open.

    Returns:
        The bundle, opened. `manifest.provenance.notes` has the decisions.

    Raises:
        CheckpointError: the checkpoint cannot be imported; lists all problems.
        ExportError, ShortlistError, VerificationError, BundleError: as `export_bundle`.
    """
    begin_export(stored_parameters(folder), precisions, progress)
    progress("reading the checkpoint")
    checkpoint = open_checkpoint(folder)
    given_name = model_name(checkpoint.name if name is None else name, given=name is not None)
    requested = Directions(source=source_language, target=target_language)
    with scratch_weights(out) as kept:
        read = partial(_read, checkpoint, requested, (max_source_length, max_target_length), kept)
        parts, hashes = both(read, checkpoint.sha256)
        if calibration is not None or shortlist is not None:
            what = "calibration translates in" if calibration is not None else "a shortlist is for"
            try:
                parts.tokenizer.languages.direction()
            except InvalidArgumentError as error:
                raise ExportError(
                    f"{what} the default direction, and there is none: give both languages ({error})"
                ) from error
        notes = (*parts.tokenizer.notes, *parts.generation.notes, *_left_out(parts.model), *_unused(parts.model))
        for note in notes:
            progress(f"note: {note}")
        return export_bundle(
            parts.model.model,
            parts.tokenizer.tokenizer,
            out,
            name=given_name,
            version=version,
            languages=parts.tokenizer.languages,
            special_tokens=parts.generation.special_tokens,
            limits=parts.limits,
            generation=parts.generation.generation,
            architecture=_architecture(parts.model),
            provenance=describe_provenance(
                checkpoint=SourceCheckpoint(
                    name=checkpoint.name,
                    weights=hashes,
                    transformers_version=_text(parts.config.get("transformers_version")),
                    commit=checkpoint.commit,
                ),
                configuration=json.dumps(parts.config, indent=2, ensure_ascii=False),
                notes="; ".join(notes),
            ),
            precisions=precisions,
            calibration=calibration,
            shortlist=shortlist,
            alignment_text=alignment_text,
            unverified=unverified,
            overwrite=overwrite,
            progress=progress,
            kept=kept,
        )


@dataclass(frozen=True, kw_only=True)
class _Parts:
    config: Mapping[str, Any]
    model: ImportedModel
    tokenizer: ImportedTokenizer
    generation: ImportedGeneration
    limits: Limits


def _read(
    checkpoint: CheckpointFolder, requested: Directions, lengths: tuple[int | None, int | None], kept: WeightsFile
) -> _Parts:
    """Read the parts of a checkpoint.

    Args:
        lengths: longest source and target that the caller wants; None: the model's.
        kept: file for weights that are not in float32.

    Raises:
        CheckpointError: lists the problems of all parts.
    """
    problems, config = list(checkpoint.problems), checkpoint.config
    if config is None:
        raise CheckpointError(problems)
    try:
        choose_family(config)
    except CheckpointError as error:  # the other parts need not be read then
        raise CheckpointError([*error.problems, *problems]) from error
    tensors = checkpoint.tensors
    model = None if tensors is None else _gather(problems, partial(build_model, config, tensors, kept))
    sizes = _stated_sizes(config) if model is None else (model.source_vocabulary, model.target_vocabulary)
    limits = None if model is None else _limits(model, lengths, problems)
    settings = config if checkpoint.legacy else checkpoint.generation
    tokenizer = generation = None
    if sizes is not None:
        tokenizer = _gather(
            problems,
            partial(
                read_tokenizer,
                checkpoint.path,
                config,
                source_language=requested.source,
                target_language=requested.target,
                forced_first=None if settings is None else settings.get("forced_bos_token_id"),
                source_vocabulary=sizes[0],
                target_vocabulary=sizes[1],
            ),
        )
        if settings is not None:
            generation = _gather(
                problems,
                partial(
                    read_generation,
                    settings,
                    legacy=checkpoint.legacy,
                    vocabulary=sizes[1],
                    pad=0 if model is None else model.pad,
                    max_target_length=sizes[1] if limits is None else limits.max_target_length,
                    bounded=model is None or model.bounded is True or lengths[1] is not None,
                    start=None if tokenizer is None else _language_start(tokenizer.languages),
                ),
            )
    if problems or model is None or limits is None or tokenizer is None or generation is None:
        raise CheckpointError(problems)
    longest = max(limits.max_target_length, generation.generation.max_length)
    limits = limits.model_copy(update={"max_target_length": longest})
    parts = _Parts(config=config, model=model, tokenizer=tokenizer, generation=generation, limits=limits)
    _check_defaults(parts)
    return parts


def _limits(model: ImportedModel, lengths: tuple[int | None, int | None], problems: list[str]) -> Limits:
    """Limits of the model, or those that the caller wants; problems are added to `problems`."""
    limits = []
    for side, wanted, known in zip(
        ("source", "target"), lengths, (model.max_source_length, model.max_target_length), strict=True
    ):
        if wanted is not None and wanted < 1:
            problems.append(f"--max-{side}-length must be at least 1, got {wanted}")
        elif wanted is not None and wanted > known and model.bounded:
            problems.append(f"--max-{side}-length {wanted} is more than the model's {known} positions")
        limits.append(known if wanted is None else max(wanted, 1))
    return Limits(max_source_length=limits[0], max_target_length=limits[1])


def _gather(problems: list[str], read: Callable[[], _Part]) -> _Part | None:
    """Call `read`; returns None if it raises problems, which are added to `problems`."""
    try:
        return read()
    except CheckpointError as error:
        problems += error.problems
        return None


def _stated_sizes(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Vocabulary sizes of config.json, to check the other parts if the weights are invalid."""
    source = config.get("vocab_size")
    target = config.get("decoder_vocab_size") or source
    return (source, target) if isinstance(source, int) and isinstance(target, int) else None


def _language_start(languages: Languages) -> int | None:
    """Default start token, if every target language has its own."""
    starts = {tag: target.start for tag, target in languages.targets.items()}
    if None in starts.values():
        return None
    return starts[languages.default.target] if languages.default else next(iter(starts.values()))


def _check_defaults(parts: _Parts) -> None:
    """Check that requests without options can be decoded into every language."""
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


def _architecture(imported: ImportedModel) -> Architecture:
    model = imported.model
    sizes: dict[str, Any] = asdict(model.sizes) if isinstance(model, Transformer | T5) else {}
    described = {name: size for name, size in sizes.items() if size is not None and name not in _OF_TRAINING}
    return describe_architecture(model, family=imported.family, **described)


def _left_out(model: ImportedModel) -> Iterator[str]:
    if model.left_out:
        yield f"the names of all weights begin with {model.left_out!r}, which is left out"


def _unused(model: ImportedModel) -> Iterator[str]:
    if model.unused:
        yield f"weights that the model has no use for: {listed(model.unused)}"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
