"""The operators of the compiled kernels against NumPy, in one thread and in several."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jumok_export.int8_entries import to_entries, to_floats

from .native_operators import CONSTANTS, levels, needs_library, rounding, run

pytestmark = needs_library

Arrays = dict[str, NDArray[Any]]
LIST_NAMES = ("logit_factors", "logit_biases", "log_prob_factors", "log_prob_biases")


def attended(
    query: NDArray[Any], keys: NDArray[Any], values: NDArray[Any], mask: NDArray[Any], scale: float
) -> NDArray[Any]:
    """Attention of [B, K, heads * D] over [B, heads, E, D], with a mask that is added to scores [B, heads, K, E]."""
    sentences, heads, _, width = keys.shape
    split = query.reshape(sentences, -1, heads, width).transpose(0, 2, 1, 3).astype(np.float64)
    scores = scale * split @ keys.astype(np.float64).transpose(0, 1, 3, 2) + mask
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    together: NDArray[Any] = (weights @ values.astype(np.float64)).transpose(0, 2, 1, 3).reshape(query.shape)
    return together


SHAPES = [
    (1, 1, 1, 8, 5),
    (3, 4, 8, 64, 24),
    (64, 1, 8, 64, 40),
    (2, 5, 2, 20, 16),
    (5, 2, 4, 32, 8),
    (1, 3, 2, 128, 33),
]
"""Sentences, beams, heads, width of a head, entries."""
AS_LEVELS = rounding(0.02, 128)
PREFIXES: Mapping[Any, str] = {np.float32: "", np.float16: "Half", np.int8: "Int8"}
"""How operators are called that take keys and values of a type."""
UNSEEN = {np.float32: np.nan, np.float16: np.nan, np.int8: -1}
"""What nobody may look at: scales of such bytes are no numbers either."""
SETTINGS: Mapping[str, Any] = {"Int8Entries": {"num_heads": 2}, "Int8CrossAttention": {"num_heads": 2, "scale": 1.0}}


def kept(floats: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Keys or values [..., D] as operators take them."""
    return to_entries(floats) if dtype == np.int8 else floats.astype(dtype)


def meant(kept: NDArray[Any]) -> NDArray[Any]:
    """The numbers that keys or values stand for."""
    return to_floats(kept) if kept.dtype == np.int8 else kept


@pytest.mark.parametrize("dtype", PREFIXES)
@pytest.mark.parametrize("shape", SHAPES)
def test_cross_attention(shape: tuple[int, ...], dtype: Any) -> None:
    """Sources end where their lengths say; what lies behind is not looked at."""
    sentences, beams, heads, width, entries = shape
    random = np.random.default_rng(1)
    query = random.normal(size=(sentences, beams, heads * width)).astype(np.float32)
    keys, values = (kept(random.normal(size=(sentences, heads, entries, width)), dtype) for _ in range(2))
    lengths = random.integers(1, entries + 1, sentences)
    mask = np.where(np.arange(entries) < lengths[:, None], 0, -np.inf)[:, None, None]
    expected = attended(query, meant(keys), meant(values), mask, 0.3)
    for sentence, length in enumerate(lengths):
        keys[sentence, :, length:] = values[sentence, :, length:] = UNSEEN[dtype]
    inputs = {"query": query, "key": keys, "value": values, "lengths": lengths}
    name = f"{PREFIXES[dtype]}CrossAttention"
    (found,) = run(name, inputs, {"output": np.float32}, num_heads=heads, scale=0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    (in_levels,) = run(f"{name}Quantized", {**inputs, **AS_LEVELS}, {"output": np.uint8}, num_heads=heads, scale=0.3)
    np.testing.assert_array_equal(in_levels, levels(found, 0.02, 128))


@pytest.mark.parametrize("half", [False, True], ids=["float", "half"])
@pytest.mark.parametrize("shape", SHAPES)
def test_cross_attention_of_tokens(shape: tuple[int, ...], half: bool) -> None:
    """Keys and values of an encoder's own tokens lie by tokens, not by heads; a single row is added up differently."""
    sentences, queries, heads, width, entries = shape
    random = np.random.default_rng(7)
    dtype = np.float16 if half else np.float32
    query = random.normal(size=(sentences, queries, heads * width)).astype(np.float32)
    keys, values = (random.normal(size=(sentences, entries, heads * width)).astype(dtype) for _ in range(2))
    lengths = random.integers(1, entries + 1, sentences)
    mask = np.where(np.arange(entries) < lengths[:, None], 0, -np.inf)[:, None, None]
    split = (sentences, entries, heads, width)
    by_head = {name: array.reshape(split).transpose(0, 2, 1, 3) for name, array in (("key", keys), ("value", values))}
    expected = attended(query, by_head["key"], by_head["value"], mask, 0.3)
    for sentence, length in enumerate(lengths):
        keys[sentence, length:] = values[sentence, length:] = np.nan
    inputs = {"query": query, "key": keys, "value": values, "lengths": lengths}
    settings = {"num_heads": heads, "scale": 0.3}
    name = "HalfCrossAttention" if half else "CrossAttention"
    (found,) = run(name, inputs, {"output": np.float32}, **settings)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    (of_heads,) = run(name, {**inputs, **by_head}, {"output": np.float32}, **settings)
    np.testing.assert_allclose(found, of_heads, rtol=1e-5, atol=2e-6)
    (in_levels,) = run(f"{name}Quantized", {**inputs, **AS_LEVELS}, {"output": np.uint8}, **settings)
    np.testing.assert_array_equal(in_levels, levels(found, 0.02, 128))


@pytest.mark.parametrize("bias_axes", [None, (0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", PREFIXES)
@pytest.mark.parametrize("shape", SHAPES)
def test_self_attention(shape: tuple[int, ...], dtype: Any, bias_axes: tuple[int, ...] | None) -> None:
    """New keys and values are written first; rows see what is visible to them, and nothing else matters."""
    sentences, beams, heads, width, entries = shape
    random = np.random.default_rng(2)
    query, new_key, new_value = (
        random.normal(size=(sentences, beams, heads * width)).astype(np.float32) for _ in range(3)
    )
    keys, values = (kept(random.normal(size=(sentences, heads, entries, width)), dtype) for _ in range(2))
    chosen = np.stack([random.permutation(entries)[:beams] for _ in range(sentences)])
    places = np.stack(
        [np.broadcast_to(np.arange(sentences)[:, None], chosen.shape), np.zeros_like(chosen), chosen], axis=-1
    )
    visible = random.random((sentences, beams, entries)) < 0.5
    visible[np.arange(sentences)[:, None], np.arange(beams), chosen] = True
    bias = None
    if bias_axes is not None:
        full = (sentences, heads, beams)
        sizes = [size if axis else 1 for axis, size in zip(bias_axes, full, strict=True)]
        bias = random.normal(size=(*sizes, entries)).astype(np.float32)
    after = []
    for cache, new in ((keys, new_key), (values, new_value)):
        written = cache.copy()
        for sentence in range(sentences):
            for beam in range(beams):
                written[sentence, :, chosen[sentence, beam]] = kept(new[sentence, beam].reshape(heads, width), dtype)
        after.append(written)
    mask = np.where(visible, 0, -np.inf)[:, None] + (0 if bias is None else bias)
    expected = attended(query, meant(after[0]), meant(after[1]), mask, 0.2)
    nobody = np.nonzero(~visible.any(axis=1))
    for cache in (keys, values, *after):
        cache[nobody[0], :, nobody[1]] = UNSEEN[dtype]
    inputs = {
        "query": query,
        "new_key": new_key,
        "new_value": new_value,
        "keys": keys,
        "values": values,
        "places": places,
        "visible": visible,
        "position_bias": bias,
    }
    outputs = {"output": np.float32, "next_keys": dtype, "next_values": dtype}
    name = f"{PREFIXES[dtype]}SelfAttention"
    found, *caches = run(name, inputs, outputs, num_heads=heads, scale=0.2)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for cache, written in zip(caches, after, strict=True):
        np.testing.assert_array_equal(cache, written)
    in_levels, *_ = run(
        f"{name}Quantized", {**inputs, **AS_LEVELS}, {**outputs, "output": np.uint8}, num_heads=heads, scale=0.2
    )
    np.testing.assert_array_equal(in_levels, levels(found, 0.02, 128))


@pytest.mark.parametrize("shape", SHAPES)
def test_entries_in_8_bits(shape: tuple[int, ...]) -> None:
    """Each has a scale of its own, whether they lie by tokens or by heads; what is 0 stays 0."""
    sentences, _, heads, width, entries = shape
    random = np.random.default_rng(15)
    by_head = random.normal(size=(sentences, heads, entries, width)) * random.exponential(size=(heads, entries, 1))
    by_head[0, 0, 0] = 0
    floats = by_head.astype(np.float32)
    tokens = floats.transpose(0, 2, 1, 3).reshape(sentences, entries, heads * width)
    for given in (floats, tokens):
        (found,) = run("Int8Entries", {"given": given}, {"entries": np.int8}, num_heads=heads)
        np.testing.assert_array_equal(found, to_entries(floats))
    scales = np.abs(floats).max(axis=-1, keepdims=True) / 127
    assert np.all(np.abs(to_floats(found) - floats) <= scales * 0.501)


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("Int8Entries", {"given": np.zeros((1, 3, 9), np.float32)}),
        ("Int8Entries", {"given": np.zeros((1, 3, 5, 4), np.float32)}),
        *(
            (
                "Int8CrossAttention",
                {
                    "query": np.zeros((1, 1, 16), np.float32),
                    "key": np.zeros(axes, np.int8),
                    "value": np.zeros(axes, np.int8),
                    "lengths": np.array([3]),
                },
            )
            for axes in ((1, 2, 3, 8), (1, 3, 16), (1, 3, 24))
        ),
    ],
)
def test_what_does_not_fit_is_refused(operator: str, inputs: Arrays) -> None:
    """Such as entries without a scale, or by tokens where they have one."""
    with pytest.raises(Exception, match="not fit each other|not those of so many heads"):
        run(operator, inputs, {"output": np.int8 if operator == "Int8Entries" else np.float32}, **SETTINGS[operator])


@pytest.mark.parametrize("width", [20, 64])
def test_tokens_of_a_source_do_not_depend_on_its_padding(width: int) -> None:
    """They are the same to the bit, however many rows there are behind them."""
    random, heads, length = np.random.default_rng(14), 2, 5
    query, keys, values = (random.normal(size=(1, 13, heads * width)).astype(np.float32) for _ in range(3))
    found = []
    for tokens in range(length, 14):
        inputs = {"query": query[:, :tokens], "key": keys[:, :tokens], "value": values[:, :tokens]}
        given = {**inputs, "lengths": np.array([length])}
        (each,) = run("CrossAttention", given, {"output": np.float32}, num_heads=heads, scale=0.3)
        found.append(each[:, :length])
    for each in found:
        np.testing.assert_array_equal(each, found[0])


def test_a_row_that_sees_nothing_gets_zeros() -> None:
    """Such rows are of no sentence."""
    ones = np.ones((1, 2, 8), np.float32)
    cache = np.full((1, 1, 4, 8), np.nan, np.float32)
    visible = np.zeros((1, 2, 4), np.bool_)
    visible[0, 1, 2] = True
    places = np.array([[[0, 0, 9], [0, 0, 2]]])  # there is no entry 9
    inputs = {"query": ones, "key": ones, "value": ones, "keys": cache, "values": cache}
    found, *_ = run(
        "SelfAttention",
        {**inputs, "places": places, "visible": visible},
        {"output": np.float32, "next_keys": np.float32, "next_values": np.float32},
        num_heads=1,
        scale=1.0,
    )
    np.testing.assert_array_equal(found, [[[0] * 8, [1] * 8]])


@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize("width", [3, 64, 500])
def test_add_norm(count: int, width: int) -> None:
    """The sum, its normalisation and its levels; outputs that nobody reads are left out."""
    random = np.random.default_rng(3)
    x, y = (random.normal(2, 3, (count, 1, width)).astype(np.float32) for _ in range(2))
    weight, bias = (random.normal(size=width).astype(np.float32) for _ in range(2))
    total = x.astype(np.float64) + y
    centred = total - total.mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-3) * weight + bias
    inputs = {"x": x, "y": y, "weight": weight, "bias": bias}
    floats = {"sum": np.float32, "norm": np.float32}
    added, norm = run("AddNorm", inputs, floats, epsilon=1e-3)
    np.testing.assert_array_equal(added, x + y)
    np.testing.assert_allclose(norm, expected, rtol=2e-5, atol=2e-5)
    (alone,) = run("AddNorm", inputs, {"sum": None, "norm": np.float32}, epsilon=1e-3)
    np.testing.assert_array_equal(alone, norm)
    for wanted in (floats, {"sum": np.float32, "norm": None}, {"sum": None, "norm": None}):
        outputs = {**wanted, "quantized": np.uint8}
        *_, found = run("AddNormQuantized", {**inputs, **rounding(0.03, 100)}, outputs, epsilon=1e-3)
        np.testing.assert_array_equal(found, levels(norm, 0.03, 100))


@pytest.mark.parametrize("zero_point", [0, 128, 255])
def test_levels_end_where_bytes_do(zero_point: int) -> None:
    """What is too large or too small for a byte becomes the last one."""
    x = np.array([[-1e30, -300.0, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 300.0, 1e30]], np.float32)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    found = []
    for number in x[0]:  # a row of one number is normalised to nothing, so that its bias is the result
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
    """What the operator gives for lists of (place, value)."""
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
    """The same in doubles, with a whole sort."""

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
    """The best of every row, with and without constraints of either stage."""
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
    else:  # among all, some are so close that floats do not tell which is better
        np.testing.assert_array_equal(np.sort(tokens, axis=-1), np.sort(best, axis=-1))


@pytest.mark.parametrize("candidates", [1, 40])
def test_select_under_many_constraints(candidates: int) -> None:
    """So many that they are not looked at one by one, in a row that nothing renormalizes."""
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
    """Within a block and from block to block, also where only log-probabilities are equal."""
    logits = np.zeros((2, 300), np.float32)
    logits[0, [7, 70, 250]] = 1
    logits[1] = np.float32(1e-3)
    logits[1, 200] = np.nextafter(np.float32(1e-3), np.float32(1))  # rounds to the log-probability of the others
    tokens, totals = selected(logits, np.zeros(2, np.float32), 5, {})
    assert tokens.tolist() == [[7, 70, 250, 0, 1], [0, 1, 2, 3, 4]]
    assert len(set(totals[1].tolist())) == 1


def test_rows_without_numbers() -> None:
    """NaN, an infinite logit and nothing but -inf give NaN; -inf before a number does not, nor what other rows have."""
    logits = np.random.default_rng(5).normal(size=(5, 200)).astype(np.float32)
    logits[0, 150] = np.nan
    logits[1, 3] = np.inf
    logits[2] = -np.inf
    logits[3, :130] = -np.inf
    scores = np.zeros(5, np.float32)
    tokens, totals = selected(logits, scores, 4, {})
    assert np.isnan(totals[:3]).all()
    best, expected = expected_selection(logits[3:], scores[3:], 4, {})
    np.testing.assert_array_equal(tokens[3:], best)
    np.testing.assert_allclose(totals[3:], expected, rtol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    """By a message, before anything is read."""
    logits, scores = np.zeros((2, 9), np.float32), np.zeros(2, np.float32)
    with pytest.raises(Exception, match="outside of the logits"):
        selected(logits, scores, 1, {"logit_biases": [(18, 1.0)]})
    with pytest.raises(Exception, match="different rows"):
        selected(logits, scores[:1], 1, {})
    with pytest.raises(Exception, match="a row to renormalize is outside"):
        selected(logits, scores, 1, {}, [2])
    with pytest.raises(Exception, match="at least one candidate"):
        selected(logits, scores, 0, {})
    keys = np.zeros((1, 2, 4, 8), np.float32)
    inputs = {"query": np.zeros((1, 1, 8), np.float32), "key": keys, "value": keys, "lengths": np.ones(1, np.int64)}
    by_token = np.zeros((1, 4, 8), np.float32)
    for key, value in ((keys, keys), (by_token, keys[..., :4]), (keys[..., :4], by_token), (by_token[..., :6],) * 2):
        others = {**inputs, "key": key, "value": value}
        with pytest.raises(Exception, match="do not fit each other"):
            run("CrossAttention", others, {"output": np.float32}, num_heads=2, scale=1.0)


NOT_CONSTANT = "weights, scales, zero points and biases have to be constant"


@pytest.mark.parametrize("name", ["weight", "bias", "scale", "zero_point"])
def test_norms_refuse_what_is_not_constant(name: str) -> None:
    """When a session is made: kernels read these once."""
    row, per_column = np.zeros((1, 8), np.float32), np.ones(8, np.float32)
    inputs = {"x": row, "y": row, "weight": per_column, "bias": per_column, **AS_LEVELS}
    outputs = {"sum": None, "norm": None, "quantized": np.uint8}
    with pytest.raises(Exception, match=NOT_CONSTANT):
        run("AddNormQuantized", inputs, outputs, CONSTANTS - {name}, epsilon=1e-5)


@pytest.mark.parametrize("name", ["scale", "zero_point"])
def test_attention_refuses_what_is_not_constant(name: str) -> None:
    query, cache = np.zeros((1, 1, 8), np.float32), np.zeros((1, 1, 4, 8), np.float32)
    inputs = {"query": query, "key": cache, "value": cache, "lengths": np.ones(1, np.int64), **AS_LEVELS}
    with pytest.raises(Exception, match=NOT_CONSTANT):
        run("CrossAttentionQuantized", inputs, {"output": np.uint8}, CONSTANTS - {name}, num_heads=1, scale=1.0)


def test_results_do_not_depend_on_company() -> None:
    """Rows alone, and among those of others with more entries, to the bit."""
    random = np.random.default_rng(6)
    query = random.normal(size=(9, 2, 128)).astype(np.float32)
    keys, values = (random.normal(size=(9, 2, 48, 64)).astype(np.float32) for _ in range(2))
    lengths = np.array([5, 48, 17, 16, 33, 1, 40, 8, 20])
    settings = {"num_heads": 2, "scale": 0.125}
    inputs = {"query": query, "key": keys, "value": values, "lengths": lengths}
    (together,) = run("CrossAttention", inputs, {"output": np.float32}, **settings)
    for sentence, length in enumerate(lengths):
        room = -(-length // 8) * 8
        alone = {
            "query": query[sentence, None],
            "key": keys[sentence, None, :, :room],
            "value": values[sentence, None, :, :room],
            "lengths": lengths[sentence, None],
        }
        (found,) = run("CrossAttention", alone, {"output": np.float32}, **settings)
        np.testing.assert_array_equal(found[0], together[sentence])


@pytest.mark.skipif("JUMOK_TEST_KERNELS" in os.environ, reason="this is the run for older processors")
def test_processors_without_avx512() -> None:
    """All of the above, and products, with the functions for these, which a newer processor has too."""
    files = [__file__, *(str(Path(__file__).with_name(f"test_{name}.py")) for name in ("products", "float_products"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    run = subprocess.run(
        command, env={**os.environ, "JUMOK_TEST_KERNELS": "avx2"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout
