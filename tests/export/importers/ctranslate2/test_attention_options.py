"""Options that need attention give what CTranslate2 gives: coverage penalty, and replaced unknown tokens."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import ctranslate2
import pytest
import torch
from sentencepiece import SentencePieceProcessor

from jumok_export.importers.ctranslate2.importing import import_folder
from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import UNKNOWN, Vocabulary
from jumok_serve import Translator
from tests.support.checkpoints.ctranslate2_folders import open_peer, save, spec_of, tokens_of
from tests.support.data import Sentences

BEAMS = 4


class Pair(NamedTuple):
    """One model in both systems."""

    ours: Translator
    theirs: ctranslate2.Translator
    pieces: SentencePieceProcessor

    def expected(self, texts: list[str], **options: Any) -> list[Any]:
        """CTranslate2's results, each text alone: in a batch it counts padding as source tokens without attention."""
        settings = {
            "beam_size": BEAMS,
            "num_hypotheses": BEAMS,
            "max_decoding_length": 30,
            "return_end_token": True,
            "return_scores": True,
            **options,
        }
        return [self.theirs.translate_batch([self.pieces.encode(text, out_type=str)], **settings)[0] for text in texts]


@pytest.fixture(scope="module")
def pair(tiny_model: Transformer, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The tiny model, which likes the unknown token as much as its most frequent word."""
    home = tmp_path_factory.mktemp("ct2")
    tokens = tokens_of(vocabulary.model)
    model = copy.deepcopy(tiny_model)
    with torch.no_grad():
        model.output.weight[UNKNOWN] = 1.02 * model.output.weight[tokens.index("▁ein")]
    spec = spec_of(model, tokens, alignment_heads=model.sizes.heads)  # the mean of all heads of its one layer
    folder = save(spec, home / "model", vocabulary.model)
    import_folder(folder, home / "bundle", precisions=("fp32",), source_language="en", target_language="de")
    with Translator(home / "bundle", precision="fp32", threads=1) as ours:
        yield Pair(ours, open_peer(folder), SentencePieceProcessor(model_proto=vocabulary.model))


@pytest.mark.parametrize("penalty", [0.0, 0.1, 0.5, 3.0])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_coverage_penalty_orders_hypotheses_as_ctranslate2(
    pair: Pair, sentences: Sentences, penalty: float, length_penalty: float
) -> None:
    texts = sentences[0][:20]
    expected = pair.expected(texts, coverage_penalty=penalty, length_penalty=length_penalty)
    found = pair.ours.translate(
        texts,
        beam_size=BEAMS,
        num_hypotheses=BEAMS,
        max_length=30,
        coverage_penalty=penalty,
        length_penalty=length_penalty,
        early_stopping=True,
    )
    for translation, theirs in zip(found, expected, strict=True):
        assert [list(one.tokens) for one in translation.hypotheses] == theirs.hypotheses
        assert [one.score for one in translation.hypotheses] == pytest.approx(theirs.scores, abs=1e-3)


def test_unknown_tokens_are_replaced_as_by_ctranslate2(pair: Pair, sentences: Sentences) -> None:
    texts = sentences[0][:30]
    found = pair.ours.translate(
        texts, beam_size=BEAMS, num_hypotheses=BEAMS, max_length=30, early_stopping=True, replace_unknowns=True
    )
    replaced = pair.expected(texts, replace_unknowns=True)
    unknown = 0
    for source, ours, theirs in zip(texts, found, replaced, strict=True):
        for hypothesis, pieces in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert "\u2047" not in hypothesis.text  # as SentencePiece writes an unknown token
            rest = hypothesis.text
            for token, piece in zip(hypothesis.tokens, pieces, strict=True):
                if token != "<unk>":
                    assert token == piece  # tokens stay
                    continue
                unknown += 1
                written = [word for word in source.strip(".!?").split() if piece.strip("▁") in word and word in rest]
                assert written or piece in rest, (hypothesis.text, pieces)
    assert unknown > 10


def test_a_text_has_its_words_wherever_it_is(pair: Pair, sentences: Sentences) -> None:
    texts = sentences[0][:12]
    options: Any = {"beam_size": BEAMS, "replace_unknowns": True, "coverage_penalty": 0.5}
    together = pair.ours.translate(texts, **options)
    alone = [pair.ours.translate(text, **options) for text in texts]
    assert [each.text for each in together] == [each.text for each in alone]
    assert [each.score for each in together] == pytest.approx([each.score for each in alone], abs=1e-3)
