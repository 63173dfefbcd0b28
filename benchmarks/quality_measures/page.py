"""The page of measured quality: tables, plots, and words that hold for any numbers."""

from collections.abc import Iterable, Sequence

from benchmarks.quality_measures.entropies import KEYS
from benchmarks.quality_measures.figures import BAND, TEST, Figures, ModelFigures
from benchmarks.quality_measures.gradients import PARTS
from benchmarks.quality_measures.plots import ENTROPIES, GRADIENTS, LENGTHS, entropy_rows
from benchmarks.quality_measures.translations import BEAMS, BEST_SETTING, BINS, SETTINGS, Scores, Setting, bin_name

LONG = bin_name(BINS[-1])
BEAM_NAMES = {beam: "greedy" if beam == 1 else f"beam {beam}" for beam in BEAMS}


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
        _lengths(figures, images),
        _gradients(figures, images),
        _entropies(figures, images),
        _feeding(figures),
        _reproduction(figures),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _introduction(figures: Figures) -> str:
    rows = [
        [
            name,
            each.description,
            f"{each.parameters / 1e6:.1f}",
            f"{each.epochs} ({each.best_epoch})",
            f"{each.updates:,}",
            "-" if each.seconds is None else f"{each.seconds:,.0f}",
        ]
        for name, each in figures.models.items()
    ]
    return f"""# Quality

Use this page to see the effect of kinds of attention on translation quality, and to repeat the comparison. All models
are trained on Multi30k with one vocabulary and one schedule; [quality.toml](../benchmarks/quality.toml) has every
setting. Each model was trained once, with one seed: the scores are those of these runs, not of architectures at their
best. The epoch in brackets had the best validation score, and its checkpoint is measured. Seconds include validation
and depend on the load of the machine.

{_table(["model", "what it is", "million parameters", "epochs", "updates", "seconds"], rows)}"""


def _scores(figures: Figures) -> str:
    rows = [
        [name, *(cell for each in SETTINGS for cell in _bleu_chrf(model.scores[each.key]))]
        for name, model in figures.models.items()
    ]
    head = [f"{each.precision} {BEAM_NAMES[each.beam]}{metric}" for each in SETTINGS for metric in ("", ", chrF")]
    sentences = next(iter(figures.models.values())).scores[BEST_SETTING.key].sentences
    return f"""## Scores

BLEU and chrF of the exported bundles on the {sentences:,} sentences of {TEST}. sacreBLEU's signatures:
`{figures.signatures["BLEU"]}` and `{figures.signatures["chrF"]}`.

{_table(["model", *head], rows)}"""


def _bleu_chrf(scores: Scores) -> tuple[str, str]:
    return f"{scores.bleu:.2f}", f"{scores.chrf:.2f}"


def _int8(figures: Figures) -> str:
    def cells(model: ModelFigures, beam: int) -> tuple[str, str]:
        fp32, int8 = (model.scores[Setting(precision=each, beam=beam).key] for each in ("fp32", "int8"))
        return f"{model.int8_differs[beam]:,}", f"{round(int8.bleu - fp32.bleu, 2) + 0.0:+.2f}"

    rows = [[name, *(cell for beam in BEAMS for cell in cells(model, beam))] for name, model in figures.models.items()]
    head = [f"{BEAM_NAMES[beam]}: {what}" for beam in BEAMS for what in ("sentences that differ", "BLEU")]
    return f"""int8 compared with fp32: number of sentences with another translation, and difference in BLEU.

{_table(["model", *head], rows)}"""


def _lengths(figures: Figures, images: str) -> str:
    rows = [
        [name, _interval(model.scores[BEST_SETTING.key]), _interval(model.bins[LONG]) if LONG in model.bins else "-"]
        for name, model in figures.models.items()
    ]
    counts = {model.bins[LONG].sentences for model in figures.models.values() if LONG in model.bins}
    head = ["model", "all", f"{LONG} words ({next(iter(counts), 0)} sentences)"]
    return f"""## Long sentences

BLEU by the number of words of the source, {BEST_SETTING.key}, with 95 % intervals of sacreBLEU's bootstrap. The
intervals cover the choice of test sentences, not other seeds.

![BLEU by length of the source]({images}/{LENGTHS})

{_table(head, rows)}"""


def _interval(scores: Scores) -> str:
    return f"{scores.bleu:.2f} ({scores.low:.2f} to {scores.high:.2f})"


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
model has its initial weights, and an encoder in one direction.

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

{_table(["d", "variance of the products", "entropy", "divided by sqrt(d)"], widths)}

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


def _feeding(figures: Figures) -> str:
    if not figures.feeding:
        return ""
    rows = [
        [
            name,
            figures.models[name].description,
            *(
                cell
                for beam in BEAMS
                for cell in _bleu_chrf(figures.models[name].scores[Setting(precision="fp32", beam=beam).key])
            ),
        ]
        for pair in figures.feeding
        for name in pair
    ]
    head = [f"{BEAM_NAMES[beam]}{metric}" for beam in BEAMS for metric in ("", ", chrF")]
    return f"""## Teacher forcing and scheduled sampling

Models that differ only in the decoder's inputs during training; BLEU and chrF in fp32:

{_table(["model", "what it is", *head], rows)}"""


def _reproduction(figures: Figures) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in figures.versions.items())
    return f"""## Reproduce

```sh
make quality ARGS="--data corpus"
```

trains the missing models, measures, and writes this page; `corpus` is the folder of Multi30k. A run that was stopped is
resumed. Measured with {versions}, on {figures.machine}."""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
