"""Import of a CTranslate2 folder to a verified bundle."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Unpack

from jumok_export.bundles.export import (
    DEFAULT_PRECISIONS,
    describe_architecture,
    describe_provenance,
    export_bundle,
    scratch_weights,
)
from jumok_export.bundles.resources import begin_export
from jumok_export.errors import ExportError
from jumok_export.graphs.storage import WeightsFile
from jumok_export.importers.ctranslate2.stored import FILE, ModelFile
from jumok_export.importers.ctranslate2.transformer import POSITIONS, build_model
from jumok_export.importers.ctranslate2.vocabulary import (
    Vocabularies,
    find_pad,
    find_pieces,
    read_languages,
    read_settings,
    read_vocabularies,
    special_tokens,
)
from jumok_export.importers.ctranslate2.vocabulary_map import find_map
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.folder import cached_commit
from jumok_export.importers.huggingface.imported import ImportedModel
from jumok_export.importers.huggingface.language_roles import Directions
from jumok_export.importers.naming import model_name
from jumok_export.importers.options import ImportOptions, bundle_options
from jumok_export.models.t5 import T5
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.files import MOST_JSON_BYTES, UnusableFileError, read_file
from jumok_serve.manifest.languages import TargetLanguage
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.manifest.parts import SourceCheckpoint
from jumok_serve.tokenizers.moses_bpe import MosesBPETokenizer
from jumok_serve.tokenizers.piece_vocabulary import PieceVocabularyTokenizer
from jumok_serve.tokenizers.tokenizer import Tokenizer

LONGEST = 256
"""Most tokens of a translation by default, as in CTranslate2."""
_UNNAMED = Directions()
DECODING = GenerationDefaults(beam_size=2, early_stopping=True, min_length=1, max_length=LONGEST, renormalize=True)
"""Defaults of CTranslate2's `translate_batch`: beams end as with early stopping, and tokens are forbidden before the
softmax."""


@dataclass(frozen=True, kw_only=True)
class FolderContext:
    """Facts about a folder that it does not have itself.

    Attributes:
        pieces: SentencePiece models of source and target; None: those of the folder.
        codes: byte-pair codes of Moses words instead of these models; None: no codes.
        configured: languages that a package names.
        decoding: decoding defaults.
        forced_first: token that every translation begins with, and that decodes to nothing; None: none.
        name: name of the model.
        notes: decisions so far.
    """

    pieces: tuple[Path, Path | None] | None = None
    codes: Path | None = None
    configured: Directions = _UNNAMED
    decoding: GenerationDefaults = DECODING
    forced_first: str | None = None
    name: str | None = None
    notes: tuple[str, ...] = ()


def import_folder(source: Path, out: Path, /, **options: Unpack[ImportOptions]) -> Bundle:
    """Import a CTranslate2 folder; see `jumok_export.importers.options.Importer`.

    Weights are dequantized as CTranslate2 computes them. The bundle decodes by CTranslate2's defaults.

    Raises:
        CheckpointError: the folder cannot be imported; lists all problems of the part that is wrong.
        ExportError, ShortlistError, VerificationError, BundleError: as `export_bundle`.
    """
    return import_with_context(source, out, FolderContext(), options)


def import_with_context(folder: Path, out: Path, context: FolderContext, options: ImportOptions) -> Bundle:
    """Import a folder with facts from outside of it; see `import_folder`."""
    with scratch_weights(out) as kept:
        return _import(folder, out, context, options, kept)


def _import(folder: Path, out: Path, context: FolderContext, options: ImportOptions, kept: WeightsFile) -> Bundle:
    progress: Callable[[str], None] = options.get("progress", lambda _: None)
    progress("reading the model")
    given_name = options.get("name")
    name = model_name(given_name or context.name or folder.resolve().name, given=given_name is not None)
    file = ModelFile(folder / FILE)
    begin_export(file.parameters, options.get("precisions", DEFAULT_PRECISIONS), progress)
    settings, vocabularies = read_settings(folder, file), read_vocabularies(folder)
    target = vocabularies.of_target
    for token in filter(None, (settings.eos, settings.start, context.forced_first)):
        if token not in target:
            raise CheckpointError([f"the target vocabulary has no {token!r}, which the model's settings name"])
    start = target[settings.start or settings.eos]
    wanted = (options.get("max_source_length"), options.get("max_target_length"))
    model = build_model(
        file,
        epsilon=settings.epsilon,
        start=start,
        positions=max(POSITIONS, *(length or 0 for length in wanted)),
        kept=kept,
    )
    requested = Directions(source=options.get("source_language"), target=options.get("target_language"))
    languages, notes = read_languages(
        settings,
        vocabularies,
        requested=requested,
        configured=context.configured,
        relative=isinstance(model.model, T5),
    )
    special = special_tokens(settings, vocabularies)
    if context.forced_first is not None:
        first = TargetLanguage(forced_first=target[context.forced_first])
        languages = languages.model_copy(update={"targets": dict.fromkeys(languages.targets, first)})
        special = (*special, context.forced_first)
    tokenizer = _tokenizer(folder, context, vocabularies, model, unknown=settings.unknown, special=special)
    limits = _limits(model, wanted)
    notes = (*context.notes, *notes)
    bundled, found = bundle_options(options), find_map(folder, (settings.bos, settings.eos))
    if found is not None and bundled.get("shortlist") is None:
        if languages.default is None:
            notes = (*notes, f"{found.path.name} is left out: a shortlist needs a default direction")
        else:
            bundled["shortlist"] = found.plan
            notes = (*notes, f"{found.path.name} is the bundle's shortlist")
    for note in notes:
        progress(f"note: {note}")
    with (folder / FILE).open("rb") as stream:
        checkpoint = SourceCheckpoint(
            name=name,
            weights={FILE: file_digest(stream, "sha256").hexdigest()},
            commit=cached_commit(folder),
        )
    return export_bundle(
        model.model,
        tokenizer,
        out,
        name=name,
        languages=languages,
        special_tokens=SpecialTokens(
            pad=find_pad(target), start=start, eos=(target[settings.eos],), unk=target.get(settings.unknown)
        ),
        limits=limits,
        generation=context.decoding.model_copy(
            update={"max_length": min(context.decoding.max_length, limits.max_target_length)}
        ),
        architecture=describe_architecture(model.model, family=model.family),
        provenance=describe_provenance(
            checkpoint=checkpoint,
            configuration=json.dumps({"specification": file.spec, "revision": file.revision}),
            notes="; ".join(notes),
        ),
        stored_precision="int8" if file.quantized else None,
        **bundled,
        kept=kept,
    )


def _tokenizer(
    folder: Path,
    context: FolderContext,
    vocabularies: Vocabularies,
    model: ImportedModel,
    *,
    unknown: str,
    special: Sequence[str],
) -> Tokenizer:
    try:
        if context.codes is not None:
            return MosesBPETokenizer(
                _codes(context.codes),
                source_vocabulary=vocabularies.source,
                target_vocabulary=vocabularies.target,
                source_vocab_size=model.source_vocabulary,
                target_vocab_size=model.target_vocabulary,
                unknown=unknown,
                special_tokens=special,
                source_language=context.configured.source or "en",
                target_language=context.configured.target or "en",
            )
        source_model, target_model = find_pieces(folder) if context.pieces is None else context.pieces
        return PieceVocabularyTokenizer(
            source_model,
            target_model,
            source_vocabulary=vocabularies.source,
            target_vocabulary=vocabularies.target,
            source_vocab_size=model.source_vocabulary,
            target_vocab_size=model.target_vocabulary,
            unknown=unknown,
            special_tokens=special,
            leading_codes=True,
        )
    except ValueError as error:
        raise CheckpointError([f"the tokenizer: {error}"]) from error


def _codes(path: Path) -> bytes:
    try:
        return read_file(path, MOST_JSON_BYTES)
    except UnusableFileError as error:
        raise CheckpointError([f"{path.name} {error}"]) from error


def _limits(model: ImportedModel, wanted: Sequence[int | None]) -> Limits:
    known = (model.max_source_length, model.max_target_length)
    for side, length, most in zip(("source", "target"), wanted, known, strict=True):
        if length is not None and length > most and model.bounded:
            raise ExportError(f"--max-{side}-length {length} is more than the model's {most} positions")
    source, target = (most if length is None else length for length, most in zip(wanted, known, strict=True))
    return Limits(max_source_length=source, max_target_length=target)
