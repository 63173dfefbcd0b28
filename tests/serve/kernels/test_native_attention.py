"""Attention in native operators against NumPy, with keys and values in every type."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jumok_export.native.int8_cache import to_entries, to_floats
from tests.support.models.native_operators import AS_LEVELS, levels, needs_library, run

pytestmark = needs_library


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
    (7, 1, 3, 64, 20),
    (3, 1, 3, 20, 9),
]
"""Sentences, beam size, heads, width of a head, entries."""
PREFIXES: Mapping[Any, str] = {np.float32: "", np.float16: "Half", np.int8: "Int8"}
"""Prefixes of the operators' names, by the type of keys and values."""
CLOSE: Mapping[Any, float] = {np.float32: 1e-5, np.float16: 1e-5, np.int8: 5e-4}
"""Tolerances; with VNNI, queries and weights are rounded too if keys and values are."""
UNSEEN = {np.float32: np.nan, np.float16: np.nan, np.int8: -1}
"""Values that no row may read; as bytes of a scale they are NaN."""


def quantized(floats: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Keys or values [..., D] in the operators' type."""
    return to_entries(floats) if dtype == np.int8 else floats.astype(dtype)


def dequantized(kept: NDArray[Any]) -> NDArray[Any]:
    """Keys or values as floats."""
    return to_floats(kept) if kept.dtype == np.int8 else kept


@pytest.mark.parametrize(
    ("dtype", "by_token"), [*((dtype, False) for dtype in PREFIXES), (np.float32, True), (np.float16, True)]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_cross_attention(shape: tuple[int, ...], dtype: Any, by_token: bool) -> None:
    """Entries after a source's length are not read; the encoder's keys and values lie by token, not by head."""
    sentences, beams, heads, width, entries = shape
    random = np.random.default_rng(1)
    query = random.normal(size=(sentences, beams, heads * width)).astype(np.float32)
    keys, values = (quantized(random.normal(size=(sentences, heads, entries, width)), dtype) for _ in range(2))
    lengths = random.integers(1, entries + 1, sentences)
    mask = np.where(np.arange(entries) < lengths[:, None], 0, -np.inf)[:, None, None]
    expected = attended(query, dequantized(keys), dequantized(values), mask, 0.3)
    for sentence, length in enumerate(lengths):
        keys[sentence, :, length:] = values[sentence, :, length:] = UNSEEN[dtype]
    inputs = {"query": query, "key": keys, "value": values, "lengths": lengths}
    name, settings = f"{PREFIXES[dtype]}CrossAttention", {"num_heads": heads, "scale": 0.3}
    (found,) = run(name, inputs, {"output": np.float32}, **settings)
    if by_token and dtype != np.int8:
        of_heads = found
        inputs |= {
            each: inputs[each].transpose(0, 2, 1, 3).reshape(sentences, entries, -1) for each in ("key", "value")
        }
        (found,) = run(name, inputs, {"output": np.float32}, **settings)
        np.testing.assert_allclose(found, of_heads, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=CLOSE[dtype])
    (in_levels,) = run(f"{name}Quantized", {**inputs, **AS_LEVELS}, {"output": np.uint8}, **settings)
    np.testing.assert_array_equal(in_levels, levels(found, 0.02, 128))


@pytest.mark.parametrize("bias_axes", [None, (0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", PREFIXES)
@pytest.mark.parametrize("shape", SHAPES)
def test_self_attention(shape: tuple[int, ...], dtype: Any, bias_axes: tuple[int, ...] | None) -> None:
    """New keys and values are written first; rows read visible entries only."""
    sentences, beams, heads, width, entries = shape
    random = np.random.default_rng(2)
    query, new_key, new_value = (
        random.normal(size=(sentences, beams, heads * width)).astype(np.float32) for _ in range(3)
    )
    keys, values = (quantized(random.normal(size=(sentences, heads, entries, width)), dtype) for _ in range(2))
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
                written[sentence, :, chosen[sentence, beam]] = quantized(
                    new[sentence, beam].reshape(heads, width), dtype
                )
        after.append(written)
    mask = np.where(visible, 0, -np.inf)[:, None] + (0 if bias is None else bias)
    expected = attended(query, dequantized(after[0]), dequantized(after[1]), mask, 0.2)
    unseen = np.nonzero(~visible.any(axis=1))
    for cache in (keys, values, *after):
        cache[unseen[0], :, unseen[1]] = UNSEEN[dtype]
    names = ("query", "new_key", "new_value", "keys", "values", "places", "visible", "position_bias")
    inputs = dict(zip(names, (query, new_key, new_value, keys, values, places, visible, bias), strict=True))
    outputs = {"output": np.float32, "next_keys": dtype, "next_values": dtype}
    name = f"{PREFIXES[dtype]}SelfAttention"
    found, *caches = run(name, inputs, outputs, num_heads=heads, scale=0.2)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=CLOSE[dtype])
    for cache, written in zip(caches, after, strict=True):
        np.testing.assert_array_equal(cache, written)
    in_levels, *_ = run(
        f"{name}Quantized", {**inputs, **AS_LEVELS}, {**outputs, "output": np.uint8}, num_heads=heads, scale=0.2
    )
    np.testing.assert_array_equal(in_levels, levels(found, 0.02, 128))


@pytest.mark.parametrize("shape", SHAPES)
def test_entries(shape: tuple[int, ...]) -> None:
    """Each int8 entry has its own scale, by token or by head; 0 stays 0."""
    sentences, _, heads, width, entries = shape
    random = np.random.default_rng(15)
    by_head = random.normal(size=(sentences, heads, entries, width)) * random.exponential(size=(heads, entries, 1))
    by_head[0, 0, 0] = 0
    floats = by_head.astype(np.float32)
    tokens = floats.transpose(0, 2, 1, 3).reshape(sentences, entries, heads * width)
    for given in (floats, tokens):
        (by_heads,) = run("FloatEntries", {"given": given}, {"entries": np.float32}, num_heads=heads)
        np.testing.assert_array_equal(by_heads, floats)
        (found,) = run("Int8Entries", {"given": given}, {"entries": np.int8}, num_heads=heads)
        np.testing.assert_array_equal(found, to_entries(floats))
    scales = np.abs(floats).max(axis=-1, keepdims=True) / 127
    assert np.all(np.abs(to_floats(found) - floats) <= scales * 0.501)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("width", [4, 8, 20, 64])
@pytest.mark.parametrize("heads", [2, 5])
def test_int8_entries_keep_nan(heads: int, width: int, number: float) -> None:
    given = np.random.default_rng(3).normal(size=(1, width + 1, heads * width)).astype(np.float32)
    for place in range(width):
        given[0, place, width + place] = number
    (found,) = run("Int8Entries", {"given": given}, {"entries": np.int8}, num_heads=heads)
    floats = to_floats(found)  # [1, heads, entries, width]
    assert np.isnan(floats[0, 1, :width]).all()
    assert np.isfinite(np.delete(floats[0], 1, axis=0)).all()
    assert np.isfinite(floats[0, 1, width:]).all()


@pytest.mark.parametrize("width", [20, 64])
def test_tokens_of_a_source_do_not_depend_on_its_padding(width: int) -> None:
    """Bit for bit, for any number of padding rows."""
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


@pytest.mark.parametrize("entries", [4, 24])
@pytest.mark.parametrize("beams", [1, 2])
def test_rows_without_visible_entries_get_zeros(beams: int, entries: int) -> None:
    """Such rows belong to empty slots; their new entries lie beyond the last one."""
    ones = np.ones((3, beams, 8), np.float32)
    cache = np.full((3, 1, entries, 8), np.nan, np.float32)
    seen = np.zeros((3, beams), np.bool_)
    seen[1] = seen[2, -1] = True
    visible = seen[..., None] & (np.arange(entries) == entries - 1)
    places = np.stack([np.arange(3)[:, None].repeat(beams, axis=1), np.zeros_like(seen), entries - seen], axis=-1)
    inputs = {"query": ones, "key": ones, "value": ones, "keys": cache, "values": cache}
    found, *_ = run(
        "SelfAttention",
        {**inputs, "places": places.astype(np.int64), "visible": visible},
        {"output": np.float32, "next_keys": np.float32, "next_values": np.float32},
        num_heads=1,
        scale=1.0,
    )
    np.testing.assert_array_equal(found, seen[..., None] * ones)


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("dtype", PREFIXES)
def test_results_do_not_depend_on_the_batch(dtype: Any, beams: int) -> None:
    """Bit for bit: rows alone, and beside longer sentences whose heads are split among threads."""
    random = np.random.default_rng(6)
    query = random.normal(size=(9, beams, 192)).astype(np.float32)
    keys, values = (quantized(random.normal(size=(9, 3, 48, 64)), dtype) for _ in range(2))
    lengths = np.array([5, 48, 17, 16, 33, 1, 40, 8, 20])
    settings = {"num_heads": 3, "scale": 0.125}
    inputs = {"query": query, "key": keys, "value": values, "lengths": lengths}
    (together,) = run(f"{PREFIXES[dtype]}CrossAttention", inputs, {"output": np.float32}, **settings)
    for sentence, length in enumerate(lengths):
        room = -(-length // 8) * 8
        alone = {
            "query": query[sentence, None],
            "key": keys[sentence, None, :, :room],
            "value": values[sentence, None, :, :room],
            "lengths": lengths[sentence, None],
        }
        (found,) = run(f"{PREFIXES[dtype]}CrossAttention", alone, {"output": np.float32}, **settings)
        np.testing.assert_array_equal(found[0], together[sentence])


def cached(
    dtype: Any, beams: int, seen: NDArray[Any], slots: NDArray[Any], capacity: int, entries: int
) -> dict[str, NDArray[Any]]:
    """Inputs of self-attention for sentences in slots; each sees as many entries, and the last ones are new."""
    random, heads = np.random.default_rng(8), 3
    rows = [random.normal(size=(len(slots), beams, heads * 64)).astype(np.float32) for _ in range(3)]
    caches = [quantized(random.normal(size=(capacity, heads, entries, 64)), dtype) for _ in range(2)]
    places = np.zeros((len(slots), beams, 3), np.int64)
    places[:, :, 0] = slots[:, None]
    places[:, :, 2] = seen[:, None] - 1 - np.arange(beams)
    visible = np.zeros((capacity, beams, entries), bool)
    visible[slots] = np.arange(entries) < seen[:, None, None]
    names = ("query", "new_key", "new_value", "key", "value", "places", "visible")
    return dict(zip(names, (*rows, *caches, places, visible), strict=True))


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("dtype", PREFIXES)
def test_rows_over_a_kv_cache_do_not_depend_on_the_batch(dtype: Any, beams: int) -> None:
    """Bit for bit: alone in one thread, and beside others whose heads are split among threads."""
    inputs = cached(dtype, beams, np.array([5, 48, 17, 16, 33, 2, 40, 8, 20]), np.arange(9), 9, 48)
    outputs = {"output": np.float32, "next_keys": dtype, "next_values": dtype}
    name = f"{PREFIXES[dtype]}SelfAttention"
    together = run(name, inputs, outputs, num_heads=3, scale=0.125)
    for sentence in range(9):
        alone = {name: array[sentence, None] for name, array in inputs.items()}
        alone["places"] = alone["places"] * [0, 1, 1]
        for found, expected in zip(run(name, alone, outputs, num_heads=3, scale=0.125), together, strict=True):
            np.testing.assert_array_equal(found[0], expected[sentence])


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("dtype", PREFIXES)
def test_sentences_may_have_any_slots(dtype: Any, beams: int) -> None:
    """Results and written entries equal those of sentences in slots 0 .. n-1; other slots stay unchanged."""
    random, settings = np.random.default_rng(9), {"num_heads": 3, "scale": 0.125}
    slots, lengths = random.permutation(14)[:9], random.integers(beams, 24, 9)
    inputs = cached(dtype, beams, lengths, slots, 14, 24)
    in_order = inputs | {name: inputs[name][slots] for name in ("key", "value", "visible")}
    in_order["places"] = inputs["places"].copy()
    in_order["places"][:, :, 0] = np.arange(9)[:, None]
    name, types = f"{PREFIXES[dtype]}SelfAttention", {"output": np.float32, "keys": dtype, "values": dtype}
    found, *written = run(name, inputs, types, **settings)
    expected, *others = run(name, in_order, types, **settings)
    np.testing.assert_array_equal(found, expected)
    for before, after, other in zip((inputs["key"], inputs["value"]), written, others, strict=True):
        np.testing.assert_array_equal(after[slots], other)
        np.testing.assert_array_equal(np.delete(after, slots, 0), np.delete(before, slots, 0))

    name = f"{PREFIXES[dtype]}CrossAttention"
    memory, in_slots = (
        {each: given[each] for each in ("query", "key", "value")} | {"lengths": lengths} for given in (in_order, inputs)
    )
    for suffix, more, dtype_of_output in (("", {}, np.float32), ("Quantized", AS_LEVELS, np.uint8)):
        outputs = {"output": dtype_of_output}
        (expected,) = run(f"{name}{suffix}", {**memory, **more}, outputs, **settings)
        (found,) = run(f"{name}{suffix}", {**in_slots, **more, "places": inputs["places"]}, outputs, **settings)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("beams", [1, 3])
def test_sums_of_quantized_values_do_not_overflow(beams: int) -> None:
    """More entries than any model has, with the largest quantized weights and values."""
    entries = quantized(np.full((1, 2, 3000, 64), 3.0, np.float32), np.int8)
    query = np.zeros((1, beams, 128), np.float32)
    inputs = {"query": query, "key": entries, "value": entries, "lengths": np.array([3000])}
    (found,) = run("Int8CrossAttention", inputs, {"output": np.float32}, num_heads=2, scale=1.0)
    np.testing.assert_allclose(found, 3.0, rtol=1e-4)


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_nan_stays_in_its_sentence(where: str, wrong: float, beams: int) -> None:
    random = np.random.default_rng(10)
    given = {
        "query": random.normal(size=(3, beams, 128)).astype(np.float32),
        "key": random.normal(size=(3, 2, 9, 64)).astype(np.float32),
        "value": random.normal(size=(3, 2, 9, 64)).astype(np.float32),
    }
    given[where][1, 0, -1] = wrong  # of a query the last head, of keys and values all of the first one's last entry
    for name in ("key", "value"):
        (given[name],) = run("Int8Entries", {"floats": given[name]}, {"entries": np.int8}, num_heads=2)
    inputs = {**given, "lengths": np.array([9, 9, 9])}
    (found,) = run("Int8CrossAttention", inputs, {"output": np.float32}, num_heads=2, scale=0.125)
    assert np.isfinite(found[[0, 2]]).all()
    heads = np.isnan(found[1].reshape(beams, 2, 64))
    assert heads[0, 1 if where == "query" else 0].all()
    assert not heads[:, 0 if where == "query" else 1].any()
