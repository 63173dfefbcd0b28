"""Selection, also that for devices, and sampler against PyTorch and Hugging Face, in many shapes."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from jumok_export.device.selection import TIE_SHARE, device_select_graph
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.selection import SORTED_FOR_MASS, sampler_graph, select_graph
from jumok_export.verification.selection_cases import Drawing, Selection, drawings, nucleus, selections
from jumok_serve.runtime.graphs import Floats, Integers, constraint_arrays
from jumok_serve.search.constraints import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Entries
from jumok_serve.search.search import Draw

VOCABULARIES = (1, 2, 3, 17, 90, SORTED_FOR_MASS - 1, SORTED_FOR_MASS, SORTED_FOR_MASS + 1, 2017, 2021, 3000, 8000)
"""The last three use blocks; the one before is a prime number."""


def session(graph: Graph) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(graph.model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def select(graph: Any, call: Selection) -> tuple[Integers, Floats]:
    feeds = {
        "logits": call.logits,
        "scores": call.scores,
        "candidates": np.array([call.candidates]),
        "renormalize": np.flatnonzero(call.renormalize),
        **constraint_arrays("logit", call.on_logits, call.logits.shape[1], for_device=False),
        **constraint_arrays("log_prob", call.on_log_probs, call.logits.shape[1], for_device=False),
    }
    tokens, totals = graph.run(["tokens", "totals"], feeds)
    return tokens, totals


def sample(graph: Any, call: Drawing) -> tuple[Integers, Floats]:
    temperature, top_k, top_p, uniform = zip(*call.draws, strict=True)
    feeds = {
        "logits": call.logits,
        "rows": call.rows,
        "scores": call.scores,
        "temperature": np.array(temperature, np.float32),
        "top_k": np.array(top_k, np.int64),
        "top_p": np.array(top_p, np.float32),
        "uniform": np.array(uniform, np.float32),
        **constraint_arrays("logit", call.on_logits, call.logits.shape[1], for_device=False),
    }
    tokens, totals = graph.run(["tokens", "totals"], feeds)
    return tokens, totals


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_select_answers_what_pytorch_does(vocabulary: int) -> None:
    graph = session(select_graph(vocabulary))
    for call in selections(vocabulary):
        for each in (call, replace(call, on_logits=NO_CONSTRAINTS), replace(call, on_log_probs=NO_CONSTRAINTS)):
            tokens, totals = select(graph, each)
            assert each.misplaced(tokens) == 0
            np.testing.assert_allclose(totals, each.expected()[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_sampler_draws_what_pytorch_does(vocabulary: int) -> None:
    graph = session(sampler_graph(vocabulary))
    for call in drawings(vocabulary):
        tokens, totals = sample(graph, call)
        np.testing.assert_array_equal(tokens, call.tokens)
        np.testing.assert_allclose(totals, call.totals, rtol=1e-5, atol=1e-4)


def test_equals_go_by_lower_token_among_all_candidates() -> None:
    logits = np.array([[2.0, 3.0, 2.0, 3.0, -1.0], [0.0, 0.0, 0.0, 0.0, 0.0]], np.float32)
    forbidden = Entries(np.array([[1, 0], [1, 3]]), np.full(2, -np.inf, np.float32))
    call = replace(plain(logits, 5), on_logits=Constraints(NO_ENTRIES, forbidden))
    tokens, totals = select(session(select_graph(5)), call)
    assert tokens.tolist() == [[1, 3, 0, 2, 4], [1, 2, 4, 0, 3]]
    assert totals[1].tolist() == pytest.approx([-math.log(3)] * 3 + [-math.inf] * 2)


def plain(logits: Floats, candidates: int) -> Selection:
    """A call without constraints."""
    return Selection(
        logits=logits,
        scores=np.zeros(len(logits), np.float32),
        candidates=candidates,
        on_logits=NO_CONSTRAINTS,
        on_log_probs=NO_CONSTRAINTS,
        renormalize=np.zeros(len(logits), np.bool_),
    )


@pytest.mark.parametrize("vocabulary", [2017, 3000])
def test_equals_go_by_lower_token_across_all_blocks(vocabulary: int) -> None:
    random = np.random.default_rng(7)
    logits = random.integers(0, 3, (5, vocabulary)).astype(np.float32)  # hundreds of equals
    logits[0] = 4.0
    logits[1, :-3] = -np.inf
    logits[2, 1700:] = 5.0
    graph = session(select_graph(vocabulary))
    for candidates in (1, 2, 8, 300):
        tokens, _ = select(graph, plain(logits, candidates))
        np.testing.assert_array_equal(tokens, np.argsort(-logits, axis=1, kind="stable")[:, :candidates])


def test_log_probabilities_are_those_of_double_precision() -> None:
    random = np.random.default_rng(8)
    logits = random.normal(scale=3, size=(16, 32000)).astype(np.float32) + random.integers(-30, 30, (16, 1))
    logits[np.arange(8), random.integers(32000, size=8)] += np.arange(8) * 5  # up to nearly certain
    logits = logits.astype(np.float32)
    tokens, totals = select(session(select_graph(32000)), plain(logits, 10))
    exact = torch.from_numpy(logits).double().log_softmax(dim=-1).gather(1, torch.from_numpy(tokens))
    # The sum of 32,000 floats is what is not exact: log-softmax of PyTorch in fp32 is off by as much.
    np.testing.assert_allclose(totals, exact.numpy(), rtol=1e-6, atol=1e-5)


def one_entry(row: int, value: float) -> Entries:
    return Entries(np.array([[row, 3]]), np.array([value], np.float32))


@pytest.mark.parametrize("vocabulary", [90, 2017, 3000])
def test_no_row_depends_on_other_rows(vocabulary: int) -> None:
    """Bit for bit."""
    logits = np.random.default_rng(9).normal(scale=4, size=(4, vocabulary)).astype(np.float32)
    untouched = logits.copy()
    graph = session(select_graph(vocabulary))
    alone = [select(graph, plain(logits[row : row + 1], 8)) for row in range(4)]
    together = plain(logits, 8)
    factors, biases = one_entry(1, 1.5), one_entry(1, -np.inf)
    renormalize = np.array([False, True, False, False])
    asking = [
        together,
        replace(together, on_logits=Constraints(factors, NO_ENTRIES)),
        replace(together, on_logits=Constraints(NO_ENTRIES, biases)),
        replace(together, on_log_probs=Constraints(factors, biases)),
        replace(together, renormalize=renormalize),
        replace(together, on_logits=Constraints(factors, biases), renormalize=renormalize),
    ]
    for call in asking:
        tokens, totals = select(graph, call)
        for row in (0, 2, 3):
            np.testing.assert_array_equal(tokens[row], alone[row][0][0])
            np.testing.assert_array_equal(totals[row], alone[row][1][0])
    np.testing.assert_array_equal(logits, untouched)


@pytest.mark.parametrize("vocabulary", [90, 3000])
def test_rows_without_a_distribution_are_nan_and_no_others(vocabulary: int) -> None:
    logits = np.random.default_rng(10).normal(size=(5, vocabulary)).astype(np.float32)
    logits[1, 70] = np.nan
    logits[2] = -np.inf
    logits[3, 70] = np.inf
    graph = session(select_graph(vocabulary))
    call = plain(logits, 4)
    for each in (call, replace(call, renormalize=np.array([True] * 5))):
        tokens, totals = select(graph, each)
        assert np.isnan(totals).all(axis=1).tolist() == [False, True, True, True, False]
        assert np.isfinite(totals[[0, 4]]).all()
        assert (tokens >= 0).all()
        assert (tokens < vocabulary).all()
    nothing_left = Entries(np.array([[0, token] for token in range(vocabulary)]), np.full(vocabulary, -np.inf, "f"))
    _, totals = select(graph, replace(call, on_logits=Constraints(NO_ENTRIES, nothing_left)))
    assert np.isnan(totals[0]).all()
    _, totals = select(graph, replace(call, on_log_probs=Constraints(NO_ENTRIES, nothing_left)))
    assert np.isneginf(totals[0]).all()


def one_draw(logits: Floats, draw: Draw) -> Drawing:
    return Drawing(
        logits=logits,
        rows=np.array([0]),
        scores=np.zeros(1, np.float32),
        draws=(draw,),
        on_logits=NO_CONSTRAINTS,
        tokens=np.zeros((1, 1), np.int64),
        totals=np.zeros((1, 1), np.float32),
    )


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.999), (700, 1.0), (900, 0.99)])
def test_the_sampler_looks_beyond_the_few_it_sorts_first(top_k: int, top_p: float) -> None:
    """Inversion of the whole distribution: every token is drawn at its share of the numbers from 0 to 1."""
    vocabulary, steps = 1000, 400
    logits = np.random.default_rng(2).normal(scale=0.2, size=(1, vocabulary)).astype(np.float32)
    kept = nucleus(torch.from_numpy(logits[0]), temperature=1.0, top_k=top_k, top_p=top_p)
    assert int(kept.isfinite().sum()) > SORTED_FOR_MASS
    bounds = kept.double().softmax(dim=-1).cumsum(dim=-1)
    graph = session(sampler_graph(vocabulary))
    for uniform in (np.arange(steps) + 0.5) / steps:
        tokens, totals = sample(graph, one_draw(logits, Draw(1.0, top_k, top_p, float(uniform))))
        assert int(tokens[0, 0]) == int(torch.searchsorted(bounds, torch.tensor(float(uniform)), right=True))
        assert float(totals[0, 0]) == pytest.approx(float(kept.log_softmax(dim=-1)[tokens[0, 0]]), abs=1e-4)


@pytest.mark.parametrize(("vocabulary", "distance"), [(8000, 2e-5), (64000, 1e-4)])
def test_top_p_does_not_drift_in_large_vocabularies(vocabulary: int, distance: float) -> None:
    """Sums of thousands of equal probabilities are as exact as of different ones."""
    random = np.random.default_rng(2)
    levels = np.sort(random.integers(0, 40, vocabulary) / 8)[::-1].astype(np.float32)
    values, counts = np.unique(levels, return_counts=True)
    shares = (np.exp(values.astype(np.float64)) * counts)[::-1]
    edges = np.cumsum(shares / shares.sum())
    graph = session(sampler_graph(vocabulary))
    for edge in edges[(edges > 0.2) & (edges < 0.98)]:
        for top_p in (edge - distance, edge + distance):
            kept = nucleus(torch.from_numpy(levels.copy()), temperature=1.0, top_k=0, top_p=float(np.float32(top_p)))
            _, totals = sample(graph, one_draw(levels[None], Draw(1.0, 0, float(np.float32(top_p)), 0.0)))
            assert float(totals[0, 0]) == pytest.approx(float(kept.log_softmax(dim=-1)[0]), abs=1e-4)


@pytest.mark.parametrize("uniform", [0.0, 1.0])
def test_the_ends_of_the_numbers_draw_possible_tokens(uniform: float) -> None:
    logits = np.array([[-np.inf, 1.0, 2.0, -np.inf]], np.float32)
    tokens, _ = sample(session(sampler_graph(4)), one_draw(logits, Draw(1.0, 0, 1.0, uniform)))
    assert tokens[0, 0] == (1 if uniform == 0 else 2)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 5, 40])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 1.0])
def test_the_sampler_keeps_the_tokens_that_hugging_face_keeps(temperature: float, top_k: int, top_p: float) -> None:
    transformers = pytest.importorskip("transformers")
    logits = torch.from_numpy(np.random.default_rng(1).normal(scale=2.0, size=(20, 30)).astype(np.float32))
    expected = transformers.TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = transformers.TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = transformers.TopPLogitsWarper(top_p)(None, expected)
    for row, kept in zip(logits, expected, strict=True):
        assert nucleus(row, temperature=temperature, top_k=top_k, top_p=top_p).equal(kept)


@pytest.mark.parametrize("vocabulary", [37, 600])
def test_devices_choose_what_a_stable_sort_does(vocabulary: int) -> None:
    """Small and large vocabularies take different paths; logits on a coarse grid are often equal."""
    graph = device_select_graph(vocabulary)
    assert any(node.op_type == "ReduceMax" for node in graph.model.graph.node) == (vocabulary == 600)
    opened = session(graph)
    for selection in selections(vocabulary):
        asking = np.flatnonzero(selection.renormalize)
        feeds = {
            "logits": selection.logits,
            "scores": selection.scores,
            "candidates": np.array([selection.candidates]),
            "renormalize": asking if len(asking) else np.array([0]),
            "renormalize.asked": np.ones(len(asking), np.bool_) if len(asking) else np.array([False]),
        }
        for stage, constraints in (("logit", selection.on_logits), ("log_prob", selection.on_log_probs)):
            feeds |= constraint_arrays(stage, constraints, vocabulary, for_device=True)
        tokens, totals = opened.run(["tokens", "totals"], feeds)
        assert selection.misplaced(tokens) == 0
        assert totals == pytest.approx(selection.expected()[1], rel=1e-5, abs=1e-4)


def test_ties_on_devices_are_broken_and_nothing_else() -> None:
    """The last of 2**18 equals stays before the next smaller number of fp32, and equals are in the order of places."""
    random = np.random.default_rng(3)
    numbers = np.concatenate((random.standard_normal(2000) * 10.0 ** random.integers(-30, 30, 2000), [1.0, -1.0, -2.0]))
    numbers = numbers.astype(np.float32)
    below = np.nextafter(numbers, np.float32(-np.inf))

    def ranked(values: np.ndarray, place: int) -> np.ndarray:
        exact = values.astype(np.float64)
        return np.asarray(exact - np.abs(exact) * (place * TIE_SHARE))

    assert (ranked(numbers, 2**18) > ranked(below, 1)).all()
    assert (ranked(numbers, 7) > ranked(numbers, 8)).all()
    assert ranked(np.array([-np.inf], np.float32), 1) == -np.inf
