"""Guided alignment: mapping to segmentations, a planted order that one head learns, resumption."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from jumok_export.models.encoder_decoder import CrossAttending
from jumok_export.models.ssru import SSRUTransformer
from jumok_export.training.alignment import Alignment
from jumok_export.training.callbacks import read_metrics
from jumok_export.training.checkpoint import Checkpoint, load_checkpoint
from jumok_export.training.corpus import ParallelCorpus
from jumok_export.training.datamodule import ALIGNMENT
from jumok_export.training.module import alignment_loss
from jumok_export.training.train import train
from jumok_export.training.vocabulary import START, Vocabulary
from tests.export.training.test_training import DATA, configuration, weights
from tests.support.data import Sentences
from tests.support.reversing import GUIDED as GUIDED_HEAD
from tests.support.reversing import sentences as reversed_sentences
from tests.support.reversing import train_reversing, translated

GUIDED = """
[training.guided_alignment]
weight = 1.0
head = 1
"""


def write(path: Path, **changes: str) -> Path:
    """Write the tests' configuration with guided alignment and changes."""
    path.write_text(configuration(**changes).replace("[bundle]", f"{GUIDED}\n[bundle]"), encoding="utf-8")
    return path


def head_follows_order(checkpoint: Checkpoint, layer: int, head: int, text: str) -> float:
    """Share of target words whose first token attends most to its source word."""
    source, target = checkpoint.source_vocabulary, checkpoint.target_vocabulary
    words = text.split()
    source_ids, target_ids = source.encode(text), target.encode(translated(text))
    assert isinstance(checkpoint.model, CrossAttending)
    with torch.no_grad():
        ids, lengths = torch.tensor([source_ids]), torch.tensor([len(source_ids)])
        _, attention = checkpoint.model.attending(ids, lengths, torch.tensor([START]), torch.tensor([target_ids]))
    best = attention[layer][0, head].argmax(dim=-1).tolist()
    of_source = word_of_tokens(source, words)
    of_target = word_of_tokens(target, translated(text).split())
    hits = [
        of_source[best[token]] == len(words) - 1 - word
        for token, word in enumerate(of_target[:-1])
        if token == 0 or of_target[token - 1] != word
    ]
    return hits.count(True) / len(hits)


def word_of_tokens(vocabulary: Vocabulary, words: list[str]) -> list[int]:
    """Index of the word that each token belongs to; -1 of the end token."""
    ids = vocabulary.encode(" ".join(words))
    ends = np.cumsum(vocabulary.piece_lengths[ids])
    ends_of_words = np.cumsum([len(word) + 1 for word in words])
    return [*np.searchsorted(ends_of_words, ends[:-1]).tolist(), -1]


def test_the_guided_head_learns_the_planted_order(reversing: Path) -> None:
    checkpoint = load_checkpoint(reversing)
    assert checkpoint.configuration.guided_head == GUIDED_HEAD
    texts = reversed_sentences(400, seed=3)[:50]  # of the training text
    shares = {
        (layer, head): sum(head_follows_order(checkpoint, layer, head, text) for text in texts) / len(texts)
        for layer in (0, 1)
        for head in (0, 1)
    }
    guided = shares.pop(GUIDED_HEAD)
    assert guided > max(0.9, *shares.values())
    assert sum(shares.values()) / len(shares) < 0.85  # nothing makes the other heads align


def test_the_alignment_loss_falls(tmp_path: Path) -> None:
    train_reversing(tmp_path, epochs=10)
    losses = [float(row["alignment_loss"]) for row in read_metrics(tmp_path / "run")]
    assert losses[-1] < losses[0] / 2


def test_a_resumed_guided_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    train(write(path, max_epochs="1"), tmp_path / "resumed", data=DATA)
    kept = (tmp_path / "resumed" / ALIGNMENT).stat().st_mtime_ns
    train(write(path), tmp_path / "resumed", data=DATA)
    assert (tmp_path / "resumed" / ALIGNMENT).stat().st_mtime_ns == kept
    train(path, tmp_path / "straight", data=DATA)
    for name, expected in weights(tmp_path / "straight").items():
        torch.testing.assert_close(weights(tmp_path / "resumed")[name], expected, rtol=0, atol=0)


def test_links_follow_the_characters_in_every_segmentation(sentences: Sentences, vocabulary: Vocabulary) -> None:
    alignment = Alignment.of_texts(*sentences, vocabulary, vocabulary, max_length=100)
    again = Alignment.from_bytes(alignment.to_bytes())
    likely = spelled_links(again, sentences, vocabulary, 0.0)
    sampled = spelled_links(again, sentences, vocabulary, 0.2)
    assert sum(map(len, likely)) > len(likely)
    assert likely != sampled
    # Each pair of characters that sampled tokens join is of a likely link, or of tokens that reach over its ends.
    for mine, others in zip(likely, sampled, strict=True):
        assert bool(mine) == bool(others)
        for target, source in mine:
            assert any(target & others_target and source & others_source for others_target, others_source in others)


def spelled_links(
    alignment: Alignment, sentences: Sentences, vocabulary: Vocabulary, alpha: float
) -> list[list[tuple[frozenset[int], frozenset[int]]]]:
    """Characters of both tokens of every link, by pair."""
    ids = [vocabulary.encode_all(side, alpha, 5 + index) for index, side in enumerate(sentences)]
    found = []
    for source, target, links in zip(*ids, alignment.of_tokens(*ids), strict=True):
        of_source, of_target = characters(vocabulary, source), characters(vocabulary, target)
        sums = torch.zeros(len(target)).index_add(0, links[:, 0].long(), links[:, 2])
        torch.testing.assert_close(sums, (sums > 0).float())
        found.append([(of_target[int(t)], of_source[int(s)]) for t, s, _ in links.tolist()])
    return found


def characters(vocabulary: Vocabulary, ids: Tensor) -> list[frozenset[int]]:
    lengths = vocabulary.piece_lengths[ids.numpy()]
    ends = np.cumsum(lengths)
    return [frozenset(range(end - length, end)) for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]


def test_pairs_that_are_long_empty_or_unknown_have_no_links(sentences: Sentences, vocabulary: Vocabulary) -> None:
    texts = ["", "☃ ☃", *sentences[0]], [*sentences[1][:2], *sentences[1]]
    alignment = Alignment.of_texts(*texts, vocabulary, vocabulary, max_length=20)
    corpus = ParallelCorpus(*texts, vocabulary, vocabulary, alignment=alignment)
    links = [-1 if example.links is None else len(example.links) for example in corpus.pairs]
    assert links[:2] == [0, 0]
    assert all(count == 0 for count, longest in zip(links, corpus.lengths.max(axis=1), strict=True) if longest > 20)
    assert sum(links) > 0
    nothing = Alignment.of_texts([""], ["a"], vocabulary, vocabulary, max_length=20)
    (none,) = nothing.of_tokens([torch.tensor([3])], [torch.tensor([5, 3])])
    assert none.shape == (0, 3)


def test_the_loss_is_the_cross_entropy_by_hand(sentences: Sentences, vocabulary: Vocabulary) -> None:
    alignment = Alignment.of_texts(*sentences, vocabulary, vocabulary, max_length=100)
    corpus = ParallelCorpus(*sentences, vocabulary, vocabulary, alignment=alignment)
    examples = [corpus[index] for index in (3, 0, 7)]
    batch = ParallelCorpus.collate(examples)
    shape = (*batch.target_ids.shape, batch.source_ids.shape[1])
    attention = torch.rand(shape, generator=torch.Generator().manual_seed(1)).softmax(dim=-1)
    terms, tokens = 0.0, set()
    for sentence, example in enumerate(examples):
        assert example.links is not None
        for target, source, weight in example.links.tolist():
            terms -= weight * attention[sentence, int(target), int(source)].log().item()
            tokens.add((sentence, int(target)))
    assert alignment_loss(attention, batch.links).item() == pytest.approx(terms / len(tokens), rel=1e-5)
    assert alignment_loss(attention, None).item() == 0.0
    zeros = alignment_loss(torch.zeros(shape, requires_grad=True), batch.links)
    assert torch.isfinite(zeros)


@pytest.mark.parametrize("decoder", ["attention", "ssru"])
def test_mixed_precision_and_both_decoders_are_guided_and_loaded(decoder: str, tmp_path: Path) -> None:
    chosen = {"decoder_layers": f'1\ndecoder = "{decoder}"', "max_epochs": '1\nprecision = "bf16-mixed"'}
    path = write(tmp_path / "config.toml", **chosen)
    train(path, tmp_path / "run", data=DATA)
    (row,) = read_metrics(tmp_path / "run")
    assert 0 < float(row["alignment_loss"]) < 10
    model = load_checkpoint(tmp_path / "run").model
    assert isinstance(model, SSRUTransformer) == (decoder == "ssru")
    assert set(model.empty_state()) == ({"cell.0"} if decoder == "ssru" else {"key.0", "value.0"})
