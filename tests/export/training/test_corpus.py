"""Training data: invalid files, pairs, and batches within their budget."""

import gzip
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from jumok_export.training.corpus import ParallelCorpus, TokenBudgetSampler, read_files
from jumok_export.training.vocabulary import END, PAD, START, Vocabulary, train_vocabulary
from jumok_serve.evaluation.parallel_text import CorpusError
from tests.support.data import Sentences


def test_several_files_plain_and_gzip_are_one_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "a.de").write_text("eins\nzwei\n", encoding="utf-8")
    (tmp_path / "b.en.gz").write_bytes(gzip.compress(b"three\n"))
    (tmp_path / "b.de.gz").write_bytes(gzip.compress(b"drei\n"))
    sources, targets = read_files([tmp_path / "a.en", tmp_path / "b.en.gz"], [tmp_path / "a.de", tmp_path / "b.de.gz"])
    assert sources == ["one", "two", "three"]
    assert targets == ["eins", "zwei", "drei"]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"one\ntwo\n", b"eins\n", "a.en has 2 lines and .*a.de has 1"),
        (b"one\n\xe9t\xe9\n", b"eins\nzwei\n", "a.en, line 2, byte 1: 0xe9 is not UTF-8"),
        (b"", b"", "a.en has no lines"),
        (b"one\n", None, "b.de.gz cannot be read: No such file or directory"),
        (b"one\n", b"eins\n", "b.de.gz cannot be read: Not a gzipped file"),
    ],
)
def test_an_invalid_corpus_is_refused(source: bytes, target: bytes | None, message: str, tmp_path: Path) -> None:
    name = "b.de.gz" if "gz" in message else "a.de"
    (tmp_path / "a.en").write_bytes(source)
    if target is not None:
        (tmp_path / name).write_bytes(target)
    with pytest.raises(CorpusError, match=message):
        read_files([tmp_path / "a.en"], [tmp_path / name])


def test_pairs_end_with_the_end_token_and_long_ones_are_left_out(sentences: Sentences, vocabulary: Vocabulary) -> None:
    whole = ParallelCorpus(*sentences, vocabulary, vocabulary)
    assert len(whole) == len(sentences[0])
    assert whole.left_out == 0
    short = ParallelCorpus(*sentences, vocabulary, vocabulary, max_length=20)
    assert 0 < len(short) < len(whole)
    assert short.left_out == len(whole) - len(short)
    assert short.lengths.max() <= 20
    for source, target, text, links in short.pairs:
        assert links is None
        assert source[-1] == target[-1] == END
        assert vocabulary.decode(target.tolist()) == text
    batch = ParallelCorpus.collate(short.pairs[:5])
    assert batch.source_ids.shape == (5, int(batch.source_lengths.max()))
    assert (batch.target_ids == PAD).sum() == (batch.target_lengths.max() - batch.target_lengths).sum()
    assert batch.references == tuple(example.text for example in short.pairs[:5])


def test_segmentations_are_sampled_by_seed_and_mean_the_same(sentences: Sentences, vocabulary: Vocabulary) -> None:
    def encoded(alpha: float, seed: int) -> list[list[int]]:
        return [ids.tolist() for ids in vocabulary.encode_all(sentences[0], alpha, seed)]

    assert encoded(0.3, 1) == encoded(0.3, 1)
    assert encoded(0.3, 1) != encoded(0.3, 2)
    assert encoded(0.0, 1) == encoded(0.0, 2) == [vocabulary.encode(line) for line in sentences[0]]
    assert [vocabulary.decode(ids) for ids in encoded(0.3, 1)] == sentences[0]


def lengths_of(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(1, 40, (count, 2))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("devices", [1, 3])
def test_batches_keep_their_budget_and_hold_every_pair(shuffle: bool, devices: int) -> None:
    lengths = lengths_of(500)
    sampler = partial(TokenBudgetSampler, lengths, 200, seed=3, devices=devices, shuffle=shuffle)
    parts = [list(sampler(rank=rank)) for rank in range(devices)]
    for batch in (batch for part in parts for batch in part):
        assert lengths[batch].max() * len(batch) <= 200
    counts = np.bincount([index for part in parts for batch in part for index in batch], minlength=500)
    assert counts.min() == 1
    if devices == 1 or not shuffle:
        assert counts.max() == 1  # once an epoch, and on one device only
    else:
        assert len({len(part) for part in parts}) == 1
        twice = sum(len(part) for part in parts) - len(TokenBudgetSampler(lengths, 200, seed=3, shuffle=True))
        assert twice < devices
        assert (counts > 1).sum() <= twice * 200


def test_batches_are_of_similar_length_and_different_every_epoch() -> None:
    lengths = lengths_of(500)
    first, second = (list(TokenBudgetSampler(lengths, 400, seed=seed, shuffle=True)) for seed in (1, 2))
    assert first != second
    longest = lengths.max(axis=1)
    padding = sum(longest[batch].max() * len(batch) for batch in first) / longest.sum()
    assert padding < 1.1


def test_a_pair_over_the_budget_is_a_batch_of_its_own() -> None:
    lengths = np.array([[3, 3], [90, 2], [3, 2]])
    batches = list(TokenBudgetSampler(lengths, 10, shuffle=False))
    assert sorted(map(sorted, batches)) == [[0, 2], [1]]


def test_more_devices_than_batches() -> None:
    for rank in range(3):
        sampler = TokenBudgetSampler(lengths_of(2), 1000, rank=rank, devices=3, shuffle=False)
        assert len(list(sampler)) == len(sampler) == 1


def test_special_tokens_are_where_they_should_be(vocabulary: Vocabulary) -> None:
    assert vocabulary.encode("") == [END]
    assert vocabulary.decode([START, *vocabulary.encode("The cat"), *vocabulary.encode("sleeps")]) == "The cat"
    with pytest.raises(ValueError, match="could not train a vocabulary of 5000 tokens"):
        train_vocabulary(["a b c"], size=5000, kind="unigram", character_coverage=1.0, seed=1)


def test_symbols_are_one_token_in_every_segmentation(sentences: Sentences) -> None:
    symbols = ("%1", "$(ARG1)", "_")
    lines = [f"{line} 1 % (AGR) $ %1 of $(ARG1)_x" for line in sentences[0]]
    model = train_vocabulary(lines, size=150, kind="unigram", character_coverage=1.0, seed=1, symbols=symbols)
    vocabulary, plain = Vocabulary(model, symbols), Vocabulary(model)
    expected = [sum(line.count(symbol) for symbol in symbols) for line in lines]
    ids = [vocabulary.encode(symbol)[-2] for symbol in symbols]

    def counts(segmented: list[torch.Tensor]) -> list[int]:
        return [int(np.isin(tokens.numpy(), ids).sum()) for tokens in segmented]

    sampled = vocabulary.encode_all(lines, 0.1, 1)
    assert counts(sampled) == expected
    assert [vocabulary.decode(tokens.tolist()) for tokens in sampled] == lines
    assert any(not torch.equal(a, b) for a, b in zip(sampled, vocabulary.encode_all(lines, 0.0, 1), strict=True))
    assert counts(plain.encode_all(lines, 0.1, 1)) != expected
    assert (pickle.loads(pickle.dumps(vocabulary)).encode_all(lines, 0.1, 1)[0] == sampled[0]).all()
