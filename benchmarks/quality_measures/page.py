"""The page of measured quality: tables, plots, and words that hold for any numbers."""

from collections.abc import Iterable, Sequence

from benchmarks.quality_measures.entropies import KEYS
from benchmarks.quality_measures.figures import ALL, BAND, TEST, Figures, ModelFigures
from benchmarks.quality_measures.gradients import PARTS
from benchmarks.quality_measures.plots import ENTROPIES, GRADIENTS, LENGTHS, entropy_rows
from benchmarks.quality_measures.seeds import Spread
from benchmarks.quality_measures.translations import BEAMS, BEST_SETTING, RESAMPLES, SETTINGS, Setting

BEAM_NAMES = {beam: "greedy" if beam == 1 else f"beam {beam}" for beam in BEAMS}
BEST_NAME = BEAM_NAMES[BEST_SETTING.beam]
MEANINGS = """## Meanings of words

[Learn attention](attention.md#one-word-two-meanings) has a measurement of self-attention in words with two meanings."""
FALL = 1.0
"""Fall of a validation score that the page mentions."""


def page(figures: Figures, images: str) -> str:
    """The page, Markdown.

    Args:
        figures: measured figures.
        images: folder of the plots, relative to the page.
    """
    sections = [
        _introduction(figures),
        _scores(figures),
        _int8(figures),
        _differences(figures),
        _lengths(figures, images),
        _gradients(figures, images),
        _entropies(figures, images),
        MEANINGS,
        _reproduction(figures),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _introduction(figures: Figures) -> str:
    rows = [
        [
            name,
            each.description,
            f"{each.parameters / 1e6:.1f}",
            f"{each.seeds}",
            f"{each.epochs} ({each.best_epoch})",
            " / ".join(f"{score:.1f}" for score in each.validation),
            f"{each.updates:,}",
            "-" if each.seconds is None else f"{each.seconds:,.0f}",
        ]
        for name, each in figures.models.items()
    ]
    head = ["model", "what it is", "million parameters", "seeds", "epochs", "validation", "updates", "seconds"]
    devices = "; ".join(sorted({each.device for each in figures.models.values()} - {""}))
    trained = f"\nThey were trained on: {devices}." if devices else ""
    if any(each.rounded for each in figures.models.values()):
        trained += " Their weights were rounded to half precision afterwards."
    return f"""# Quality

Use this page to see the effect of kinds of attention on translation quality, and to repeat the comparison. All models
are trained on Multi30k with one vocabulary and one schedule; [quality.toml](../benchmarks/quality.toml) has every
setting. The scores are those of small models with one schedule, not of architectures at their best.{trained}

Seeds are runs with other initial weights, another order of batches and other dropout; the other columns are of the
first seed. The epoch in brackets had the best validation score, and its checkpoint is measured. Validation is greedy
BLEU in that epoch and in the last one. Seconds include validation and depend on the load of the machine.

Encoders of LSTMs read in both directions unless the table says otherwise. In training, decoders read the reference's
tokens. With scheduled sampling they read some of their own tokens instead, with free running only their own.

{_table(head, rows)}"""


def _scores(figures: Figures) -> str:
    shown = [each for each in SETTINGS if each.precision == "fp32"]
    rows = [
        [
            name,
            *(f"{value:.2f}" for each in shown for value in model.mean_scores[each.key]),
            _interval(model.spreads[ALL].over_seeds),
            _interval(model.spreads[ALL].over_sentences),
        ]
        for name, model in figures.models.items()
    ]
    head = [f"{BEAM_NAMES[each.beam]}{metric}" for each in shown for metric in ("", ", chrF")]
    pooled = figures.noise[ALL]
    noise = "" if pooled is None else f": its standard deviation is {pooled.deviation:.2f} BLEU"
    return f"""## Scores

BLEU and chrF of the exported bundles in fp32 on the {figures.sentences[ALL]:,} sentences of {TEST}, means over seeds.
sacreBLEU's signatures: `{figures.signatures["BLEU"]}` and `{figures.signatures["chrF"]}`.

The last columns are 95 % intervals of BLEU with {BEST_NAME}. "Other seeds" takes the difference between seeds to be
alike in all models, so that a model with one seed has an interval too{noise}. "Other sentences" is the interval of
{RESAMPLES:,} bootstrap resamples of the test set with these seeds.

{_table(["model", *head, "other seeds", "other sentences"], rows)}"""


def _differences(figures: Figures) -> str:
    if not figures.differences:
        return ""
    rows = [
        [
            each.title,
            f"{each.model} - {each.other}",
            f"{spreads[ALL].mean:+.2f}",
            _interval(spreads[ALL].over_seeds, "+"),
            _interval(spreads[ALL].over_sentences, "+"),
            _verdict(spreads[ALL]),
            *(f"{spreads[bin_].mean:+.2f}" for bin_ in spreads if bin_ != ALL),
        ]
        for each, spreads in figures.differences
    ]
    lengths = [f"{name} words" for name in figures.sentences if name != ALL]
    head = ["with and without", "models", "BLEU", "other seeds", "other sentences", "first model", *lengths]
    fell = "".join(
        f"\n\nThe validation score of `{name}` fell from {best:.1f} in epoch {each.best_epoch}, which is measured, to\n"
        f"{last:.1f} in the last epoch."
        for name, each in figures.models.items()
        for best, last in [each.validation]
        if last < best - FALL
    )
    return f"""## Differences

Difference of the mean BLEU of two models, fp32 {BEST_NAME}, with 95 % intervals as above; resamples of sentences are
the same for both models. The first model is better or worse if both intervals say so; else the difference may be
chance. The last columns have the difference by the number of words of the source.

{_table(head, rows)}{fell}"""


def _verdict(spread: Spread) -> str:
    intervals = [each for each in (spread.over_seeds, spread.over_sentences) if each is not None]
    if spread.over_seeds is not None and all(low > 0 for low, _ in intervals):
        return "better"
    if spread.over_seeds is not None and all(high < 0 for _, high in intervals):
        return "worse"
    return "may be chance"


def _interval(interval: tuple[float, float] | None, sign: str = "") -> str:
    return "-" if interval is None else f"{interval[0]:{sign}.2f} to {interval[1]:{sign}.2f}"


def _int8(figures: Figures) -> str:
    def cells(model: ModelFigures, beam: int) -> tuple[str, str]:
        fp32, int8 = (model.scores[Setting(precision=each, beam=beam).key] for each in ("fp32", "int8"))
        return f"{model.int8_differs[beam]:,}", f"{round(int8.bleu - fp32.bleu, 2) + 0.0:+.2f}"

    rows = [[name, *(cell for beam in BEAMS for cell in cells(model, beam))] for name, model in figures.models.items()]
    head = [f"{BEAM_NAMES[beam]}: {what}" for beam in BEAMS for what in ("sentences that differ", "BLEU")]
    return f"""int8 compared with fp32, first seed: sentences with another translation, and difference in BLEU.

{_table(["model", *head], rows)}"""


def _lengths(figures: Figures, images: str) -> str:
    lengths = [name for name in figures.sentences if name != ALL]
    rows = [
        [
            name,
            *(f"{model.spreads[each].mean:.2f} ({_interval(model.spreads[each].over_sentences)})" for each in lengths),
        ]
        for name, model in figures.models.items()
    ]
    head = ["model", *(f"{each} words ({figures.sentences[each]:,} sentences)" for each in lengths)]
    return f"""## Long sentences

Mean BLEU by the number of words of the source, fp32 {BEST_NAME}, with 95 % intervals for other sentences. The plot has
those for other seeds as well, as thick lines. Of the LSTMs with attention and both directions it has only the best.

![BLEU by length of the source]({images}/{LENGTHS})

{_table(head, rows)}"""


def _gradients(figures: Figures, images: str) -> str:
    if not figures.gradients:
        return ""
    rows = [
        [name, *(f"{values[part]:.2f}" for part in (0, PARTS // 2 - 1, PARTS - 1)), f"{max(values) / min(values):.1f}"]
        for name, values in figures.gradients.items()
    ]
    head = ["model", "first tenth", "fifth tenth", "last tenth", "largest over smallest tenth"]
    return f"""## Gradients at the source

Norm of the gradient of a sentence's loss at each embedded source token, by tenths of the sentence; 1 is the mean over
the tokens of the sentence. The numbers are means over the {figures.gradient_sentences} validation sentences of
{BAND[0]} to {BAND[1]} source tokens. The last token is the end token, and the decoder gets the reference. An untrained
model has its initial weights. Places are in the order of reading: a reversed source begins with its end token.

![Gradient by place in the source]({images}/{GRADIENTS})

{_table(head, rows)}"""


def _entropies(figures: Figures, images: str) -> str:
    widths = [
        [f"{each['width']:.0f}", f"{each['variance']:.0f}", f"{each['entropy']:.3f}", f"{each['scaled_entropy']:.3f}"]
        for each in figures.random_entropies
    ]
    text = f"""## Scaling

Dot products of vectors of d independent components of variance 1 have variance d; divided by sqrt(d), variance 1. The
table has the entropy of the softmax over that of even weights, for random queries with {KEYS} random keys each:

{_table(["d", "variance of the products", "entropy, not divided", "entropy, divided by sqrt(d)"], widths)}

![Entropy of attention]({images}/{ENTROPIES})"""
    if not figures.entropies:
        return text
    trained = [[name, f"{value:.3f}"] for name, value in entropy_rows(figures)]
    text += f"""

The same ratio for trained models: cross-attention over the validation sentences with the reference as target, mean over
target tokens, layers and heads.

{_table(["model", "entropy over that of even weights"], trained)}"""
    if figures.undivided_entropies:
        text += """

"Not divided" is the same Transformer, trained with the division, but evaluated without it in all cross-attention."""
    return text


def _reproduction(figures: Figures) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in figures.versions.items())
    return f"""## Reproduce

```sh
make quality ARGS="--data corpus"
```

This command trains the missing runs, measures, and writes this page; `corpus` is the folder of Multi30k. A run that was
stopped is resumed. On two CPU cores a run takes half an hour. `--only NAME --train-only` trains one run, so several
processes can share a GPU; `--accelerator gpu --precision 32-true` is the fastest there, and `--collect` copies what a
report needs.
Measured with {versions}, on {figures.machine}."""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
