"""Import of a Marian model to a verified bundle."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

from pydantic import ValidationError

from jumok_export.bundles.export import describe_architecture, describe_provenance, export_bundle
from jumok_export.errors import ExportError, listed
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.language_roles import Directions, one_source, same_tags
from jumok_export.importers.marian.folder import MarianFolder, open_folder
from jumok_export.importers.marian.lexical_shortlist import read_shortlist
from jumok_export.importers.marian.model import MarianModel, build_model
from jumok_export.importers.marian.settings import MarianSettings
from jumok_export.importers.marian.vocabulary import MarianVocabulary, read_vocabulary
from jumok_export.importers.naming import model_name
from jumok_export.importers.options import ImportOptions
from jumok_export.models.ssru import SSRUTransformer
from jumok_export.shortlists.sources import ShortlistPlan
from jumok_proto.options import OPTIONS
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.files import UnusableFileError
from jumok_serve.manifest.languages import Languages, SourceLanguage
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.manifest.parts import SourceCheckpoint

LONGEST = 256
"""Default limit of tokens: models are trained on sentences."""
_OF_TRAINING = ("dropout", "attention_dropout", "activation_dropout", "max_positions")
"""Sizes that matter only in training."""


def import_marian(source: Path, out: Path, **options: Unpack[ImportOptions]) -> Bundle:
    """Import a Marian model to a bundle.

    Values of 8 bits are used as they are; multipliers of activations ("alphas") become their scales. A shortlist beside
    the model becomes the bundle's.

    Args:
        source: folder of the model, or the file of its parameters in it.
        out: the bundle's folder.
        options: as of `jumok_export.importers.huggingface.import_checkpoint`.

    Raises:
        CheckpointError: the model cannot be imported; lists all problems.
        ExportError, ShortlistError, VerificationError, BundleError: as `export_bundle`.
    """
    progress: Callable[[str], None] = options.get("progress", lambda _: None)
    progress("reading the model")
    folder = open_folder(source)
    file, trained = folder.read()
    settings = MarianSettings(trained)
    sizes = (_rows(file.items, "encoder_Wemb"), _rows(file.items, "decoder_Wemb"))
    if 0 in sizes:
        build_model(file, settings, start=0)  # raises its problems
    vocabulary = read_vocabulary(folder.vocabularies, folder.pieces, sizes)
    imported = build_model(file, settings, vocabulary.target_end)
    requested = Directions(source=options.get("source_language"), target=options.get("target_language"))
    languages = _languages(folder, vocabulary, requested)
    limits = _limits(imported, options)
    notes = [*_notes(imported, folder, vocabulary)]
    shortlist = options.get("shortlist") or _shortlist(folder, languages, notes)
    generation = _generation(folder, limits, notes)
    for note in notes:
        progress(f"note: {note}")
    given = options.get("name")
    described = {name: size for name, size in asdict(imported.sizes).items() if size is not None}
    precisions = options.get("precisions", ("fp32", "int8"))
    return export_bundle(
        imported.model,
        vocabulary.tokenizer,
        out,
        name=model_name(folder.path.resolve().name if given is None else given, given=given is not None),
        version=options.get("version", "1"),
        languages=languages,
        special_tokens=_special_tokens(vocabulary, folder),
        limits=limits,
        generation=generation,
        architecture=describe_architecture(
            imported.model,
            family="marian-ssru" if isinstance(imported.model, SSRUTransformer) else "marian",
            **{name: size for name, size in described.items() if name not in _OF_TRAINING},
        ),
        provenance=describe_provenance(
            checkpoint=SourceCheckpoint(name=folder.path.resolve().name, weights=folder.hashes),
            configuration=json.dumps(trained, indent=2, ensure_ascii=False),
            notes="; ".join(notes),
        ),
        precisions=precisions,
        calibration=options.get("calibration"),
        activation_scales=imported.activation_scales if "int8" in precisions else {},
        weight_multipliers=imported.weight_multipliers,
        stored_precision="int8" if file.quantized else None,
        shortlist=shortlist,
        alignment_text=options.get("alignment_text"),
        unverified=options.get("unverified", False),
        overwrite=options.get("overwrite", False),
        progress=progress,
    )


def _rows(items: Mapping[str, Any], own: str) -> int:
    """Number of tokens of one side's embedding, 0 without one."""
    item = items.get(own, items.get("Wemb"))
    values = getattr(item, "values", item)
    return int(values.shape[0]) if values is not None and values.ndim == 2 else 0


def _languages(folder: MarianFolder, vocabulary: MarianVocabulary, requested: Directions) -> Languages:
    source = SourceLanguage(suffix=(vocabulary.end,))
    return one_source(source, vocabulary.codes, requested=requested, configured=folder.languages)


def _limits(imported: MarianModel, options: ImportOptions) -> Limits:
    lengths, problems = [], []
    for side, wanted in (("source", options.get("max_source_length")), ("target", options.get("max_target_length"))):
        length = min(imported.positions, LONGEST) if wanted is None else wanted
        if not 1 <= length <= imported.positions:
            problems.append(f"--max-{side}-length must be from 1 to {imported.positions}, got {length}")
        lengths.append(length)
    if problems:
        raise CheckpointError(problems)
    return Limits(max_source_length=lengths[0], max_target_length=lengths[1])


def _special_tokens(vocabulary: MarianVocabulary, folder: MarianFolder) -> SpecialTokens:
    allowed = folder.settings.get("allow-unk") == "true"
    unknown = vocabulary.unknown
    return SpecialTokens(
        pad=vocabulary.end,
        start=vocabulary.target_end,
        eos=(vocabulary.target_end,),
        unk=unknown,
        suppress=() if allowed or unknown is None else (unknown,),
    )


def _generation(folder: MarianFolder, limits: Limits, notes: list[str]) -> GenerationDefaults:
    """Decoding defaults of the model's settings; Marian's own beam search ends with the first K hypotheses."""
    settings = MarianSettings(folder.settings)
    beam_size = settings.integer("beam-size", 1, most=int(OPTIONS["beam_size"].most))
    penalty = settings.number("normalize", 1.0)
    if settings.number("word-penalty", 0.0):
        notes.append("word-penalty is left out: scores have no penalty for each token")
    if settings.problems:
        raise CheckpointError(settings.problems)
    try:
        return GenerationDefaults(
            beam_size=beam_size,
            length_penalty=penalty,
            early_stopping=beam_size > 1,
            max_length=limits.max_target_length,
        )
    except ValidationError as error:
        raise ExportError(f"the settings of decoding cannot be used: {error.errors()[0]['msg']}") from error


def _shortlist(folder: MarianFolder, languages: Languages, notes: list[str]) -> ShortlistPlan | None:
    """Plan of the shortlist beside the model, if there is one."""
    if folder.shortlist is None or languages.default is None:
        return None
    try:
        lists = read_shortlist(folder.shortlist)
    except (UnusableFileError, OSError) as error:
        raise CheckpointError([f"{folder.shortlist.name} {error}"]) from error
    notes.append(f"{folder.shortlist.name} is the bundle's shortlist")
    return lists.plan


def _notes(imported: MarianModel, folder: MarianFolder, vocabulary: MarianVocabulary) -> Iterator[str]:
    yield from same_tags(vocabulary.codes)
    if imported.alignment is not None:
        yield f"head 0 of the decoder's layer {imported.alignment} was trained to align"
    if imported.unused:
        yield f"parameters that the model has no use for: {listed(imported.unused)}"
