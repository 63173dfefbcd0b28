"""All that is measured of the runs that are finished: what the page, its plots and the JSON file are made of."""

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
"""Fewest and most source tokens, with the end token, of the sentences whose gradients are compared."""
BATCH_SENTENCES = 64
COMPARED_ATTENTION = ("none", "general")
"""Of the recurrent models whose gradients are compared."""


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """What was measured of one model.

    Attributes:
        description: what it is.
        family: "recurrent" or "transformer".
        attention: its kind; "multi_head" of a Transformer.
        reversed: whether it reads sources from their ends.
        parameters: how many.
        epochs: that it was trained for.
        best_epoch: whose checkpoint was the best on the validation set, and is the one that is scored.
        updates: of its weights.
        seconds: of training and validation; None if its metrics do not have them.
        scores: on the test set, by setting.
        bins: by length of the source, in `BEST_SETTING`.
        int8_differs: sentences that int8 translates otherwise than fp32, by beam size.
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
    """What was measured of all.

    Attributes:
        machine: that it was measured on.
        versions: of the libraries.
        signatures: of the scores.
        models: by name, in the plan's order.
        gradient_sentences: how many the gradients are means over.
        gradients: by model, from a source's beginning to its end; see `relative_gradients`.
        random_entropies: of scores of random vectors; see `random_scores`.
        entropies: of the models that have attention; see `attention_entropy`.
        undivided_entropies: of Transformers without the division by sqrt(d_k).
        feeding: pairs of models that differ in what their decoders were fed: of teacher forcing, and of another way.
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
    """Measures runs that are finished.

    Args:
        runs: at least one.
        data: folder of the corpus, with a test set.
        progress: told what is being done.

    Raises:
        CorpusError: the validation set or the test set cannot be read.
        CheckpointError, ExportError, VerificationError, BundleError: as `translate`.
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
    """What a model is, in a few words."""
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
    """Whether a model is one of those whose gradients are compared: without attention, and with one kind of it."""
    model, feeding = configuration.model, configuration.training.feeding
    return (
        isinstance(model, RecurrentSection)
        and model.attention in COMPARED_ATTENTION
        and feeding.mode == "teacher_forcing"
    )


def _gradients(run: Run, checkpoint: Checkpoint, band: Sequence[Batch]) -> dict[str, list[float]]:
    """Of a trained model, and of an untrained one that is the same but for an encoder in one direction."""
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
    """Runs with teacher forcing, each with one that differs in its feeding alone."""

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
    """Pairs whose sources have so many tokens, in order of length."""
    lengths = corpus.lengths[:, 0].tolist()
    inside = [
        index for index, length in enumerate(lengths) if shortest <= length and (longest is None or length <= longest)
    ]
    inside.sort(key=lambda index: lengths[index])
    return [
        ParallelCorpus.collate([corpus[index] for index in inside[start : start + BATCH_SENTENCES]])
        for start in range(0, len(inside), BATCH_SENTENCES)
    ]
