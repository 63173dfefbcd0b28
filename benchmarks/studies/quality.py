"""Train models that differ in attention, and measure their quality and their attention.

Trains every run of a plan, or resumes its training. Each is exported to a bundle, which translates the test set of
Multi30k. Tables and plots cover all finished runs.

A plan is a TOML file: the tables under ``[base]`` apply to every run; ``[models.NAME]`` adds or replaces keys, and may
name a number of `seeds`. Each of ``[[comparisons]]`` names two models: `of`, `with` and a `title`. Processes may train
different runs of one plan side by side, each with `--only NAME --train-only`.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.common.bootstrap import Interval, Scores, score
from benchmarks.common.data import MULTI30K, ROOT
from benchmarks.common.progress import progress, setup
from benchmarks.common.ratios import markdown
from jumok_export.models.attention import dot_scores, masked_softmax, scaled_dot_scores
from jumok_export.models.encoder_decoder import EncoderDecoder
from jumok_export.models.layers import DecoderLayer
from jumok_export.models.seq2seq import Seq2Seq, length_mask
from jumok_export.training.callbacks import read_metrics
from jumok_export.training.checkpoint import BEST, Checkpoint, build_model, load_checkpoint
from jumok_export.training.configuration import Configuration, RecurrentSection
from jumok_export.training.configuration_file import parse_configuration
from jumok_export.training.corpus import Batch, ParallelCorpus
from jumok_export.training.export import export_checkpoint
from jumok_export.training.train import check_run, train
from jumok_export.training.vocabulary import PAD, START
from jumok_proto.errors import JumokError
from jumok_serve import Translator
from jumok_serve.evaluation.parallel_text import read_parallel

PLAN = Path(__file__).with_suffix(".toml")
TEST = "test_2016_flickr"
SEED_STEP = 1000
"""Difference of the seeds of a model's runs; epochs count on from a seed."""
BEAMS = (1, 5)
BINS = {"all": (1, 10**6), "1-8": (1, 8), "9-11": (9, 11), "12-15": (12, 15), "over 15": (16, 10**6)}
"""Fewest and most words of the sources of each bin."""
WIDTHS = (16, 64, 256, 1024)
KEYS, QUERIES = 14, 2000
BAND = (12, 16)
"""Fewest and most source tokens, end token included, of sentences whose gradients are compared."""
PARTS = 10
"""Equal parts of a sentence whose gradients are compared."""
BATCH_SENTENCES = 64

Table = dict[str, Any]
Translations = dict[str, list[str]]
"""Translations of the test set by precision and beam size, such as "fp32 1"."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A model of a plan with one seed, and its training folder.

    Attributes:
        name: name of the run: the model's, with the number of the seed after the first.
        model: name of the model.
        folder: folder with checkpoints and metrics.
        text: training configuration, TOML.
        configuration: training configuration.
    """

    name: str
    model: str
    folder: Path
    text: str
    configuration: Configuration

    @property
    def epochs(self) -> int:
        """Complete epochs."""
        return max((int(row["epoch"]) for row in read_metrics(self.folder)), default=0)

    @property
    def finished(self) -> bool:
        """True if all epochs are complete."""
        return self.epochs >= self.configuration.training.max_epochs and (self.folder / BEST).exists()


def planned_runs(tables: Table, folder: Path, training: Table) -> list[Run]:
    """Return the runs of a plan, each in a folder of its name.

    Args:
        tables: the plan.
        folder: parent of the runs' folders.
        training: keys of `[training]` for all runs, instead of the plan's.

    Raises:
        ConfigurationError: a model is invalid, or a folder has a run with another configuration.
    """
    runs = []
    for model, changes in tables["models"].items():
        merged = merge(merge(tables["base"], changes), {"training": training})
        for number in range(merged.pop("seeds", 1)):
            name = f"{model}-seed{number + 1}" if number else model
            seed = merged["training"].get("seed", 1) + SEED_STEP * number
            bundle = {"name": f"multi30k-en-de-{name}"}
            text = to_toml(merge(merged, {"training": {"seed": seed}, "bundle": bundle}))
            configuration = parse_configuration(text, f"model {name},")
            check_run(configuration, folder / name)
            runs.append(Run(name=name, model=model, folder=folder / name, text=text, configuration=configuration))
    return runs


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """Merge `changes` into `base`, tables recursively."""
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = merge(merged.get(key, {}), value) if isinstance(value, Mapping) else value
    return merged


def to_toml(table: Mapping[str, Any], path: str = "") -> str:
    """Format a table as TOML; values are strings, numbers, booleans, lists of these, and tables."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in plain.items())
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    return lines + "".join(f"\n[{path}{key}]\n{to_toml(value, f'{path}{key}.')}" for key, value in tables.items())


def train_missing(runs: Sequence[Run], data: Path) -> None:
    """Train the unfinished runs, one after another."""
    for run in runs:
        if not run.finished:
            progress(f"training {run.name}")
            # Beside the run's folder: in it, `train` keeps its own copy.
            configuration = run.folder.with_suffix(".toml")
            configuration.parent.mkdir(parents=True, exist_ok=True)
            configuration.write_text(run.text, encoding="utf-8")
            train(configuration, run.folder, data=data, progress=progress)


def translate(run: Run, sources: Sequence[str]) -> Translations:
    """Translate the test set with each precision and beam size; int8 only with a model's first seed.

    Bundle and translations are made if they are missing or of another checkpoint.
    """
    checkpoint, kept = run.folder / BEST, run.folder / "translations.json"
    origin = hashlib.sha256(checkpoint.read_bytes() + "\n".join(sources).encode()).hexdigest()
    if kept.exists():
        record = json.loads(kept.read_text(encoding="utf-8"))
        if record["origin"] == origin:
            return cast(Translations, record["translations"])
    precisions = ("fp32", "int8") if run.name == run.model else ("fp32",)
    bundle = run.folder / "bundle"
    progress(f"{run.name}: exporting its bundle, and translating {len(sources)} sentences")
    export_checkpoint(load_checkpoint(checkpoint), bundle, precisions=precisions, overwrite=bundle.exists())
    translations = {}
    for precision in precisions:
        with Translator(bundle, precision=precision) as translator:
            for beam in BEAMS:
                found = translator.translate(sources, beam_size=beam, split_sentences=False)
                translations[f"{precision} {beam}"] = [translation.text for translation in found]
    content = json.dumps({"origin": origin, "translations": translations}, ensure_ascii=False)
    kept.write_text(content, encoding="utf-8")
    return translations


@dataclass(frozen=True)
class Noise:
    """Difference between seeds, taken to be alike in all models, as in an analysis of variance.

    Attributes:
        deviation: standard deviation of BLEU between seeds of a model; NaN if all models have one seed.
        freedom: degrees of freedom: seeds less models.
    """

    deviation: float
    freedom: int

    def interval(self, mean: float, *seeds: int) -> Interval:
        """95 % interval, by Student's t, of a mean over seeds or the difference of two means.

        Args:
            mean: the mean, or the difference.
            seeds: number of seeds of each mean.
        """
        error = self.deviation * math.sqrt(sum(1 / each for each in seeds))
        half = float(stats.t.ppf(0.975, self.freedom)) * error
        return mean - half, mean + half


def pooled_noise(models: Sequence[Sequence[Scores]]) -> Noise:
    """Compute the noise of all models, each with the scores of its seeds."""
    freedom = sum(len(seeds) - 1 for seeds in models)
    squares = sum(float(np.var([each.value for each in seeds])) * len(seeds) for seeds in models)
    return Noise(math.sqrt(squares / freedom) if freedom else math.nan, freedom)


def mean_score(seeds: Sequence[Scores]) -> Scores:
    """Average the seeds of a model."""
    return Scores(fmean(each.value for each in seeds), np.mean([each.resampled for each in seeds], axis=0))


def binned(sources: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of the sources in each bin, without empty bins."""
    lengths = [len(source.split()) for source in sources]
    found = {
        name: [index for index, length in enumerate(lengths) if fewest <= length <= most]
        for name, (fewest, most) in BINS.items()
    }
    return {name: inside for name, inside in found.items() if inside}


def bleu_by_bin(
    translations: Mapping[str, Sequence[Translations]], sources: Sequence[str], references: Sequence[str]
) -> dict[str, dict[str, list[Scores]]]:
    """Score fp32 translations with the largest beam: BLEU of each seed by bin and model."""
    return {
        name: {
            model: [
                score(BLEU(), [each[f"fp32 {BEAMS[-1]}"][at] for at in inside], [references[at] for at in inside])
                for each in seeds
            ]
            for model, seeds in translations.items()
        }
        for name, inside in binned(sources).items()
    }


def score_tables(
    translations: Mapping[str, Sequence[Translations]],
    bleu: Mapping[str, Mapping[str, Sequence[Scores]]],
    sources: Sequence[str],
    references: Sequence[str],
) -> Iterator[str]:
    """Yield the tables of scores, of int8, and of BLEU by length."""
    pooled = pooled_noise([*bleu["all"].values()])
    yield f"standard deviation between seeds: {pooled.deviation:.2f} BLEU"
    metrics = {"": BLEU(), ", chrF": CHRF()}
    names = {beam: "greedy" if beam == 1 else f"beam {beam}" for beam in BEAMS}
    rows = [["model", *(names[beam] + name for beam in BEAMS for name in metrics), "other seeds", "other sentences"]]
    for model, seeds in translations.items():
        values = [
            fmean(metric.corpus_score(each[f"fp32 {beam}"], [references]).score for each in seeds)
            for beam in BEAMS
            for metric in metrics.values()
        ]
        mean = mean_score(bleu["all"][model])
        intervals = (pooled.interval(mean.value, len(seeds)), mean.interval)
        rows.append([model, *(f"{value:.2f}" for value in values), *map(between, intervals)])
    yield markdown(rows)
    yield ", ".join(str(metric.get_signature()) for metric in metrics.values())
    rows = [["model", *(f"{names[beam]}: {what}" for beam in BEAMS for what in ("sentences that differ", "BLEU"))]]
    for model, (first, *_) in translations.items():
        cells = []
        for beam in BEAMS:
            fp32, int8 = first[f"fp32 {beam}"], first[f"int8 {beam}"]
            gain = BLEU().corpus_score(int8, [references]).score - BLEU().corpus_score(fp32, [references]).score
            cells += [f"{sum(map(str.__ne__, fp32, int8))}", f"{gain:+.2f}"]
        rows.append([model, *cells])
    yield markdown(rows)
    lengths = {name: len(inside) for name, inside in binned(sources).items() if name != "all"}
    rows = [["model", *(f"{name} words ({count:,} sentences)" for name, count in lengths.items())]]
    for model in translations:
        means = [mean_score(bleu[name][model]) for name in lengths]
        rows.append([model, *(f"{mean.value:.2f} ({between(mean.interval)})" for mean in means)])
    yield markdown(rows)


def between(interval: Interval, sign: str = "") -> str:
    """Format an interval."""
    return f"{interval[0]:{sign}.2f} to {interval[1]:{sign}.2f}"


def difference_table(comparisons: Sequence[Table], bleu: Mapping[str, Mapping[str, Sequence[Scores]]]) -> str:
    """Format the differences in BLEU of two models each, with intervals, and by length."""
    pooled = pooled_noise([*bleu["all"].values()])
    lengths = [name for name in bleu if name != "all"]
    head = ["with and without", "models", "BLEU", "other seeds", "other sentences", "first model"]
    rows = [[*head, *(f"{name} words" for name in lengths)]]
    for each in comparisons:
        one, other = each["of"], each["with"]
        if not {one, other} <= bleu["all"].keys():
            continue
        gains = {name: mean_score(by_model[one]).over(mean_score(by_model[other])) for name, by_model in bleu.items()}
        gain, over_sentences = gains["all"]
        over_seeds = pooled.interval(gain, len(bleu["all"][one]), len(bleu["all"][other]))
        lows, highs = zip(over_seeds, over_sentences, strict=True)
        verdict = "better" if min(lows) > 0 else "worse" if max(highs) < 0 else "may be chance"
        intervals = [between(interval, "+") for interval in (over_seeds, over_sentences)]
        by_length = [f"{gains[name][0]:+.2f}" for name in lengths]
        rows.append([each["title"], f"{one} - {other}", f"{gain:+.2f}", *intervals, verdict, *by_length])
    return markdown(rows)


def training_table(by_model: Mapping[str, Sequence[Run]], checkpoints: Mapping[str, Checkpoint]) -> str:
    """Format each model's size and training, of its first seed."""
    rows = [["model", "what it is", "million parameters", "seeds", "epochs", "validation", "updates", "seconds"]]
    for model, seeds in by_model.items():
        run, checkpoint = seeds[0], checkpoints[model]
        metrics = read_metrics(run.folder)
        values = [float(value) for row in metrics if (value := row.get(run.configuration.validation_score))]
        seconds = sum(float(row.get("seconds") or "nan") for row in metrics)
        rows.append(
            [
                model,
                describe(run.configuration),
                f"{sum(parameter.numel() for parameter in checkpoint.model.parameters()) / 1e6:.1f}",
                f"{len(seeds)}",
                f"{run.epochs} ({checkpoint.epoch})",
                f"{max(values):.1f} / {values[-1]:.1f}",
                f"{max(int(row['step']) for row in metrics):,}",
                f"{seconds:,.0f}",
            ]
        )
    return markdown(rows)


def describe(configuration: Configuration) -> str:
    """Describe a model in a few words."""
    model, feeding = configuration.model, configuration.training.feeding
    if not isinstance(model, RecurrentSection):
        return f"Transformer, {model.encoder_layers} + {model.decoder_layers} layers, width {model.width}"
    parts = {
        f"{model.cell.upper()}, width {model.width}": True,
        "no attention" if model.attention == "none" else f"attention `{model.attention}`": True,
        "encoder in one direction": not model.bidirectional,
        "source reversed": model.reverse_source,
        "scheduled sampling": feeding.mode == "scheduled_sampling",
    }
    if feeding.mode == "two_phases":
        parts[f"free running in the last {feeding.free_epochs} epochs"] = True
    return ", ".join(part for part, applies in parts.items() if applies)


def relative_entropy(weights: Tensor, lengths: Tensor) -> Tensor:
    """Entropy of attention weights, divided by that of the uniform distribution.

    Args:
        weights: attention weights, 0 outside a source, [..., S].
        lengths: source lengths, at least 2, broadcastable to [...].

    Returns:
        [...], from 0 (one position) to 1 (uniform).
    """
    entropies: Tensor = torch.special.entr(weights).sum(dim=-1)
    return entropies / lengths.log()


def attention_entropy(model: Seq2Seq, batches: Sequence[Batch]) -> float:
    """Average `relative_entropy` over layers, heads and given target tokens.

    Args:
        model: a model that can `align`.
        batches: sentence pairs, sources of at least 2 tokens.
    """
    total = count = 0.0
    aligning: Any = model
    with torch.no_grad():
        for batch in batches:
            start_ids = torch.full_like(batch.source_lengths, START)
            weights = aligning.align(
                batch.source_ids, batch.source_lengths, start_ids, batch.target_ids, batch.target_lengths
            )[0]
            entropies = relative_entropy(weights, batch.source_lengths[:, None, None, None])  # [B, layers, heads, T]
            within = length_mask(batch.target_lengths, batch.target_ids.shape[1])[:, None, None]
            total += float((entropies * within).sum())
            count += float(within.expand_as(entropies).sum())
    return total / count


@contextmanager
def without_division(model: EncoderDecoder) -> Iterator[None]:
    """Remove the division by sqrt(d_k) from a Transformer's cross-attention within this context."""
    attention = [cast(DecoderLayer, layer).cross_attention for layer in model.decoder]
    scales = [each.scale for each in attention]
    for each in attention:
        each.scale = 1.0
    try:
        yield
    finally:
        for each, scale in zip(attention, scales, strict=True):
            each.scale = scale


def random_scores(width: int) -> tuple[float, float, float]:
    """Multiply random queries and keys, whose components are independent with variance 1.

    Returns:
        The variance of the products, and the mean relative entropy of their softmax, not divided and divided by
        sqrt(width).
    """
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(QUERIES, 1, width, generator=generator)
    key = torch.randn(QUERIES, KEYS, width, generator=generator)
    products = dot_scores(query, key)
    entropies = [
        float(relative_entropy(masked_softmax(each, None), torch.tensor(float(KEYS))).mean())
        for each in (products, scaled_dot_scores(query, key))
    ]
    return float(products.var()), entropies[0], entropies[1]


def token_gradients(model: Seq2Seq, batch: Batch) -> Tensor:
    """Norms of each sentence's loss gradients at its embedded source tokens, [B, S].

    The loss is the sum of the cross-entropies of the target tokens, so sentences in a batch are independent.
    """
    embedded: list[Tensor] = []
    embedding = cast(nn.Embedding, model.get_submodule("source_embedding"))
    hook = embedding.register_forward_hook(lambda *arguments: embedded.append(arguments[-1]))
    start_ids = torch.full_like(batch.source_lengths, START)
    logits = model(batch.source_ids, batch.source_lengths, start_ids, batch.target_ids)
    hook.remove()
    loss = F.cross_entropy(logits.flatten(0, 1), batch.target_ids.flatten(), ignore_index=PAD, reduction="sum")
    # Only the first use: if both languages share an embedding, the second use reads the target.
    [gradient] = torch.autograd.grad(loss, embedded[:1])
    norms: Tensor = gradient.norm(dim=-1)
    return norms


def relative_gradients(norms: Tensor) -> Tensor:
    """One sentence's gradients by part, relative to equal gradients, [PARTS].

    Args:
        norms: norms of one sentence's tokens, S >= PARTS, [S]. A token belongs to the part of its middle.
    """
    length = len(norms)
    shares = length * norms / norms.sum()
    part = (PARTS * (2 * torch.arange(length) + 1)) // (2 * length)  # [S]
    return torch.zeros(PARTS).index_add_(0, part, shares) / torch.bincount(part, minlength=PARTS)


def mean_gradients(model: Seq2Seq, batches: Sequence[Batch]) -> list[float]:
    """Average `relative_gradients` over sentences."""
    found = [
        relative_gradients(norms[:length])
        for batch in batches
        for norms, length in zip(token_gradients(model, batch), batch.source_lengths.tolist(), strict=True)
    ]
    return [float(value) for value in torch.stack(found).mean(dim=0)]


def batches_of(checkpoint: Checkpoint, data: Path, shortest: int, longest: int = 10**6) -> list[Batch]:
    """Read validation pairs with sources of bounded length, in order of length."""
    section = checkpoint.configuration.data
    texts = read_parallel(data / section.validation_source, data / section.validation_target)
    corpus = ParallelCorpus(*texts, checkpoint.source_vocabulary, checkpoint.target_vocabulary)
    lengths = corpus.lengths[:, 0].tolist()
    inside = sorted((index for index, one in enumerate(lengths) if shortest <= one <= longest), key=lengths.__getitem__)
    return [
        ParallelCorpus.collate([corpus[index] for index in inside[start : start + BATCH_SENTENCES]])
        for start in range(0, len(inside), BATCH_SENTENCES)
    ]


def all_gradients(by_model: Mapping[str, Sequence[Run]], checkpoints: Mapping[str, Checkpoint], data: Path) -> Table:
    """Gradients by model, recurrent with one kind of attention or none, in the order of reading."""
    found: dict[str, list[float]] = {}
    for name, (run, *_) in by_model.items():
        model, checkpoint = run.configuration.model, checkpoints[name]
        fed = run.configuration.training.feeding.mode == "teacher_forcing"
        if fed and isinstance(model, RecurrentSection) and model.attention in ("none", "general"):
            band = batches_of(checkpoint, data, *BAND)
            found[name] = mean_gradients(checkpoint.model, band)
            if not model.bidirectional and not model.reverse_source:
                torch.manual_seed(run.configuration.training.seed)
                sizes = len(checkpoint.source_vocabulary), len(checkpoint.target_vocabulary)
                untrained = build_model(run.configuration, *sizes).eval()
                found[f"{name}, untrained"] = mean_gradients(untrained, band)
    return found


def all_entropies(checkpoints: Mapping[str, Checkpoint], data: Path) -> dict[str, float]:
    """Entropies of cross-attention by model, Transformers also without the division by sqrt(d_k)."""
    found = {}
    for name, checkpoint in checkpoints.items():
        model = checkpoint.configuration.model
        if not isinstance(model, RecurrentSection) or model.attention != "none":
            batches = batches_of(checkpoint, data, 2)
            found[name] = attention_entropy(checkpoint.model, batches)
            if isinstance(checkpoint.model, EncoderDecoder):
                with without_division(checkpoint.model):
                    found[f"{name}, not divided"] = attention_entropy(checkpoint.model, batches)
    return found


def plot_lengths(bleu: Mapping[str, Mapping[str, Sequence[Scores]]], models: Sequence[str], path: Path) -> None:
    """Plot BLEU by length: thick intervals for other seeds, thin ones for other sentences."""
    figure = Figure(figsize=(8.5, 4.6), layout="constrained")
    axes = figure.subplots()
    lengths = [name for name in bleu if name != "all"]
    for number, model in enumerate(models):
        means = [mean_score(bleu[name][model]) for name in lengths]
        places = [place + 0.06 * (number - (len(models) - 1) / 2) for place in range(len(lengths))]
        axes.plot(places, [mean.value for mean in means], f"C{number}o-", markersize=4, lw=1.4, label=model)
        for place, mean, name in zip(places, means, lengths, strict=True):
            noise = pooled_noise([*bleu[name].values()])
            axes.plot([place] * 2, mean.interval, color=f"C{number}", lw=0.8)
            over_seeds = noise.interval(mean.value, len(bleu[name][model]))
            axes.plot([place] * 2, over_seeds, color=f"C{number}", lw=2.4, alpha=0.5)
    axes.set_xticks(range(len(lengths)), lengths)
    axes.set(xlabel="words of the source", ylabel=f"BLEU, fp32 beam {BEAMS[-1]}", ylim=(0, None))
    axes.set_title("Means and 95 % intervals: thick for other seeds, thin for other sentences", fontsize=9)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=100)


def plot_gradients(gradients: Mapping[str, Sequence[float]], path: Path) -> None:
    """Plot gradients by place in the source; untrained models dotted."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    colours = {name: f"C{number}" for number, name in enumerate(name for name in gradients if "," not in name)}
    for name, values in gradients.items():
        model, _, untrained = name.partition(",")
        places = [(part + 0.5) / PARTS for part in range(PARTS)]
        axes.plot(places, values, "o:" if untrained else "o-", color=colours[model], markersize=3, label=name)
    axes.axhline(1.0, color="gray", lw=0.8)
    axes.set(xlabel="place in the source, in the order of reading", ylabel="norm, over an even share", yscale="log")
    axes.set_title("Gradient of the loss at the embedded source tokens")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=100)


def plot_entropies(entropies: Mapping[str, float], path: Path) -> None:
    """Plot entropies of random queries and keys by width, and of trained models."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    chance, trained = figure.subplots(1, 2, width_ratios=(2, 3))
    _, undivided, divided = zip(*map(random_scores, WIDTHS), strict=True)
    chance.plot(WIDTHS, divided, "o-", label="divided by sqrt(d)")
    chance.plot(WIDTHS, undivided, "o-", label="not divided")
    chance.set_xscale("log", base=2)
    chance.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    chance.set(xlabel="width d of random vectors", ylabel="entropy over that of even weights", ylim=(0, 1))
    chance.set_title("Random queries and keys", fontsize=10)
    chance.legend(fontsize=8, loc="center right")
    bars = trained.barh([*entropies], [*entropies.values()], color="C0", height=0.6)
    trained.bar_label(bars, fmt=" %.2f", fontsize=8)
    trained.invert_yaxis()
    trained.tick_params(axis="y", labelsize=8)
    trained.set(xlabel="entropy over that of even weights", xlim=(0, 1))
    trained.set_title("Cross-attention of trained models", fontsize=10)
    for axes in (chance, trained):
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=100)


def report(tables: Table, runs: Sequence[Run], data: Path, plots: Path) -> None:
    """Print all tables of finished runs, and draw the plots."""
    torch.set_num_threads(1)  # the products are so small that threads would only wait for each other
    by_model = {model: [*seeds] for model, seeds in groupby(runs, lambda run: run.model)}
    checkpoints = {model: load_checkpoint(seeds[0].folder / BEST) for model, seeds in by_model.items()}
    section = runs[0].configuration.data
    sources, references = read_parallel(
        *(data / f"{TEST}.{language}.gz" for language in (section.source_language, section.target_language))
    )
    translations = {model: [translate(run, sources) for run in seeds] for model, seeds in by_model.items()}
    bleu = bleu_by_bin(translations, sources, references)
    print(training_table(by_model, checkpoints), *score_tables(translations, bleu, sources, references), sep="\n\n")
    print("", difference_table(tables.get("comparisons", []), bleu), sep="\n")
    gradients, entropies = all_gradients(by_model, checkpoints, data), all_entropies(checkpoints, data)
    rows = [["model", "first tenth", "fifth tenth", "last tenth", "largest over smallest tenth"]]
    for name, values in gradients.items():
        shown = [values[part] for part in (0, PARTS // 2 - 1, PARTS - 1)]
        rows.append([name, *(f"{each:.2f}" for each in shown), f"{max(values) / min(values):.1f}"])
    print("", markdown(rows), sep="\n")
    rows = [["d", "variance of the products", "entropy, not divided", "entropy, divided by sqrt(d)"]]
    for width in WIDTHS:
        variance, undivided, divided = random_scores(width)
        rows.append([f"{width}", f"{variance:.0f}", f"{undivided:.3f}", f"{divided:.3f}"])
    print("", markdown(rows), sep="\n")
    rows = [["model", "entropy over that of even weights"], *([name, f"{one:.3f}"] for name, one in entropies.items())]
    print("", markdown(rows), sep="\n")
    plots.mkdir(parents=True, exist_ok=True)
    plot_lengths(bleu, [name for name in tables.get("plotted", by_model) if name in by_model], plots / "lengths.png")
    plot_gradients(gradients, plots / "gradients.png")
    plot_entropies(entropies, plots / "entropies.png")


def main() -> int:
    """Train, measure, and print the tables; returns the exit status."""
    parser = argparse.ArgumentParser(description="Train models that differ in attention, and compare them.")
    parser.add_argument("--data", type=Path, default=MULTI30K, help="folder of Multi30k; default: %(default)s")
    parser.add_argument("--plan", type=Path, default=PLAN, help="the models to train; default: %(default)s")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/quality", help="where runs are; default: %(default)s")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the plan, only these runs, such as lstm-seed2")
    parser.add_argument("--accelerator", choices=("auto", "cpu", "gpu"), help="where to train; default: the plan's")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed", "16-mixed"), help="default: the plan's")
    parser.add_argument("--train-only", action="store_true", help="train, without tables")
    parser.add_argument("--report-only", action="store_true", help="train nothing: the tables of what is finished")
    parser.add_argument("--plots", type=Path, default=ROOT / "docs/quality", help="folder of the plots")
    options = parser.parse_args()
    training = {key: value for key in ("accelerator", "precision") if (value := getattr(options, key))}
    try:
        tables = tomllib.loads(options.plan.read_text(encoding="utf-8"))
        runs = planned_runs(tables, options.runs, training)
        if unknown := set(options.only or ()) - {run.name for run in runs}:
            parser.error(f"--only {' '.join(sorted(unknown))}: the plan has {', '.join(run.name for run in runs)}")
        chosen = [run for run in runs if options.only is None or run.name in options.only]
        if not options.report_only:
            train_missing(chosen, options.data)
        if not options.train_only:
            finished = [run for run in chosen if run.finished]
            firsts = {run.model for run in finished if run.name == run.model}
            progress(f"not finished: {', '.join(run.name for run in chosen if run not in finished) or 'none'}")
            print(setup(os.cpu_count() or 1, ("jumok", "torch", "lightning", "onnxruntime", "sacrebleu")), end="\n\n")
            report(tables, [run for run in finished if run.model in firsts], options.data, options.plots)
    except JumokError as error:
        progress(f"Error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
