"""All measurements of finished runs, for page, plots and JSON."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.quality_measures.entropies import WIDTHS, attention_entropy, random_scores, without_division
from benchmarks.quality_measures.gradients import mean_gradients
from benchmarks.quality_measures.runs import Comparison, Run
from benchmarks.quality_measures.seeds import (
    Counts,
    Noise,
    SeedScores,
    Spread,
    bleu_counts,
    difference,
    pooled_noise,
    score_seeds,
    spread,
)
from benchmarks.quality_measures.translations import (
    BEAMS,
    BEST_SETTING,
    SETTINGS,
    Progress,
    Scores,
    TestSet,
    by_length,
    differing,
    score,
    signatures,
    translate,
)
from jumok_export.models.encoder_decoder import EncoderDecoder
from jumok_export.training.checkpoint import Checkpoint, build_model, load_checkpoint
from jumok_export.training.configuration import Configuration, RecurrentSection
from jumok_export.training.corpus import Batch, ParallelCorpus
from jumok_serve.evaluation.parallel_text import read_parallel

TEST = "test_2016_flickr"
ALL = "all"
"""Name of the bin of all lengths."""
BAND = (12, 16)
"""Minimum and maximum of source tokens, end token included, of sentences whose gradients are compared."""
BATCH_SENTENCES = 64
COMPARED_ATTENTION = ("none", "general")
"""Attention of the recurrent models whose gradients are compared."""


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """Measurements of one model: of its first seed, but for BLEU and chrF of all seeds.

    Attributes:
        description: description.
        seeds: number of seeds.
        family: "recurrent" or "transformer".
        attention: kind of attention; "multi_head" for a Transformer.
        reversed: True if it reads sources backwards.
        bidirectional: True if its encoder reads in both directions, as a Transformer's does.
        parameters: number of parameters.
        epochs: training epochs.
        best_epoch: epoch of the best checkpoint on the validation set, which is scored.
        validation: greedy validation scores of that epoch and of the last one.
        updates: weight updates.
        seconds: seconds of training and validation, or None.
        device: device of the training; "" if unknown.
        rounded: True if the weights are those of `collect`, in half precision.
        scores: scores on the test set by setting.
        mean_scores: means over seeds of BLEU and chrF by setting in fp32.
        spreads: BLEU of all seeds by source length, and of `ALL`, in `BEST_SETTING`.
        int8_differs: sentences whose int8 translation differs from fp32, by beam size.
    """

    description: str
    seeds: int
    family: str
    attention: str
    reversed: bool
    bidirectional: bool
    parameters: int
    epochs: int
    best_epoch: int
    validation: tuple[float, float]
    updates: int
    seconds: float | None
    device: str
    rounded: bool
    scores: dict[str, Scores]
    mean_scores: dict[str, tuple[float, float]]
    spreads: dict[str, Spread]
    int8_differs: dict[int, int]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Measurements of all models.

    Attributes:
        machine: the machine.
        versions: versions of libraries.
        signatures: signatures of the scores.
        models: measurements by model, in the plan's order.
        sentences: number of test sentences by source length, and of `ALL`.
        noise: difference between seeds by source length, and of `ALL`; None if all models have one seed.
        differences: pairs of a comparison and the difference in BLEU by source length, and of `ALL`.
        gradient_sentences: sentences of the gradient means.
        gradients: gradients by model, in the order in which the encoder reads; see `relative_gradients`.
        random_entropies: entropies of random scores; see `random_scores`.
        entropies: entropies of models with attention; see `attention_entropy`.
        undivided_entropies: entropies of Transformers without the division by sqrt(d_k).
    """

    machine: str
    versions: dict[str, str]
    signatures: dict[str, str]
    models: dict[str, ModelFigures]
    sentences: dict[str, int]
    noise: dict[str, Noise | None]
    differences: list[tuple[Comparison, dict[str, Spread]]]
    gradient_sentences: int
    gradients: dict[str, list[float]]
    random_entropies: list[dict[str, float]]
    entropies: dict[str, float]
    undivided_entropies: dict[str, float]


def measure(runs: Sequence[Run], comparisons: Sequence[Comparison], data: Path, *, progress: Progress) -> Figures:
    """Measure finished runs.

    Args:
        runs: at least one run; the seeds of a model in a row.
        comparisons: comparisons; those with a model that has no run are left out.
        data: folder of the corpus, with a test set.
        progress: receives progress messages.

    Raises:
        CorpusError: the validation set or the test set cannot be read.
        CheckpointError, ExportError, VerificationError, BundleError: see `translate`.
    """
    gradients: dict[str, list[float]] = {}
    entropies: dict[str, float] = {}
    undivided: dict[str, float] = {}
    sentences = 0
    tests = read_tests(runs[0].configuration, data)
    bins = {ALL: list(range(len(tests.sources))), **by_length(tests)}
    bins = {name: inside for name, inside in bins.items() if inside}
    by_model = _by_model(runs)
    translations = {
        name: [translate(each, tests, progress=progress) for each in seeds] for name, seeds in by_model.items()
    }
    by_bin: dict[str, dict[str, SeedScores]] = {}
    for name, of_seeds in translations.items():
        counts = [bleu_counts(each[BEST_SETTING.key], tests.references) for each in of_seeds]
        by_bin[name] = {length: score_seeds(_inside(counts, inside)) for length, inside in bins.items()}
    noise = {length: pooled_noise(each[length] for each in by_bin.values()) for length in bins}
    models: dict[str, ModelFigures] = {}
    for name, seeds in by_model.items():
        checkpoint = load_checkpoint(seeds[0].checkpoint)
        spreads = {length: spread(scores, noise[length]) for length, scores in by_bin[name].items()}
        models[name] = _figures(seeds, checkpoint, tests, translations[name], spreads)
        progress(f"{name}: looking at gradients and attention")
        validation = _validation(checkpoint, data)
        if models[name].attention != "none":
            entropies[name] = attention_entropy(checkpoint.model, _batches(validation, 2, None))
        if isinstance(checkpoint.model, EncoderDecoder):
            with without_division(checkpoint.model):
                undivided[name] = attention_entropy(checkpoint.model, _batches(validation, 2, None))
        if gradients_compared(seeds[0].configuration):
            band = _batches(validation, *BAND)
            sentences = sum(len(batch.source_lengths) for batch in band)
            gradients |= _gradients(seeds[0], checkpoint, band) if band else {}
    return Figures(
        machine=f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        versions={name: metadata.version(name) for name in ("jumok", "torch", "lightning", "onnxruntime", "sacrebleu")},
        signatures=signatures(),
        models=models,
        sentences={name: len(inside) for name, inside in bins.items()},
        noise=noise,
        differences=[
            (
                each,
                {
                    length: difference(by_bin[each.model][length], by_bin[each.other][length], noise[length])
                    for length in bins
                },
            )
            for each in comparisons
            if {each.model, each.other} <= by_bin.keys()
        ],
        gradient_sentences=sentences,
        gradients=gradients,
        random_entropies=[random_scores(width) for width in WIDTHS],
        entropies=entropies,
        undivided_entropies=undivided,
    )


def _by_model(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by model; those of a model whose first seed is missing are left out."""
    return {run.name: [each for each in runs if each.model == run.model] for run in runs if run.first}


def _inside(counts: Sequence[Counts], inside: Sequence[int]) -> list[Counts]:
    return [each[list(inside)] for each in counts]


def read_tests(configuration: Configuration, data: Path) -> TestSet:
    """Read the test set in the languages of a configuration.

    Raises:
        CorpusError: it cannot be read.
    """
    section = configuration.data
    languages = (section.source_language, section.target_language)
    sources, references = read_parallel(*(data / f"{TEST}.{language}.gz" for language in languages))
    return TestSet(sources=sources, references=references)


def _figures(
    seeds: Sequence[Run],
    checkpoint: Checkpoint,
    tests: TestSet,
    translations: Sequence[dict[str, list[str]]],
    spreads: dict[str, Spread],
) -> ModelFigures:
    run, model = seeds[0], seeds[0].configuration.model
    scores = [{key: score(texts, tests.references) for key, texts in each.items()} for each in translations]
    in_fp32 = [each.key for each in SETTINGS if each.precision == "fp32"]
    return ModelFigures(
        description=describe(run.configuration),
        seeds=len(seeds),
        family=model.family,
        attention=model.attention if isinstance(model, RecurrentSection) else "multi_head",
        reversed=isinstance(model, RecurrentSection) and model.reverse_source,
        bidirectional=not isinstance(model, RecurrentSection) or model.bidirectional,
        parameters=sum(parameter.numel() for parameter in checkpoint.model.parameters()),
        epochs=run.epochs,
        best_epoch=checkpoint.epoch,
        validation=(max(run.validation_scores), run.validation_scores[-1]),
        updates=run.updates,
        seconds=run.seconds,
        device=run.device,
        rounded=all(torch.equal(each, each.half().float()) for each in checkpoint.model.parameters()),
        scores=scores[0],
        mean_scores={
            key: (fmean(each[key].bleu for each in scores), fmean(each[key].chrf for each in scores)) for key in in_fp32
        },
        spreads=spreads,
        int8_differs={beam: differing(translations[0], beam) for beam in BEAMS},
    )


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
    feeding = configuration.training.feeding
    if feeding.mode == "scheduled_sampling":
        parts.append("scheduled sampling")
    elif feeding.mode == "two_phases":
        parts.append(f"free running in the last {feeding.free_epochs} epochs")
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
    """Gradients of a trained model, and if its encoder has one direction, of the untrained one."""
    found = {run.name: mean_gradients(checkpoint.model, band)}
    model = run.configuration.model
    if isinstance(model, RecurrentSection) and not model.bidirectional and not model.reverse_source:
        sizes = len(checkpoint.source_vocabulary), len(checkpoint.target_vocabulary)
        with torch.random.fork_rng():
            torch.manual_seed(run.configuration.training.seed)
            untrained = build_model(run.configuration, *sizes).eval()
        found[f"{run.name}, untrained"] = mean_gradients(untrained, band)
    return found


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
