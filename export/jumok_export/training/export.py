"""Export of a training checkpoint to a bundle."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from jumok_export.bundles.alignment_heads import AlignmentText
from jumok_export.bundles.export import DEFAULT_PRECISIONS, describe_architecture, describe_provenance, export_bundle
from jumok_export.errors import ExportError
from jumok_export.shortlists.sources import ShortlistPlan
from jumok_export.training.checkpoint import Checkpoint
from jumok_export.training.configuration import SCORES, Configuration
from jumok_export.training.configuration_file import ConfigurationError, load_configuration
from jumok_export.training.vocabulary import END, PAD, START, UNKNOWN
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Score, SpecialTokens
from jumok_serve.manifest.parts import AlignmentHeads, AttentionHead, TrainingData
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer

_SCORES: TypeAdapter[tuple[Score, ...]] = TypeAdapter(tuple[Score, ...])


def export_checkpoint(
    checkpoint: Checkpoint,
    out: Path,
    *,
    precisions: Sequence[str] = DEFAULT_PRECISIONS,
    calibration: Sequence[str] | None = None,
    scores: Sequence[Score] = (),
    files: Mapping[str, str] | None = None,
    shortlist: ShortlistPlan | None = None,
    alignment_text: AlignmentText | None = None,
    unverified: bool = False,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Export a trained model with the name, languages, limits and defaults of its configuration.

    Args:
        checkpoint: checkpoint of `load_checkpoint`.
        calibration: source texts for constant int8 scales of activations; default: one scale per row.
        files: SHA-256 of the training files by name; default: as noted in training.
        shortlist: plan of a shortlist; default: none.
        alignment_text: sentences and translations, to choose the heads that align tokens, or to measure a guided head.
        unverified: True to write the bundle even if its verification fails.

    Raises:
        ExportError, CalibrationError, ShortlistError, VerificationError, BundleError: as `export_bundle`.
    """
    configuration = checkpoint.configuration
    data, section = configuration.data, configuration.bundle
    shared = checkpoint.target_vocabulary is checkpoint.source_vocabulary
    text = _configuration_text(checkpoint)
    notes = f"trained for {checkpoint.epoch} epochs"
    if checkpoint.validation_score is not None:
        score = SCORES[configuration.validation_score]
        notes += f", greedy {score} {checkpoint.validation_score:.2f} on validation"
    return export_bundle(
        checkpoint.model,
        SentencePieceTokenizer(
            checkpoint.source_vocabulary.model, None if shared else checkpoint.target_vocabulary.model
        ),
        out,
        name=section.name,
        version=section.version,
        languages=Languages.of_pair(data.source_language, data.target_language, suffix=(END,)),
        # The suppressed tokens are no text.
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN, suppress=(PAD, UNKNOWN, START)),
        limits=section.limits,
        generation=section.generation,
        architecture=describe_architecture(
            checkpoint.model,
            family=configuration.model.family,
            **configuration.model.model_dump(exclude={"family"}, exclude_none=True),
        ),
        provenance=describe_provenance(
            training_data=TrainingData(
                description=data.description or f"{data.source_language}-{data.target_language} text",
                files=dict(checkpoint.files if files is None else files),
            ),
            configuration=text,
            notes=notes,
        ),
        scores=scores,
        precisions=precisions,
        calibration=calibration,
        shortlist=shortlist,
        alignment=_guided(configuration),
        alignment_text=alignment_text,
        unverified=unverified,
        overwrite=overwrite,
        progress=progress,
    )


def _guided(configuration: Configuration) -> AlignmentHeads | None:
    """The head that training taught to align tokens, if any."""
    if configuration.guided_head is None:
        return None
    layer, head = configuration.guided_head
    return AlignmentHeads(heads=(AttentionHead(layer=layer, head=head),), origin="guided")


def read_scores(path: Path) -> tuple[Score, ...]:
    """Read scores from a JSON list with the manifest's fields.

    Raises:
        ExportError: an invalid file; the message lists every problem.
    """
    try:
        return _SCORES.validate_json(path.read_bytes())
    except ValidationError as error:
        problems = "".join(
            f"\n  {'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors(include_url=False)
        )
        raise ExportError(f"{path} is not a list of scores ({', '.join(Score.model_fields)}):{problems}") from error


def _configuration_text(checkpoint: Checkpoint) -> str:
    """The configuration as written in the checkpoint's folder, else as JSON."""
    beside = checkpoint.path.with_name("config.toml")
    try:
        if load_configuration(beside) == checkpoint.configuration:
            return beside.read_text(encoding="utf-8")
    except (ConfigurationError, OSError):
        pass
    return json.dumps(checkpoint.configuration.model_dump(mode="json"), indent=2, ensure_ascii=False)
