"""Export a PyTorch model and a tokenizer to a verified bundle."""

import gc
import logging
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from jumok_export.bundles.alignment_heads import AlignmentText
from jumok_export.bundles.resources import Progress, check_memory, useful_threads
from jumok_export.bundles.source_texts import greedy_search, never_written, random_texts, some_direction
from jumok_export.bundles.variants import write_variants
from jumok_export.errors import ExportError, listed
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.storage import WeightsFile
from jumok_export.graphs.tracing import export_graphs
from jumok_export.graphs.weights import all_finite
from jumok_export.models.attention import scaled_queries
from jumok_export.parallel import concurrently
from jumok_export.quantization.calibration import Calibration, calibrate, encode_texts, given_calibration
from jumok_export.shortlists.sources import ShortlistPlan
from jumok_export.verification.agreement import SENTENCES, TOGETHER, SourceTexts
from jumok_export.verification.samples import InputBounds
from jumok_proto.errors import InvalidArgumentError
from jumok_serve.bundle.bundle import Bundle, write_bundle
from jumok_serve.manifest.languages import Direction, Languages
from jumok_serve.manifest.manifest import (
    Architecture,
    GenerationDefaults,
    Limits,
    ManifestDraft,
    Score,
    ShortlistDescription,
    SpecialTokens,
)
from jumok_serve.manifest.parts import AlignmentHeads, EnsemblePart, Provenance, SourceCheckpoint, TrainingData
from jumok_serve.native import library
from jumok_serve.runtime.process_memory import giving_back_free_memory, rare_collections
from jumok_serve.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

PRECISIONS = ("fp32", "fp16", "int8")
"""Precisions of a bundle: fp16 is for CUDA, int8 for the CPU, fp32 for both."""
DEFAULT_PRECISIONS = ("fp32", "int8")
USUAL_PARAMETERS = 20_000_000
"""Parameters up to which verification tries all of its inputs; it tries fewer with larger models."""
TEXTS_FOR_TOKENS = 5
"""Times as many calibration texts as texts of random tokens on which int8 is compared with fp32, up to `SENTENCES`."""
SHORTLIST_FILE = "shortlist.npz"
PACKAGES = ("jumok", "torch", "onnx", "onnxscript", "onnxruntime", "sentencepiece", "tokenizers", "transformers")
"""Packages whose versions the manifest records, if they are installed."""


def export_bundle(
    model: nn.Module,
    tokenizer: Tokenizer,
    out: str | os.PathLike[str],
    *,
    name: str,
    languages: Languages,
    special_tokens: SpecialTokens,
    limits: Limits,
    version: str = "1",
    generation: GenerationDefaults | None = None,
    architecture: Architecture | None = None,
    provenance: Provenance | None = None,
    scores: Sequence[Score] = (),
    companions: Mapping[str, str] = MappingProxyType({}),
    precisions: Sequence[str] = DEFAULT_PRECISIONS,
    calibration: Sequence[str] | None = None,
    activation_scales: Mapping[str, float] = MappingProxyType({}),
    weight_multipliers: Mapping[str, float] = MappingProxyType({}),
    stored_precision: str | None = None,
    shortlist: ShortlistPlan | None = None,
    alignment: AlignmentHeads | None = None,
    alignment_text: AlignmentText | None = None,
    unverified: bool = False,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    kept: WeightsFile | None = None,
) -> Bundle:
    """Export a model, verify its graphs, and write a bundle.

    Args:
        model: a module with the methods of `jumok_export.graphs.tracing.TranslationModel`; `align` is optional.
        tokenizer: converts text to source ids, and target ids to text.
        out: folder of the bundle.
        name: the model's name in the server.
        languages: source and target languages.
        special_tokens: ids with a role; `start` is the decoder's first input.
        limits: most tokens of a source and a target.
        version: version of the model.
        generation: decoding defaults; default: greedy, up to the limit.
        architecture: family and sizes, for people; default: the class's name and its number of parameters.
        provenance: origin of the model; default: this command and the packages' versions.
        scores: measured translation quality.
        companions: documents beside the manifest by file name, such as "README.md" and "config.toml".
        precisions: some of "fp32", "fp16" and "int8".
        calibration: some hundreds of source texts in the default language, which give int8 constant activation scales.
            A step takes 9 to 20 % less time than with scales by row; the error of its logits grows by half, BLEU was
            the same. fp16 is verified on them.
        activation_scales: int8 scales of the activations before matrices, by the names of the model's parameters, if it
            comes with some; they are for values from -127 to 127.
        weight_multipliers: multipliers of the matrices that came in 8 bits, weight = value / multiplier, by the same
            names: with them, products are rounded as Marian rounds them.
        stored_precision: precision in which the model's weights were stored, if the bundle has it; a server takes it
            unless told otherwise.
        shortlist: source of shortlists, which list target tokens for texts in the default language.
        alignment: heads of cross-attention that training has taught to align tokens.
        alignment_text: sentences and translations in the default direction, to choose the heads that align tokens
            best, or to measure those of `alignment`.
        unverified: True to write a bundle whose graphs fail their verification; the manifest says so, and the server
            warns.
        overwrite: True to replace a bundle.
        progress: receives progress messages.
        kept: file of `scratch_weights` that the model's weights are mapped from, so that no second one is made.

    Returns:
        The bundle, opened.

    Raises:
        ExportError: the model or an option does not fit.
        CalibrationError: no calibration text can be translated.
        ShortlistError: no shortlist can be made.
        VerificationError: the graphs do not compute what the model computes; no bundle is written.
        BundleError: `out` exists, or the manifest's parts contradict each other.
    """
    unknown = [precision for precision in precisions if precision not in PRECISIONS]
    if unknown or not precisions:
        raise ExportError(f"precisions must be some of {', '.join(PRECISIONS)}, got {', '.join(unknown) or 'none'}")
    if calibration is not None and not {"int8", "fp16"} & {*precisions}:
        raise ExportError(f"calibration is only for int8 and fp16, but precisions has only {', '.join(precisions)}")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    check_memory(parameters, precisions)
    stage = Progress(parameters, progress)
    _check_finite(model)
    generation = generation or GenerationDefaults(max_length=limits.max_target_length)
    bounds = InputBounds(
        source_vocabulary=tokenizer.source_vocab_size,
        target_vocabulary=tokenizer.vocab_size,
        start=special_tokens.start,
        pad=special_tokens.pad,
        max_source_length=limits.max_source_length,
        max_target_length=limits.max_target_length,
        share=min(1.0, USUAL_PARAMETERS / max(1, parameters)),
    )

    direction = _default_direction(languages, "calibration") if calibration is not None else some_direction(languages)
    search = greedy_search(direction, special_tokens, generation, limits)
    calibrator: Callable[[Mapping[str, Graph]], Calibration] | None = None
    if calibration is not None:
        sources = encode_texts(calibration, tokenizer, direction, limits.max_source_length)
        calibrator = partial(calibrate, sources=sources, search=search, progress=progress)
    else:
        sources = random_texts(tokenizer, special_tokens, direction, limits)
    if activation_scales:
        calibrator = partial(given_calibration, model, activation_scales, weight_multipliers, search.start)
    described_texts: Literal["calibration texts", "random tokens"] = (
        "random tokens" if calibration is None else "calibration texts"
    )
    texts = SourceTexts(
        sources=sources,
        search=search,
        pad=special_tokens.pad,
        described=described_texts,
        most=min(SENTENCES, bounds.some(SENTENCES * (1 if calibration is None else TEXTS_FOR_TOKENS), least=TOGETHER)),
    )

    aligning = alignment
    if alignment_text is not None:
        aligned_direction = _default_direction(languages, "a choice of heads that align tokens")
        aligning_search = greedy_search(aligned_direction, special_tokens, generation, limits)
        with _evaluating(model):
            aligning = alignment_text.choose_heads(
                model, tokenizer, aligned_direction, aligning_search, limits, guided=alignment, progress=progress
            )

    described = None if shortlist is None else _describe(shortlist, _default_direction(languages, "a shortlist"))

    def build(folder: Path) -> ManifestDraft:
        if shortlist is not None:
            never = never_written(special_tokens, generation)
            lists = shortlist.lexicon.lexicon(tokenizer, progress).shortlist(
                tokenizer,
                best=shortlist.best,
                frequent=shortlist.frequent,
                always=_always_listed(special_tokens, generation, languages, never),
                never=never,
            )
            lists.save(folder / SHORTLIST_FILE)
        with (
            _fp32_weights(folder, precisions, kept) as weights,
            _evaluating(model),
            scaled_queries(model),
            useful_threads(parameters),
            rare_collections(),
        ):
            graphs = _export(model, bounds, weights, stage)
            gc.collect()
            # What is left of tracing stays, and later searches leave it out. Weights that were rounded leave gaps.
            with rare_collections(), giving_back_free_memory():
                written = write_variants(
                    model,
                    graphs,
                    bounds,
                    folder,
                    precisions,
                    calibrator=calibrator,
                    listed=shortlist is not None,
                    unverified=unverified,
                    texts=texts,
                    progress=stage,
                    weights=weights,
                )
        for file, text in companions.items():
            (folder / file).write_text(text, encoding="utf-8")
        return ManifestDraft(
            name=name,
            version=version,
            architecture=architecture or describe_architecture(model),
            languages=languages,
            special_tokens=special_tokens,
            limits=limits,
            generation=generation,
            tokenizer=tokenizer.save(folder),
            precisions=written.variants,
            shortlist=described,
            alignment=aligning,
            verification=written.reports,
            agreement=written.agreement,
            stored_precision=stored_precision if stored_precision in precisions else None,
            scores=tuple(scores),
            provenance=provenance or describe_provenance(),
        )

    bundle = write_bundle(out, build, overwrite=overwrite)
    if library() is None and {"fp32", "int8"} & {*precisions}:
        logger.warning(
            "bundle %s has no native graphs, because this machine has no native kernels; run `jumok add-native` on a "
            "machine that has them",
            bundle.path,
        )
    return bundle


def _check_finite(model: nn.Module) -> None:
    """Raise ``ExportError`` for weights with NaN or infinite values; names the tensors."""
    parameters = dict(model.named_parameters())
    finite = concurrently(lambda values: all_finite(values.detach().cpu().float().numpy()), parameters.values())
    wrong = [name for name, is_finite in zip(parameters, finite, strict=True) if not is_finite]
    if wrong:
        raise ExportError(f"NaN or infinite values are in {listed(wrong)}: export an earlier checkpoint")


def describe_architecture(model: nn.Module, family: str = "", **sizes: int | float | str | bool) -> Architecture:
    """The manifest's entry for a model: family, sizes, number of parameters.

    The default family is the name of the class.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Architecture(family=family or type(model).__name__, sizes=sizes, parameters=parameters)


def describe_provenance(
    *,
    training_data: TrainingData | None = None,
    checkpoint: SourceCheckpoint | None = None,
    configuration: str = "",
    notes: str = "",
    parts: tuple[EnsemblePart, ...] = (),
) -> Provenance:
    """The manifest's entry for a bundle's origin: the time, this command, the installed packages."""
    return Provenance(
        created=datetime.now(UTC).replace(microsecond=0),  # noqa: TID251 - a date
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        versions={package: metadata.version(package) for package in PACKAGES if find_spec(package)},
        training_data=training_data,
        checkpoint=checkpoint,
        configuration=configuration,
        notes=notes,
        parts=parts,
    )


def _default_direction(languages: Languages, what: str) -> Direction:
    try:
        return languages.direction()
    except InvalidArgumentError as error:
        raise ExportError(f"{what} needs a default language: {error}") from error


def _describe(shortlist: ShortlistPlan, direction: Direction) -> ShortlistDescription:
    return ShortlistDescription(
        file=SHORTLIST_FILE,
        source=direction.source,
        target=direction.target,
        best=shortlist.best,
        frequent=shortlist.frequent,
        lexicon=shortlist.lexicon.origin,
    )


def _always_listed(
    special_tokens: SpecialTokens, generation: GenerationDefaults, languages: Languages, never: Sequence[int]
) -> tuple[int, ...]:
    """Tokens in every shortlist: end tokens, forced tokens, and the unknown token."""
    forced = (generation.forced_first_token, *(target.forced_first for target in languages.targets.values()))
    others = (special_tokens.unk, *forced, *generation.forced_last_tokens)
    return (*special_tokens.eos, *(token for token in others if token is not None and token not in never))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    misplaced = [
        f"{name} is {str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}"
        for name, tensor in model.named_parameters()
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu"
    ]
    if misplaced:
        raise ExportError(f"export needs a model in float32 on the CPU, but {misplaced[0]}: use model.float().cpu()")
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def scratch_weights(out: str | os.PathLike[str]) -> Iterator[WeightsFile]:
    """Give a file for fp32 weights beside a future bundle, and remove it in the end."""
    target = Path(os.path.abspath(out))
    folder = target.with_name(f".{target.name}.{secrets.token_hex(4)}.weights")
    try:
        with WeightsFile(folder / "fp32" / "weights.bin") as weights:
            yield weights
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _fp32_weights(folder: Path, precisions: Sequence[str], kept: WeightsFile | None) -> Iterator[WeightsFile]:
    """Give the file of the fp32 weights: the bundle's, or one that is removed in the end."""
    if "fp32" in precisions:
        with WeightsFile(folder / "fp32" / "weights.bin") as weights:
            yield weights
    elif kept is not None:
        yield kept
    else:
        with scratch_weights(folder / "weights") as weights:
            yield weights


def _export(model: nn.Module, bounds: InputBounds, weights: WeightsFile, progress: Progress) -> dict[str, Graph]:
    try:
        return export_graphs(model, bounds.source_vocabulary, bounds.target_vocabulary, weights, progress)
    except (TypeError, ValueError) as error:
        raise ExportError(f"{type(model).__name__} cannot be exported: {error}") from error
