"""The part of an aligner that places tags reads the sources that searches have encoded."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.encoded_sources import EncodedSources
from jumok_serve.runtime.graph_checks.contract import EncodedSource, find_encoded_source
from jumok_serve.runtime.graphs import Graphs, Pairs
from tests.support.models.native_operators import needs_library

MODELS = Path(__file__).parents[3] / "models"
COMMITTED = MODELS / "multi30k-en-de-transformer"
TENSOR = EncodedSource("encoded", "encoded", quantized=True)


def made_pairs(rows: int, vocabulary: int = 6000) -> Pairs:
    chosen = np.random.default_rng(7)
    sources, targets = chosen.integers(4, 20, (2, rows))
    source_ids, target_ids = (
        chosen.integers(4, vocabulary, (rows, int(lengths.max()))) for lengths in (sources, targets)
    )
    source_ids[np.arange(source_ids.shape[1]) >= sources[:, None]] = 0
    return Pairs(source_ids, sources, np.full(rows, 2), target_ids, targets)


def contents(model: str, *names: str) -> list[bytes]:
    return [(MODELS / model / "int8" / f"{name}.onnx").read_bytes() for name in names]


@pytest.mark.parametrize("model", ["multi30k-en-de-transformer", "software-en-de", "software-ko-en"])
def test_encoder_and_aligner_have_one_encoded_source(model: str) -> None:
    found = find_encoded_source(*contents(model, "encoder_native", "aligner"))
    assert found is not None
    assert found.quantized


def test_graphs_that_do_not_fit_have_none() -> None:
    (aligner,) = contents("multi30k-en-de-transformer", "aligner")
    others = [*contents("multi30k-en-de-transformer", "encoder"), *contents("software-en-de", "encoder_native")]
    assert [find_encoded_source(other, aligner) for other in others] == [None, None]
    assert find_encoded_source(*contents("multi30k-en-de-lstm", "encoder", "aligner")) is None


@needs_library
@pytest.mark.parametrize("layers", [[0], [2, 1]])
def test_the_attention_is_that_of_the_aligner(layers: list[int]) -> None:
    bundle, pairs = Bundle.open(COMMITTED), made_pairs(24)
    native, plain = (Graphs(bundle, "int8", device=CPU, threads=1, native=one) for one in (True, False))
    found, wanted = native.cross_attention(layers, pairs), plain.cross_attention(layers, pairs)
    for row, (source, target) in enumerate(zip(pairs.source_lengths, pairs.target_lengths, strict=True)):
        own, others = (values[row, ..., :target, :source] for values in (found, wanted))
        assert np.abs(own - others).mean() < 2e-3  # a value that is rounded differently differs in its last bit
    native.encode(pairs.source_ids[:10], pairs.source_lengths[:10])  # as a search does
    np.testing.assert_array_equal(native.cross_attention(layers, pairs), found)
    alone = Pairs(*(values[:1] for values in pairs))
    source, target = pairs.source_lengths[0], pairs.target_lengths[0]
    of_one = native.cross_attention(layers, alone)[0, ..., :target, :source]
    np.testing.assert_allclose(of_one, found[0, ..., :target, :source], atol=1e-6)


@needs_library
def test_floats_are_read_too(tiny_bundle: Path) -> None:
    bundle, pairs = Bundle.open(tiny_bundle), made_pairs(5, vocabulary=20)
    native, plain = (Graphs(bundle, "fp32", device=CPU, threads=1, native=one) for one in (True, False))
    for row, (source, target) in enumerate(zip(pairs.source_lengths, pairs.target_lengths, strict=True)):
        own, others = (graphs.cross_attention([0], pairs)[row, ..., :target, :source] for graphs in (native, plain))
        np.testing.assert_allclose(own, others, atol=1e-5)


def encoded(source_ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    assert source_ids.shape[1] == lengths.max()
    return np.repeat(source_ids[:, :, None], 4, axis=2).astype(np.uint8)


def test_kept_sources_are_not_encoded_again() -> None:
    kept = EncodedSources(TENSOR)
    ids, lengths = np.array([[5, 6, 7], [8, 9, 0]]), np.array([3, 2])
    runs: list[int] = []

    def encode(source_ids: NDArray[np.int64], of_sources: NDArray[np.int64]) -> NDArray[np.uint8]:
        runs.append(len(source_ids))
        return encoded(source_ids, of_sources)

    assert not kept.wanted
    np.testing.assert_array_equal(kept.padded(ids, lengths, encode), encoded(ids, lengths))
    assert kept.wanted
    kept.keep(ids[1:, :2], lengths[1:], encoded(ids[1:, :2], lengths[1:]))
    np.testing.assert_array_equal(kept.padded(ids, lengths, encode), encoded(ids, lengths))
    kept.keep(ids, lengths, encoded(ids, lengths))
    np.testing.assert_array_equal(kept.padded(ids, lengths, encode), encoded(ids, lengths))
    assert runs == [2, 1]
    kept.clear()
    assert not kept.wanted
    kept.padded(ids, lengths, encode)
    assert runs == [2, 1, 2]


def test_the_oldest_sources_leave() -> None:
    kept = EncodedSources(TENSOR, most_bytes=3 * 8)
    ids, lengths = np.arange(10).reshape(5, 2) + 1, np.full(5, 2)
    kept.keep(ids, lengths, encoded(ids, lengths))
    missing: list[list[int]] = []

    def encode(source_ids: NDArray[np.int64], of_sources: NDArray[np.int64]) -> NDArray[np.uint8]:
        missing.append(source_ids[:, 0].tolist())
        return encoded(source_ids, of_sources)

    np.testing.assert_array_equal(kept.padded(ids, lengths, encode), encoded(ids, lengths))
    assert missing == [[1, 3]]
    long, length = np.full((1, 7), 9), np.array([7])
    kept.keep(long, length, encoded(long, length))  # alone more than all may take
    np.testing.assert_array_equal(kept.padded(ids, lengths, encode), encoded(ids, lengths))
    assert missing == [[1, 3]] * 2
