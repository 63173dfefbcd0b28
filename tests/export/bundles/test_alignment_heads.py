"""Heads that align tokens: chosen by their error rate, recorded, and used for tags."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from jumok_export.bundles.alignment_heads import AlignmentText
from jumok_export.bundles.source_texts import greedy_search
from jumok_export.errors import ExportError
from jumok_export.models.recurrent import RecurrentSizes, make_recurrent
from jumok_export.models.transformer import Transformer
from jumok_export.shortlists.token_alignment import align_tokens
from jumok_export.training.checkpoint import Checkpoint, load_checkpoint
from jumok_export.training.export import export_checkpoint
from jumok_export.training.vocabulary import END, PAD, START, UNKNOWN
from jumok_serve.bundle.describe import describe
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.manifest.parts import AlignmentHeads, AttentionHead
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from jumok_serve.translator import Translator
from tests.support.reversing import GUIDED, sentences, translated

LANGUAGES = Languages.of_pair("en", "de", suffix=(END,))
SPECIAL = SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN)
LIMITS = Limits(max_source_length=40, max_target_length=40)
UNSEEN = sentences(300, seed=8)
TEXT = AlignmentText(sources=UNSEEN, targets=list(map(translated, UNSEEN)))


@pytest.fixture(scope="module")
def checkpoint(reversing: Path) -> Checkpoint:
    return load_checkpoint(reversing)


def choose(checkpoint: Checkpoint, text: AlignmentText, model: Any = None, **options: Any) -> AlignmentHeads:
    direction = LANGUAGES.direction()
    return text.choose_heads(
        model or checkpoint.model,
        SentencePieceTokenizer(checkpoint.source_vocabulary.model),
        direction,
        greedy_search(direction, SPECIAL, GenerationDefaults(max_length=20), LIMITS),
        LIMITS,
        **options,
    )


def test_the_head_that_aligns_is_chosen(checkpoint: Checkpoint) -> None:
    said: list[str] = []
    found = choose(checkpoint, TEXT, progress=said.append)
    assert GUIDED in [(one.layer, one.head) for one in found.heads]
    assert found.origin == "measured"
    assert found.error_rate is not None
    assert found.error_rate < 0.1
    assert found.pairs == 300
    assert said[-1] == f"heads that align tokens: {found}"


def test_a_guided_head_is_kept_and_measured(checkpoint: Checkpoint) -> None:
    measured = []
    for layer, head in ((0, 1), (1, 0)):
        guided = AlignmentHeads(heads=(AttentionHead(layer=layer, head=head),), origin="guided")
        found = choose(checkpoint, TEXT, guided=guided)
        assert found.heads == guided.heads
        assert found.origin == "guided"
        assert found.error_rate is not None
        measured.append(found.error_rate)
        assert found.error_rate == pytest.approx(error_rate_by_hand(checkpoint, layer, head), abs=0.002)
    assert measured[0] < 0.1 < measured[1]


def attention_of(checkpoint: Checkpoint, source: list[int], target: list[int]) -> Sequence[Tensor]:
    """The attention of each layer to the source, [1, heads, T, S]."""
    assert isinstance(checkpoint.model, Transformer)
    given = torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([START]), torch.tensor([target])
    with torch.no_grad():
        return checkpoint.model.attending(*given)[1]


def error_rate_by_hand(checkpoint: Checkpoint, layer: int, head: int) -> float:
    """Share of linked target tokens that attend most to a token without a link to them."""
    found = []
    for text in UNSEEN:
        source, target = (checkpoint.source_vocabulary.encode(side) for side in (text, translated(text)))
        attended = attention_of(checkpoint, source, target)[layer][0, head, :-1, :-1]
        found.append((source[:-1], target[:-1], attended.argmax(dim=-1).tolist()))
    size = len(checkpoint.source_vocabulary)
    pairs = [(np.array(source, np.int32), np.array(target, np.int32)) for source, target, _ in found]
    links = align_tokens(pairs, source_vocabulary=size, target_vocabulary=size)
    linked = set(zip(links.pairs.tolist(), links.targets.tolist(), links.sources.tolist(), strict=True))
    tokens = {(pair, target) for pair, target, _ in linked}
    wrong = sum((pair, target, found[pair][2][target]) not in linked for pair, target in tokens)
    return wrong / len(tokens)


def test_models_and_texts_that_cannot_be_aligned_are_refused(checkpoint: Checkpoint) -> None:
    size = len(checkpoint.source_vocabulary)
    without = make_recurrent(RecurrentSizes(source_vocabulary=size, target_vocabulary=size, attention="none"))
    with pytest.raises(ExportError, match="has no method `align`, so no heads can be chosen"):
        choose(checkpoint, TEXT, model=without)
    with pytest.raises(ExportError, match="none of the 1 sentence pairs for alignments has 1 to 38 tokens"):
        choose(checkpoint, replace(TEXT, sources=[""], targets=["va"]))


@pytest.mark.slow
def test_an_exported_model_places_tags_by_its_guided_head(checkpoint: Checkpoint, tmp_path: Path) -> None:
    bundle = export_checkpoint(checkpoint, tmp_path / "bundle", precisions=["fp32"], alignment_text=TEXT)
    found = bundle.manifest.alignment
    assert found is not None
    assert [(one.layer, one.head) for one in found.heads] == [GUIDED]
    assert found.error_rate is not None
    line = next(line for line in describe(bundle, whole=False).splitlines() if line.strip().startswith("alignment"))
    assert "layer 0 head 1 (guided; error rate" in line
    with Translator(tmp_path / "bundle", replicas=1, threads=1) as translator:
        for source in UNSEEN[:5]:
            aligned = translator.align(source, translated(source), layer=GUIDED[0], head=GUIDED[1])
            assert aligned.cross is not None
            cross = attention_of(checkpoint, *map(checkpoint.source_vocabulary.encode, (source, translated(source))))
            np.testing.assert_allclose(aligned.cross.mean, cross[GUIDED[0]][0, GUIDED[1]].numpy(), atol=1e-5)
        right = 0
        for source in sentences(400, seed=3)[:20]:  # of the training text, which the model translates right
            first, second, *others = source.split()
            marked = translator.translate(f"{first} <b>{second}</b> {' '.join(others)}", markup="html").text
            if re.sub("</?b>", "", marked) == translated(source):
                right += 1
                assert f"<b>{translated(second)}</b>" in marked
        assert right > 10
