"""All measurements of finished runs, for page, plots and JSON."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from benchmarks.quality_measures.entropies import WIDTHS, attention_entropy, random_scores, without_division
from benchmarks.quality_measures.gradients import mean_gradients
from benchmarks.quality_measures.runs import Run
from benchmarks.quality_measures.translations import (
    BEAMS,
    BEST_SETTING,
    Progress,
    Scores,
    TestSet,
    differing,
    score,
    score_bins,
    signatures,
    translate,
)
from jumok_export.models.encoder_decoder import EncoderDecoder
from jumok_export.training.checkpoint import Checkpoint, build_model, load_checkpoint
from jumok_export.training.configuration import Configuration, RecurrentSection
from jumok_export.training.corpus import Batch, ParallelCorpus
from jumok_serve.evaluation.parallel_text import read_parallel

TEST = "test_2016_flickr"
BAND = (12, 16)
"""Minimum and maximum of source tokens, end token included, of sentences whose gradients are compared."""
BATCH_SENTENCES = 64
COMPARED_ATTENTION = ("none", "general")
"""Attention of the recurrent models whose gradients are compared."""


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """Measurements of one model.

    Attributes:
        description: description.
        family: "recurrent" or "transformer".
        attention: kind of attention; "multi_head" for a Transformer.
        reversed: True if it reads sources backwards.
        parameters: number of parameters.
        epochs: training epochs.
        best_epoch: epoch of the best checkpoint on the validation set, which is scored.
        updates: weight updates.
        seconds: seconds of training and validation, or None.
        scores: scores on the test set by setting.
        bins: scores by source length, in `BEST_SETTING`.
        int8_differs: sentences whose int8 translation differs from fp32, by beam size.
    """

    description: str
    family: str
    attention: str
    reversed: bool
    parameters: int
    epochs: int
    best_epoch: int
    updates: int
    seconds: float | None
    scores: dict[str, Scores]
    bins: dict[str, Scores]
    int8_differs: dict[int, int]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Measurements of all models.

    Attributes:
        machine: the machine.
        versions: versions of libraries.
        signatures: signatures of the scores.
        models: measurements by model, in the plan's order.
        gradient_sentences: sentences of the gradient means.
        gradients: gradients by model, from a source's start to its end; see `relative_gradients`.
        random_entropies: entropies of random scores; see `random_scores`.
        entropies: entropies of models with attention; see `attention_entropy`.
        undivided_entropies: entropies of Transformers without the division by sqrt(d_k).
        feeding: pairs of models that differ in the decoder's inputs: teacher forcing, and another way.
    """

    machine: str
    versions: dict[str, str]
    signatures: dict[str, str]
    models: dict[str, ModelFigures]
    gradient_sentences: int
    gradients: dict[str, list[float]]
    random_entropies: list[dict[str, float]]
    entropies: dict[str, float]
    undivided_entropies: dict[str, float]
    feeding: list[tuple[str, str]]


def measure(runs: Sequence[Run], data: Path, *, progress: Progress) -> Figures:
    """Measure finished runs.

    Args:
        runs: at least one run.
        data: folder of the corpus, with a test set.
        progress: receives progress messages.

    Raises:
        CorpusError: the validation set or the test set cannot be read.
        CheckpointError, ExportError, VerificationError, BundleError: see `translate`.
    """
    models: dict[str, ModelFigures] = {}
    gradients: dict[str, list[float]] = {}
    entropies: dict[str, float] = {}
    undivided: dict[str, float] = {}
    sentences = 0
    for run in runs:
        models[run.name], checkpoint = _scored(run, data, progress)
        progress(f"{run.name}: looking at gradients and attention")
        validation = _validation(checkpoint, data)
        if models[run.name].attention != "none":
            entropies[run.name] = attention_entropy(checkpoint.model, _batches(validation, 2, None))
        if isinstance(checkpoint.model, EncoderDecoder):
            with without_division(checkpoint.model):
                undivided[run.name] = attention_entropy(checkpoint.model, _batches(validation, 2, None))
        if gradients_compared(run.configuration):
            band = _batches(validation, *BAND)
            sentences = sum(len(batch.source_lengths) for batch in band)
            gradients |= _gradients(run, checkpoint, band) if band else {}
    return Figures(
        machine=f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        versions={name: metadata.version(name) for name in ("jumok", "torch", "lightning", "onnxruntime", "sacrebleu")},
        signatures=signatures(),
        models=models,
        gradient_sentences=sentences,
        gradients=gradients,
        random_entropies=[random_scores(width) for width in WIDTHS],
        entropies=entropies,
        undivided_entropies=undivided,
        feeding=feeding_pairs(runs),
    )


def _scored(run: Run, data: Path, progress: Progress) -> tuple[ModelFigures, Checkpoint]:
    section, model = run.configuration.data, run.configuration.model
    languages = (section.source_language, section.target_language)
    sources, references = read_parallel(*(data / f"{TEST}.{language}.gz" for language in languages))
    tests = TestSet(sources=sources, references=references)
    translations = translate(run, tests, progress=progress)
    checkpoint = load_checkpoint(run.checkpoint)
    figures = ModelFigures(
        description=describe(run.configuration),
        family=model.family,
        attention=model.attention if isinstance(model, RecurrentSection) else "multi_head",
        reversed=isinstance(model, RecurrentSection) and model.reverse_source,
        parameters=sum(parameter.numel() for parameter in checkpoint.model.parameters()),
        epochs=run.epochs,
        best_epoch=checkpoint.epoch,
        updates=run.updates,
        seconds=run.seconds,
        scores={key: score(texts, tests.references) for key, texts in translations.items()},
        bins=score_bins(translations[BEST_SETTING.key], tests),
        int8_differs={beam: differing(translations, beam) for beam in BEAMS},
    )
    return figures, checkpoint


def describe(configuration: Configuration) -> str:
    """Describe a model in a few words."""
    model = configuration.model
    if not isinstance(model, RecurrentSection):
        return f"Transformer, {model.encoder_layers} + {model.decoder_layers} layers, width {model.width}"
    parts = [model.cell.upper(), f"width {model.width}"]
    parts.append("no attention" if model.attention == "none" else f"attention `{model.attention}`")
    if not model.bidirectional:
        parts.append("encoder in one direction")
    if model.reverse_source:
        parts.append("source reversed")
    if configuration.training.feeding.mode != "teacher_forcing":
        parts.append(configuration.training.feeding.mode.replace("_", " "))
    return ", ".join(parts)


def gradients_compared(configuration: Configuration) -> bool:
    """True if gradients are compared: without attention, or with one kind."""
    model, feeding = configuration.model, configuration.training.feeding
    return (
        isinstance(model, RecurrentSection)
        and model.attention in COMPARED_ATTENTION
        and feeding.mode == "teacher_forcing"
    )


def _gradients(run: Run, checkpoint: Checkpoint, band: Sequence[Batch]) -> dict[str, list[float]]:
    """Gradients of a trained model, and of an untrained one with a unidirectional encoder."""
    found = {run.name: mean_gradients(checkpoint.model, band)}
    model = run.configuration.model
    if isinstance(model, RecurrentSection) and model.bidirectional and not model.reverse_source:
        changed = run.configuration.model_copy(update={"model": model.model_copy(update={"bidirectional": False})})
        sizes = len(checkpoint.source_vocabulary), len(checkpoint.target_vocabulary)
        with torch.random.fork_rng():
            torch.manual_seed(run.configuration.training.seed)
            untrained = build_model(changed, *sizes).eval()
        found[f"{run.name}, one direction, untrained"] = mean_gradients(untrained, band)
    return found


def feeding_pairs(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Runs with teacher forcing, each with one that differs only in its feeding."""

    def essence(run: Run) -> object:
        return run.configuration.model_dump(exclude={"bundle": True, "training": {"feeding"}})

    modes = {run.name: run.configuration.training.feeding.mode for run in runs}
    return [
        (one.name, other.name)
        for one in runs
        for other in runs
        if modes[one.name] == "teacher_forcing" != modes[other.name] and essence(one) == essence(other)
    ]


def _validation(checkpoint: Checkpoint, data: Path) -> ParallelCorpus:
    section = checkpoint.configuration.data
    texts = read_parallel(data / section.validation_source, data / section.validation_target)
    return ParallelCorpus(*texts, checkpoint.source_vocabulary, checkpoint.target_vocabulary)


def _batches(corpus: ParallelCorpus, shortest: int, longest: int | None) -> list[Batch]:
    """Pairs with sources of bounded length, in order of length."""
    lengths = corpus.lengths[:, 0].tolist()
    inside = [
        index for index, length in enumerate(lengths) if shortest <= length and (longest is None or length <= longest)
    ]
    inside.sort(key=lambda index: lengths[index])
    return [
        ParallelCorpus.collate([corpus[index] for index in inside[start : start + BATCH_SENTENCES]])
        for start in range(0, len(inside), BATCH_SENTENCES)
    ]
