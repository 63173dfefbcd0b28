"""Recurrent models, exported: greedy and beam translations equal PyTorch's."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jumok_export.bundles.export import export_bundle
from jumok_export.models.cells import CELLS, CellKind
from jumok_export.models.recurrent import AttentiveRecurrent, Recurrent, RecurrentSizes, make_recurrent
from jumok_export.models.recurrent_attention import ATTENTION, AttentionKind
from jumok_export.training.corpus import pad
from jumok_export.training.greedy import greedy_decode
from jumok_export.training.vocabulary import END, PAD, START, UNKNOWN, Vocabulary
from jumok_proto.errors import AttentionUnavailableError
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.support.data import Sentences
from tests.support.reference_search import Scores, reference_search
from tests.support.search_cases import make_options

SENTENCES = 6
MAX_LENGTH = 10
KINDS = [
    pytest.param(
        cell,
        attention,
        (row + column) % 2 == 1,
        id=f"{cell}-{attention}",
        marks=[pytest.mark.slow] if (column - row) % len(CELLS) else [],
    )
    for row, cell in enumerate(CELLS)
    for column, attention in enumerate(("none", *ATTENTION))
]
"""Every cell with every attention, and each of both with an encoder of one direction and of two."""


def recurrent(vocabulary: Vocabulary, **sizes: Any) -> Recurrent:
    """Return a random model whose logits are far enough apart to avoid ties."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        settings: dict[str, Any] = {"embedding": 12, "width": 16, "dropout": 0.0, **sizes}
        size = len(vocabulary)
        model = make_recurrent(RecurrentSizes(source_vocabulary=size, target_vocabulary=size, **settings))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3.0)
            model.output.bias[END] += 2.0  # so that some translations end
    return model.eval()


def export(model: Recurrent, vocabulary: Vocabulary, out: Path, *precisions: str) -> Bundle:
    return export_bundle(
        model,
        SentencePieceTokenizer(vocabulary.model),
        out,
        name="recurrent",
        languages=Languages.of_pair("en", "de", suffix=(END,)),
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN, suppress=()),
        limits=Limits(max_source_length=32, max_target_length=16),
        generation=GenerationDefaults(max_length=MAX_LENGTH),
        precisions=precisions,
    )


def by_prefix(model: Recurrent, source: list[int]) -> Callable[[tuple[int, ...]], Scores]:
    """Compute the logits after a prefix from its beginning."""

    @cache
    def logits(prefix: tuple[int, ...]) -> Scores:
        # What stands in the last place is only there to be found: nothing is fed of it.
        target = torch.tensor([[*prefix[1:], PAD]])
        with torch.no_grad():
            found = model(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([prefix[0]]), target)
        return np.asarray(found[0, -1].numpy(), np.float64)

    return logits


def check(model: Recurrent, vocabulary: Vocabulary, translator: Translator, texts: list[str]) -> None:
    """Greedy and beam translations are those of PyTorch, token by token and score by score."""
    sources = [vocabulary.encode(text) for text in texts]
    greedy = greedy_decode(model, *pad([torch.tensor(source) for source in sources]), MAX_LENGTH)
    found = [translation.hypotheses[0] for translation in translator.translate(texts, beam_size=1)]
    assert [list(hypothesis.token_ids) for hypothesis in found] == greedy
    options = make_options(beam_size=3, max_length=MAX_LENGTH, eos_ids=(END,))
    beams = translator.translate(texts, beam_size=3, num_hypotheses=3)
    for source, translation in zip(sources, beams, strict=True):
        expected = reference_search(by_prefix(model, source), options, START)
        assert [hypothesis.token_ids for hypothesis in translation.hypotheses] == [each.token_ids for each in expected]
        for hypothesis, reference in zip(translation.hypotheses, expected, strict=True):
            assert hypothesis.score == pytest.approx(reference.score, abs=1e-4)
            assert hypothesis.token_scores == pytest.approx(reference.token_scores, abs=1e-4)


@pytest.mark.parametrize(("cell", "attention", "bidirectional"), KINDS)
def test_every_kind_decodes_as_pytorch_does(
    cell: CellKind,
    attention: AttentionKind,
    bidirectional: bool,
    vocabulary: Vocabulary,
    sentences: Sentences,
    tmp_path: Path,
) -> None:
    model = recurrent(vocabulary, cell=cell, attention=attention, bidirectional=bidirectional)
    bundle = export(model, vocabulary, tmp_path / "bundle", "fp32")
    texts = sentences[0][:SENTENCES]
    with Translator(bundle.path, threads=1) as translator:
        check(model, vocabulary, translator, texts)
        if isinstance(model, AttentiveRecurrent):
            (translation,) = translator.translate(texts[:1], beam_size=1, attention=True)
            (best,) = translation.hypotheses
            source, target = torch.tensor([vocabulary.encode(texts[0])]), torch.tensor([best.token_ids])
            lengths = torch.tensor([source.shape[1]]), torch.tensor([target.shape[1]])
            with torch.no_grad():
                (expected,) = model.align(source, lengths[0], torch.tensor([START]), target, lengths[1])
            assert best.attention is not None
            np.testing.assert_allclose(best.attention, expected[0, 0, 0].numpy(), atol=1e-5)
        else:
            with pytest.raises(AttentionUnavailableError):
                translator.translate(texts, attention=True)
