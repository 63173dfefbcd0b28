"""Norms, embeddings and the selection in native operators against NumPy, in one thread and in several."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jumok_serve import native
from tests.support.models.native_operators import AS_LEVELS, levels, needs_library, rounding, run

pytestmark = needs_library

Arrays = dict[str, NDArray[Any]]
OTHERS = ("native_attention", "products", "listed_product", "quantized_rows", "ssru", "malformed_inputs")
"""Test files of the other operators."""
LIST_NAMES = ("logit_factors", "logit_biases", "log_prob_factors", "log_prob_biases")


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize("width", [3, 64, 500])
def test_add_norm(width: int, count: int, in_order: int) -> None:
    """The sum, its normalization and its quantized values, also without the outputs that no node reads.

    In order means bit by bit as Marian adds, divides and multiplies without vectors.
    """
    random = np.random.default_rng(3)
    x, y = (random.normal(2, 3, (count, 1, width)).astype(np.float32) for _ in range(2))
    weight, bias = (random.normal(size=width).astype(np.float32) for _ in range(2))
    total = x.astype(np.float64) + y
    centred = total - total.mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-3) * weight + bias
    inputs = {"x": x, "y": y, "weight": weight, "bias": bias}
    floats, settings = {"sum": np.float32, "norm": np.float32}, {"epsilon": 1e-3, "in_order": in_order}
    added, norm = run("AddNorm", inputs, floats, **settings)
    np.testing.assert_array_equal(added, x + y)
    np.testing.assert_allclose(norm, expected, rtol=2e-5, atol=2e-5)
    if in_order:
        size = np.float32(width)
        rounded = added - np.add.accumulate(added, axis=-1)[..., -1:] / size
        deviation = np.sqrt(np.add.accumulate(rounded * rounded, axis=-1)[..., -1:] / size + np.float32(1e-3))
        np.testing.assert_array_equal(norm, weight * (rounded / deviation) + bias)
    (alone,) = run("AddNorm", inputs, {"sum": None, "norm": np.float32}, **settings)
    np.testing.assert_array_equal(alone, norm)
    for wanted in (floats, {"sum": np.float32, "norm": None}, {"sum": None, "norm": None}):
        outputs = {**wanted, "quantized": np.uint8}
        *_, found = run("AddNormQuantized", {**inputs, **rounding(0.03, 100)}, outputs, **settings)
        np.testing.assert_array_equal(found, levels(norm, 0.03, 100))


@pytest.mark.parametrize("width", [3, 64, 500])
def test_a_table_is_added_to_each_sentence(width: int) -> None:
    """The table's first rows are added to every sentence, as if the table were repeated for each."""
    random, outputs = np.random.default_rng(14), {"sum": np.float32, "norm": np.float32, "quantized": np.uint8}
    for sentences, length in ((1, 1), (3, 5), (40, 9)):
        x = random.normal(size=(sentences, length, width)).astype(np.float32)
        table = random.normal(size=(9, width)).astype(np.float32)
        norm = {name: random.normal(size=width).astype(np.float32) for name in ("weight", "bias")}
        by_table, by_row = (
            run("AddNormQuantized", {"x": x, "y": y, **norm, **AS_LEVELS}, outputs, epsilon=1e-3)
            for y in (table, np.broadcast_to(table[:length], x.shape))
        )
        for found, one in zip(by_table, by_row, strict=True):
            np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("zero_point", [0, 128, 255])
def test_quantized_values_are_clamped(zero_point: int) -> None:
    """A value beyond the range of a byte becomes the largest or smallest byte."""
    x = np.array([[-1e30, -300.0, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 300.0, 1e30]], np.float32)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    found = []
    for number in x[0]:  # a row of one number is normalized to 0, so that the bias is the result
        inputs = {"x": zero[None], "y": zero[None], "weight": one, "bias": np.array([number])}
        outputs = {"sum": None, "norm": None, "quantized": np.uint8}
        (level,) = run("AddNormQuantized", {**inputs, **rounding(1, zero_point)}, outputs, epsilon=1e-5)
        found.append(level[0, 0])
    np.testing.assert_array_equal(found, levels(x, 1, zero_point)[0])


def selected(
    logits: NDArray[Any],
    scores: NDArray[Any],
    candidates: int,
    lists: Mapping[str, Any],
    renormalize: Sequence[int] = (),
) -> list[NDArray[Any]]:
    """Outputs of the operator for constraints as lists of (place, value)."""
    inputs: Arrays = {"logits": logits, "scores": scores, "candidates": np.array([candidates])}
    for name in LIST_NAMES:
        entries = lists.get(name, [])
        inputs[f"{name}.places"] = np.array([place for place, _ in entries], np.int64)
        inputs[f"{name}.values"] = np.array([value for _, value in entries], np.float32)
    inputs["renormalize"] = np.array(renormalize, np.int64)
    return run("Select", inputs, {"tokens": np.int64, "totals": np.float32})


def expected_selection(
    logits: NDArray[Any],
    scores: NDArray[Any],
    candidates: int,
    lists: Mapping[str, Any],
    renormalize: Sequence[int] = (),
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The expected outputs, in doubles and by sorting all columns."""

    def constrained(numbers: NDArray[Any], stage: str) -> NDArray[Any]:
        flat = numbers.ravel().copy()
        for place, factor in lists.get(f"{stage}_factors", []):
            flat[place] = flat[place] * factor if flat[place] < 0 else flat[place] / factor
        for place, bias in lists.get(f"{stage}_biases", []):
            flat[place] += bias
        return flat.reshape(numbers.shape)

    def normalised(numbers: NDArray[Any]) -> NDArray[Any]:
        most = numbers.max(axis=-1, keepdims=True)
        probabilities: NDArray[Any] = numbers - most - np.log(np.exp(numbers - most).sum(axis=-1, keepdims=True))
        return probabilities

    processed = constrained(normalised(constrained(logits.astype(np.float64), "logit")), "log_prob")
    for row in renormalize:
        processed[row] = normalised(processed[row])
    order = np.argsort(-processed, axis=-1, kind="stable")[:, :candidates]
    return order, np.take_along_axis(processed, order, axis=-1) + scores[:, None]


@pytest.mark.parametrize("candidates", [1, 2, 10, 70, 10_000])
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (3, 64), (40, 1000), (8, 4999)])
@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
def test_select(rows: int, width: int, candidates: int, constrained: bool) -> None:
    """The best candidates of every row, with and without constraints of either stage."""
    random = np.random.default_rng(4)
    logits = (5 * random.normal(size=(rows, width))).astype(np.float32)
    scores = random.normal(size=rows).astype(np.float32)
    lists: dict[str, list[tuple[int, float]]] = {}
    renormalize: list[int] = []
    if constrained:
        for name in LIST_NAMES:
            places = random.choice(rows * width, size=min(rows * width, 30), replace=False)
            values = random.uniform(0.5, 3, len(places)) if "factors" in name else random.normal(0, 4, len(places))
            lists[name] = [(int(place), float(np.float32(value))) for place, value in zip(places, values, strict=True)]
        lists["log_prob_biases"].append((0, -np.inf))
        renormalize = sorted({0, rows - 1})
    tokens, totals = selected(logits, scores, candidates, lists, renormalize)
    best, expected = expected_selection(logits, scores, candidates, lists, renormalize)
    np.testing.assert_allclose(totals, expected, rtol=2e-6, atol=2e-5)
    if candidates < width:
        np.testing.assert_array_equal(tokens, best)
    else:  # among all columns some are too close to be told apart in fp32
        np.testing.assert_array_equal(np.sort(tokens, axis=-1), np.sort(best, axis=-1))


@pytest.mark.parametrize("candidates", [1, 40])
def test_select_under_many_constraints(candidates: int) -> None:
    """More constraints than the kernel treats one by one, in a row that is not renormalized."""
    random = np.random.default_rng(6)
    logits, scores = (5 * random.normal(size=(2, 3000))).astype(np.float32), np.zeros(2, np.float32)
    lists = {
        "log_prob_factors": [(place, 1.5) for place in range(0, 3000, 7)],
        "log_prob_biases": [(place, -2.0) for place in range(0, 3000, 5)],
    }
    tokens, totals = selected(logits, scores, candidates, lists)
    best, expected = expected_selection(logits, scores, candidates, lists)
    np.testing.assert_allclose(totals, expected, rtol=2e-6, atol=2e-5)
    np.testing.assert_array_equal(tokens, best)


def test_equal_candidates_come_by_token() -> None:
    """Ties within a block and across blocks, also if only log-probabilities are equal."""
    logits = np.zeros((2, 300), np.float32)
    logits[0, [7, 70, 250]] = 1
    logits[1] = np.float32(1e-3)
    logits[1, 200] = np.nextafter(np.float32(1e-3), np.float32(1))  # rounds to the log-probability of the others
    tokens, totals = selected(logits, np.zeros(2, np.float32), 5, {})
    assert tokens.tolist() == [[7, 70, 250, 0, 1], [0, 1, 2, 3, 4]]
    assert len(set(totals[1].tolist())) == 1


@pytest.mark.parametrize("width", [200, 3000])
def test_rows_with_nan(width: int) -> None:
    """NaN, an infinite logit or only -inf give NaN; some -inf do not, nor do the values of other rows."""
    logits = np.random.default_rng(5).normal(size=(5, width)).astype(np.float32)
    logits[0, width - 50] = np.nan
    logits[1, 3] = np.inf
    logits[2] = -np.inf
    logits[3, : width - 70] = -np.inf
    scores = np.zeros(5, np.float32)
    tokens, totals = selected(logits, scores, 4, {})
    assert np.isnan(totals[:3]).all()
    best, expected = expected_selection(logits[3:], scores[3:], 4, {})
    np.testing.assert_array_equal(tokens[3:], best)
    np.testing.assert_allclose(totals[3:], expected, rtol=1e-5)


@pytest.mark.parametrize("in_int8", [False, True])
@pytest.mark.parametrize("width", [16, 37, 512])
def test_embedding(width: int, in_int8: bool) -> None:
    random = np.random.default_rng(width)
    table: NDArray[Any] = (30 * random.normal(size=(50, width))).astype(np.float32)
    scales = np.ones(50, np.float32)
    name, inputs = "FloatEmbedding", Arrays(table=table)
    if in_int8:
        scales, table = random.uniform(0.001, 0.1, 50).astype(np.float32), table.astype(np.int8)
        name, inputs = "Int8Embedding", Arrays(table=table, scales=scales)
    for shape in ((1,), (3, 4), (2, 300), (12,)):
        tokens = random.integers(0, 50, shape)
        inputs["tokens"] = tokens
        (alone,) = run(name, inputs, {"embedded": np.float32}, factor=22.5)
        scaled = table[tokens].astype(np.float32) * scales[tokens][..., None]
        np.testing.assert_array_equal(alone, scaled * np.float32(22.5))
    positions, places = random.integers(0, 9, 12), random.normal(size=(9, width)).astype(np.float32)
    inputs |= {"places": places, "positions": positions}
    (found,) = run(name, inputs, {"sums": np.float32}, factor=22.5)
    np.testing.assert_array_equal(found, alone + places[positions])
    as_levels = {**inputs, "grouped": np.zeros((4, 1), np.float32), **rounding(0.7, 120)}
    outputs = {"sums": np.float32, "quantized": np.uint8}
    sums, quantized = run(f"{name}Quantized", as_levels, outputs, factor=22.5)
    np.testing.assert_array_equal(sums, found.reshape(4, 3, width))
    np.testing.assert_array_equal(quantized, np.clip(np.rint(sums / np.float32(0.7)) + 120, 0, 255))


class InstructionSet(ctypes.Structure):
    """An instruction set that has kernels, as in ``isa/dispatch.h``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("usable", ctypes.c_bool),
        ("gemm", ctypes.c_void_p),
        ("row", ctypes.c_void_p),
    )


def best_instruction_set() -> str:
    """Return the name of the instruction set that the library chooses on this processor."""
    sets = native.function("jumok_instruction_sets", (ctypes.c_void_p,))
    first = ctypes.POINTER(InstructionSet)()
    count = sets(ctypes.byref(first))
    return str(next(each.name for each in first[:count] if each.usable), "ascii")


@pytest.mark.skipif("JUMOK_TEST_KERNELS" in os.environ, reason="this is the run for older processors")
@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["avx2", "portable"])
def test_older_instruction_sets(kernels: str) -> None:
    """Run all kernel tests with the kernels for older processors, which newer ones can run too."""
    if kernels == best_instruction_set():
        pytest.skip(f"this processor has nothing newer than {kernels}, which the other tests run with")
    files = [__file__, *(str(Path(__file__).with_name(f"test_{name}.py")) for name in OTHERS)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    run = subprocess.run(
        command, env={**os.environ, "JUMOK_TEST_KERNELS": kernels}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout
