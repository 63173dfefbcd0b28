"""Measures of the comparison of trained models, checked by other computations."""

import copy
import math
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.quality_measures.entropies import attention_entropy, random_scores, relative_entropy, without_division
from benchmarks.quality_measures.gradients import relative_gradients, token_gradients
from benchmarks.quality_measures.translations import TestSet, by_length, differing
from jumok_export.models.attention import MultiHeadAttention
from jumok_export.models.recurrent import RecurrentSizes, make_recurrent
from jumok_export.models.seq2seq import Seq2Seq
from jumok_export.models.transformer import Transformer
from jumok_export.training.corpus import Batch, ParallelCorpus
from jumok_export.training.vocabulary import START, Vocabulary


@pytest.fixture(scope="module")
def batch(sentences: tuple[Sequence[str], Sequence[str]], vocabulary: Vocabulary) -> Batch:
    pairs = ParallelCorpus(*sentences, vocabulary, vocabulary)
    return ParallelCorpus.collate([pairs[index] for index in range(4)])


def test_sentences_are_binned_by_their_words() -> None:
    counts = [1, 8, 9, 11, 12, 15, 16, 40]
    tests = TestSet(sources=[" a  " * count for count in counts], references=["b"] * len(counts))
    assert by_length(tests) == {"1-8": [0, 1], "9-11": [2, 3], "12-15": [4, 5], "over 15": [6, 7]}


def test_int8_differs_where_its_translations_do() -> None:
    texts = {"fp32 beam 5": ["a", "b", "c"], "int8 beam 5": ["a", "x", "C"]}
    assert differing(texts, 5) == 2


def test_entropy_is_relative_to_that_of_even_weights() -> None:
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    assert relative_entropy(weights, torch.tensor(4)).tolist() == pytest.approx([1.0, 0.0, 0.5])
    assert relative_entropy(weights[2], torch.tensor(2)).item() == pytest.approx(1.0)


@pytest.mark.parametrize("width", [16, 256])
def test_products_of_random_vectors_vary_with_their_width(width: int) -> None:
    found = random_scores(width)
    assert found["variance"] == pytest.approx(width, rel=0.05)
    assert found["entropy"] < found["scaled_entropy"] < 1
    # Divided, scores are about standard normal whatever the width.
    normal = torch.randn(20_000, 14, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(-1)
    expected = -(normal * normal.log()).sum(-1).mean() / math.log(14)
    assert found["scaled_entropy"] == pytest.approx(expected.item(), abs=0.01)


def test_the_entropy_of_a_model_is_that_of_its_queries_and_keys(tiny_model: Transformer, batch: Batch) -> None:
    """Each sentence alone, without padding; queries and keys from the projections."""
    [layer] = tiny_model.decoder
    attention = layer.cross_attention
    assert isinstance(attention, MultiHeadAttention)
    projected: list[torch.Tensor] = []
    hooks = [
        projection.register_forward_hook(lambda *arguments: projected.append(arguments[-1]))
        for projection in (attention.query_projection, attention.key_projection)
    ]
    found: dict[bool, list[float]] = {True: [], False: []}
    for row in range(len(batch.source_ids)):
        source = batch.source_ids[row : row + 1, : batch.source_lengths[row]]
        target = batch.target_ids[row : row + 1, : batch.target_lengths[row]]
        projected.clear()
        with torch.no_grad():
            tiny_model(source, batch.source_lengths[row : row + 1], torch.tensor([START]), target)
        by_size = {len(each[0]): each[0] for each in projected}
        query, key = by_size[target.shape[1]], by_size[source.shape[1]]
        assert len(by_size) == 2
        for head in (slice(0, 16), slice(16, 32)):
            products = query[:, head] @ key[:, head].T
            for divided, scores in ((True, products / 4), (False, products)):
                weights = scores.softmax(-1)
                found[divided] += (-torch.xlogy(weights, weights).sum(-1) / math.log(source.shape[1])).tolist()
    for hook in hooks:
        hook.remove()
    expected, undivided = (sum(values) / len(values) for values in found.values())
    assert attention_entropy(tiny_model, [batch]) == pytest.approx(expected, abs=1e-5)
    with without_division(tiny_model):
        assert attention_entropy(tiny_model, [batch]) == pytest.approx(undivided, abs=1e-5)
    assert attention.scale is None
    assert undivided < expected


@pytest.mark.parametrize("attention", ["none", "general", "transformer"])
def test_gradients_are_slopes_of_the_loss(
    attention: Literal["none", "general", "transformer"], tiny_model: Transformer, batch: Batch
) -> None:
    """By differences, of the second sentence alone: its gradients do not depend on the batch."""
    vocabulary = tiny_model.sizes.source_vocabulary
    model: Seq2Seq = copy.deepcopy(tiny_model).double()
    if attention != "transformer":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            sizes = RecurrentSizes(
                source_vocabulary=vocabulary, target_vocabulary=vocabulary, attention=attention, embedding=6, width=8
            )
            model = make_recurrent(sizes).double().eval()
    embedding = model.get_submodule("source_embedding")
    assert isinstance(embedding, nn.Embedding)
    found = token_gradients(model, batch)
    length = int(batch.source_lengths[1])
    assert found.shape == batch.source_ids.shape
    assert bool((found[1, length:] == 0).all())
    alone = Batch(
        batch.source_ids[1:2, :length],
        batch.source_lengths[1:2],
        batch.target_ids[1:2, : batch.target_lengths[1]],
        batch.target_lengths[1:2],
    )

    def loss(place: int, component: int, change: float) -> float:
        calls: list[int] = []

        def moved(_: object, __: object, embedded: torch.Tensor) -> torch.Tensor | None:
            calls.append(1)
            if len(calls) > 1:
                return None
            embedded = embedded.clone()
            embedded[0, place, component] += change
            return embedded

        hook = embedding.register_forward_hook(moved)
        with torch.no_grad():
            logits = model(alone.source_ids, alone.source_lengths, torch.tensor([START]), alone.target_ids)
        hook.remove()
        return float(F.cross_entropy(logits[0], alone.target_ids[0], reduction="sum"))

    for place in (0, length - 1):
        slopes = [
            (loss(place, component, 1e-5) - loss(place, component, -1e-5)) / 2e-5
            for component in range(embedding.embedding_dim)
        ]
        assert found[1, place].item() == pytest.approx(math.hypot(*slopes), rel=1e-5)


def test_gradients_are_compared_with_an_even_share() -> None:
    assert relative_gradients(torch.full((13,), 0.3), parts=10).tolist() == pytest.approx([1.0] * 10)
    # Middles of 4 tokens at 1/8, 3/8, 5/8, 7/8: of three parts, the second has two.
    assert relative_gradients(torch.tensor([1.0, 2.0, 4.0, 9.0]), parts=3).tolist() == pytest.approx(
        [4 * 1 / 16, 4 * 3 / 16, 4 * 9 / 16]
    )
    with pytest.raises(ValueError, match="10 parts need as many tokens, got 4"):
        relative_gradients(torch.ones(4))
