"""Verify the graphs for shortlists: their decoder, selection and sampler."""

from collections.abc import Iterator

import numpy as np
from torch import nn

from jumok_export.verification.comparison import Differences, failed_check, make_check
from jumok_export.verification.runtime_side import GraphFailedError, RuntimeSide
from jumok_export.verification.samples import InputBounds, Samples
from jumok_export.verification.selection_cases import drawings, selections
from jumok_export.verification.sides import Side, TorchSide
from jumok_export.verification.trial import Reference, fp32_reference, int8_reference
from jumok_serve.bundle.shortlist import WIDTH_STEP
from jumok_serve.manifest.manifest import Check
from jumok_serve.runtime.graphs import Floats, Graphs, Integers
from jumok_serve.runtime.step_selection import ShortlistColumns

WIDTHS = (WIDTH_STEP, 5 * WIDTH_STEP)
UNLISTED = 0.4
"""Share of logits that are -inf."""
LISTED = (0.02, 0.3, 1.0)
"""Shares of the vocabulary in sentences' shortlists."""


def verify_shortlist(
    model: nn.Module, graphs: Graphs, listed: Graphs, bounds: InputBounds, precision: str
) -> list[Check]:
    """Compare the graphs for shortlists with the model, in int8 with the other decoder."""
    torch_side = TorchSide(model)
    whole, name, reference = (
        (torch_side, "PyTorch", fp32_reference(model))
        if precision == "fp32"
        else (RuntimeSide(graphs), "the decoder without shortlists", int8_reference(model))
    )
    try:
        steps = listed_steps(Samples(bounds, torch_side), whole, listed, f"those of {name}", reference)
        return [steps, *_selection(RuntimeSide(listed))]
    except GraphFailedError as error:
        return [failed_check("shortlist", error)]


def listed_steps(samples: Samples, whole: Side, graphs: Graphs, others: str, reference: Reference | None) -> Check:
    """Compare a shortlist decoder's logits with those of a whole one.

    Args:
        others: the latter, in the report.
        reference: measures the rounding of `whole`.
    """
    logits, random, runtime = Differences("shortlist logits"), np.random.default_rng(7), RuntimeSide(graphs)
    for inputs in samples.steps():
        sentences = len(inputs.source_lengths)
        lists = list(_lists(random, sentences, graphs.vocabulary))
        columns = ShortlistColumns(graphs)
        columns.join(range(sentences), lists)
        given = {name: value.numpy() for name, value in columns.inputs(sentences).items()}
        found, _ = runtime.step(inputs._replace(memory={**inputs.memory, **given}))
        expected, _ = whole.step(inputs)
        every = columns.tokens(np.arange(columns.width))
        logits.compare(_restricted(expected[:, every], lists, every), found)
    if logits.over and reference is not None:
        rounding = Differences("")
        for inputs in samples.steps():
            rounding.compare(reference.side.step(inputs)[0], whole.step(inputs)[0])
        logits.allow(rounding, reference.multiple, reference.of)
    return logits.check(f"logits of single steps with lists of tokens against {others}, -inf for other tokens")


def _lists(random: np.random.Generator, sentences: int, vocabulary: int) -> Iterator[Integers]:
    for share in random.choice(LISTED, sentences):
        listed = np.flatnonzero(random.random(vocabulary) < share)
        yield listed if len(listed) else np.array([vocabulary - 1])


def _restricted(logits: Floats, lists: list[Integers], every: Integers) -> Floats:
    """Logits [R, U], -inf in columns that are not in the sentence's list."""
    restricted = np.full_like(logits, -np.inf)
    beam_size = len(logits) // len(lists)
    for sentence, listed in enumerate(lists):
        rows, places = slice(sentence * beam_size, (sentence + 1) * beam_size), np.searchsorted(every, listed)
        restricted[rows, places] = logits[rows, places]
    return restricted


def _selection(runtime: RuntimeSide) -> Iterator[Check]:
    """Check selection and sampler on logits of several widths, some of them -inf."""
    select, sampler = Differences("shortlist select scores"), Differences("shortlist sampler scores")
    wrong = 0
    for width in WIDTHS:
        for selection in selections(width, UNLISTED):
            expected, found = selection.expected(), runtime.select(selection)
            for row in zip(expected[1], found[1], strict=True):
                select.compare(*row)
            wrong += selection.misplaced(found[0])
        for drawing in drawings(width, UNLISTED):
            drawn, totals = runtime.sample(drawing)
            sampler.compare(drawing.totals, totals)
            wrong += int((drawing.tokens != drawn).sum()) if drawing.tokens.shape == drawn.shape else drawn.size
    yield select.check("running scores of the best candidates, at several widths")
    yield sampler.check("running scores of drawn tokens, at several widths")
    detail = "misplaced columns; among equally likely ones the lower comes first"
    yield make_check("shortlist columns", select.cases + sampler.cases, float(wrong), 0.0, detail)
