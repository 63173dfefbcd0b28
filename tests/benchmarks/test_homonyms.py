"""Words with two meanings: the committed Transformer's scores, and where its encoder and decoder look."""

import pytest
import torch

from benchmarks.common.trained import dequantized
from benchmarks.homonyms import ALONE, BUNDLE, CONTEXT, Hiding, Homonyms, Word, measure, read_words, score_words
from jumok_export.training.vocabulary import END
from jumok_serve import Translator


def test_context_shifts_most_words_to_their_meaning() -> None:
    words = read_words()
    assert len({each.word for each in words}) == len(words) == 12
    with Translator(BUNDLE) as translator:
        margins = score_words(translator, words)
    found = Homonyms(margins=margins, shifts={}, heads=[])
    # Two margins lie near 0, so another processor may round them to the other side.
    assert found.chosen == pytest.approx(16, abs=2)
    assert found.shifted == pytest.approx(11, abs=1)


def test_meanings_are_told_apart_by_no_single_head() -> None:
    """With words that take little time; all words give the figures of the page."""
    words = [each for each in read_words() if each.word in {"glasses", "track", "bar"}]
    found = measure(words=words)
    gain = found.shifts[CONTEXT][ALONE] - found.shifts[ALONE][ALONE]
    assert gain > 1
    assert max(max(heads) for heads in found.heads) < gain
    assert found.shifts[ALONE][CONTEXT] > found.shifts[ALONE][ALONE]


def test_hidden_tokens_get_no_weight() -> None:
    text = "Two men at the bank smile."
    word = Word(word="bank", texts=(text, "A bank."), right=("Zwei Männer.", "Ein Ufer."), wrong=("Bank.", "Bank."))
    with Translator(BUNDLE) as translator:
        hiding = Hiding(translator, dequantized(BUNDLE))
        served = sum(score_words(translator, [word])["bank"])
        places = hiding.places("bank", text)
        assert "".join(translator.tokenizer.pieces(text)[place] for place in places) == "▁bank"
        ids = torch.tensor([[*translator.tokenizer.encode(text), END]])
    # Whole, it is the model of the service, but for the rounding of int8.
    assert hiding.shift(word, []) == pytest.approx(served, abs=0.5)
    every = [(layer, head) for layer in range(3) for head in range(4)]
    mask = torch.ones(1, 1, 1, ids.shape[1], dtype=torch.bool)
    with torch.no_grad(), hiding.hide(places, ids.shape[1], every, CONTEXT):
        _, attention = hiding.model.run_encoder(ids, mask)
    others = [place for place in range(ids.shape[1] - 1) if place not in places]
    for weights in attention:  # [1, heads, S, S]
        assert (weights[0][:, places][:, :, others] == 0).all()
        assert (weights[0][:, others][:, :, places] > 0).all()
    with torch.no_grad():
        _, whole = hiding.model.run_encoder(ids, mask)
    assert (whole[0][0][:, places][:, :, others] > 0).all()
