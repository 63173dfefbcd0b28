"""Scores and attention of the tiny model are PyTorch's."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from jumok_export.models.transformer import Transformer
from jumok_proto.attention import ATTENTION_KINDS
from jumok_serve import Translator
from tests.support.data import Sentences
from tests.support.models.variants import edited, multilingual, unconstrained

START, EOS = 2, 3
TEXTS = ["A dog runs.", "", "The old woman reads a book in the park.", "A girl."]


class Direction(NamedTuple):
    """Arguments of calls, and the tokens that their languages add."""

    arguments: dict[str, Any]
    around: tuple[list[int], list[int]]
    start: int
    forced: list[int]


in_languages = pytest.mark.parametrize(
    "direction",
    [
        Direction({}, ([], [3]), 2, []),
        Direction({"source_language": "fr-FR", "target_language": "pt-BR"}, ([21, 22], [3, 23]), 5, [6]),
    ],
)


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translator]:
    """A translator without suppressed tokens, so that no constraint changes probabilities."""
    bundle = edited(tiny_bundle, tmp_path_factory.mktemp("bundle") / "unconstrained", unconstrained)
    with Translator(bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator


@pytest.fixture(scope="module")
def polyglot(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translator]:
    bundle = edited(tiny_bundle, tmp_path_factory.mktemp("bundle") / "multilingual", multilingual)
    with Translator(bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator


def attention(model: Transformer, source: list[int], start: int, target: list[int]) -> list[np.ndarray]:
    """Compute cross, encoder and decoder attention of one target, each [layers, heads, ...]."""
    ids, length = torch.tensor([source]), torch.tensor([len(source)])
    with torch.no_grad():
        of_kinds = model.align(ids, length, torch.tensor([start]), torch.tensor([target]), torch.tensor([len(target)]))
    return [of_kind[0].numpy() for of_kind in of_kinds]


def log_probabilities(model: Transformer, source: list[int], start: int, target: list[int]) -> list[float]:
    """Compute the log-probability of every token of a target from PyTorch's logits."""
    given = (torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([start]), torch.tensor([target]))
    with torch.no_grad():
        logits = model(*given)
    return [float(row[token]) for row, token in zip(logits[0].double().log_softmax(-1), target, strict=True)]


@in_languages
def test_attention_of_given_targets(polyglot: Translator, tiny_model: Transformer, direction: Direction) -> None:
    arguments, around, start, forced = direction
    tokenizer = polyglot.tokenizer
    targets = ["Ein Hund rennt.", None, "", "Ein Mann"]
    answers = polyglot.align(TEXTS, targets, kinds=ATTENTION_KINDS, each_head=True, **arguments)
    own = polyglot.translate(TEXTS, **arguments)
    for text, target, translation, answer in zip(TEXTS, targets, own, answers, strict=True):
        if not text:
            assert (answer.target, answer.source_tokens, answer.pairs()) == ("", (), ())
            assert all(answer.attention(kind).mean == () for kind in ATTENTION_KINDS)
            continue
        best = translation.hypotheses[0]
        source = [*around[0], *tokenizer.encode(text), *around[1]]
        ids = [*forced, *tokenizer.encode_target(target), 3] if target else list(best.token_ids)
        assert answer.target == (target or best.text)
        assert [str(token) for token in answer.source_tokens] == tokenizer.source_tokens(source)
        assert [str(token) for token in answer.target_tokens] == tokenizer.tokens(ids)
        assert [str(token) for token in answer.decoder_tokens] == tokenizer.tokens([start, *ids[:-1]])
        inside = range(len(around[0]), len(source) - len(around[1]))
        assert [token.special for token in answer.source_tokens] == [at not in inside for at in range(len(source))]
        special = [token in {0, 2, 3, start} or (index == 0 and [token] == forced) for index, token in enumerate(ids)]
        assert [token.special for token in answer.target_tokens] == special
        assert [token.special for token in answer.decoder_tokens] == [True, *special[:-1]]
        for kind, expected in zip(ATTENTION_KINDS, attention(tiny_model, source, start, ids), strict=True):
            found = answer.attention(kind)
            assert (found.layers, found.heads) == ((0,), (0, 1))
            assert np.shape(found.mean) == (len(found.rows), len(found.columns))
            np.testing.assert_allclose(np.array(found.by_head), expected, atol=1e-5)
            np.testing.assert_allclose(np.array(found.mean), expected.mean(axis=(0, 1)), atol=1e-5)


@in_languages
@pytest.mark.parametrize("prefixes", [None, ["Ein Mann", "Ein", None, "Zwei"]])
@pytest.mark.parametrize("options", [{"beam_size": 1}, {"beam_size": 3, "num_hypotheses": 3}])
def test_attention_of_hypotheses(
    polyglot: Translator,
    tiny_model: Transformer,
    direction: Direction,
    prefixes: list[str | None] | None,
    options: dict[str, Any],
) -> None:
    tokenizer = polyglot.tokenizer
    arguments, around, start, forced = direction
    settings = {"max_length": 9, **arguments, **options}
    answers = polyglot.translate(TEXTS, attention=True, target_prefix=prefixes, **settings)
    plain = polyglot.translate(TEXTS, target_prefix=prefixes, **settings)
    for text, prefix, answer, other in zip(TEXTS, prefixes or [None] * len(TEXTS), answers, plain, strict=True):
        assert [one.token_ids for one in answer.hypotheses] == [one.token_ids for one in other.hypotheses]
        assert (other.source_tokens, other.hypotheses[0].attention) == ((), None)
        if not text:
            assert (answer.source_tokens, answer.hypotheses[0].attention) == ((), ())
            continue
        source = [*around[0], *tokenizer.encode(text), *around[1]]
        assert answer.source_tokens == tuple(tokenizer.source_tokens(source))
        before = [] if prefix is None else [*forced, *tokenizer.encode_target(prefix)]
        for hypothesis in answer.hypotheses:
            cross, _, _ = attention(tiny_model, source, start, [*before, *hypothesis.token_ids])
            expected = cross.mean(axis=(0, 1))[len(before) :]
            found = np.array(hypothesis.attention)
            assert found.shape == (len(hypothesis.token_ids), len(answer.source_tokens))
            np.testing.assert_allclose(found, expected, atol=1e-5)
            np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)


def test_scores(translator: Translator, tiny_model: Transformer, sentences: Sentences) -> None:
    tokenizer = translator.tokenizer
    pairs = list(zip(sentences[0], sentences[1], strict=True))
    for (source, target), score in zip(pairs, translator.score(*sentences), strict=True):
        token_ids = [*tokenizer.encode_target(target), EOS]
        source_ids = [*tokenizer.encode(source), EOS]
        expected = log_probabilities(tiny_model, source_ids, START, token_ids)
        assert score.token_ids == tuple(token_ids)
        assert score.tokens == tuple(tokenizer.tokens(token_ids))
        assert score.token_scores == pytest.approx(expected, abs=1e-4)
        assert score.score == pytest.approx(math.fsum(expected) / len(token_ids), abs=1e-4)
        assert (score.source_token_count, score.source_truncated) == (len(source_ids), False)
        assert (score.model, score.model_version) == (translator.name, translator.manifest.version)


def test_a_forced_first_token_is_part_of_the_target_and_certain(polyglot: Translator, tiny_model: Transformer) -> None:
    tokenizer = polyglot.tokenizer
    score = polyglot.score("A dog.", "Ein Hund.", source_language="fr-FR", target_language="pt-BR", length_penalty=0.5)
    token_ids = [6, *tokenizer.encode_target("Ein Hund."), EOS]
    source_ids = [21, 22, *tokenizer.encode("A dog."), EOS, 23]
    expected = [0.0, *log_probabilities(tiny_model, source_ids, 5, token_ids)[1:]]
    assert score.token_ids == tuple(token_ids)
    assert score.token_scores[0] == 0.0
    assert score.token_scores == pytest.approx(expected, abs=1e-4)
    assert score.score == pytest.approx(math.fsum(expected) / len(token_ids) ** 0.5, abs=1e-4)
