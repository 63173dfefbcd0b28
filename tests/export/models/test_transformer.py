"""The Transformer against the paper's formula, PyTorch's layers, and itself: step by step, padded, reordered."""

import dataclasses
import math
import weakref
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from jumok_export.models.attention import MultiHeadAttention
from jumok_export.models.layers import DecoderLayer, EncoderLayer
from jumok_export.models.positions import sinusoidal_positions
from jumok_export.models.transformer import Transformer, TransformerSizes
from tests.export.models.test_attention import copy_attention, randomize

LAYERS: dict[str, Any] = {"feed_forward": 20, "encoder_layers": 2, "decoder_layers": 2}
SIZES = TransformerSizes(source_vocabulary=17, target_vocabulary=17, width=12, heads=3, max_positions=24, **LAYERS)
SEPARATE = dataclasses.replace(
    SIZES, target_vocabulary=23, share_embeddings=False, tie_output=False, norm="post", activation="gelu"
)
BOTH = pytest.mark.parametrize("sizes", [SIZES, SEPARATE], ids=["shared", "separate"])


def random_model(sizes: TransformerSizes) -> Transformer:
    torch.manual_seed(4)
    model = Transformer(sizes).eval()
    randomize(model)
    return model.requires_grad_(False)


def test_positions_follow_the_formula() -> None:
    table = sinusoidal_positions(40, 6)
    for position in (0, 1, 7, 39):
        for index in range(3):
            angle = position / 10000 ** (2 * index / 6)
            assert table[position, 2 * index] == pytest.approx(math.sin(angle), abs=2e-6)
            assert table[position, 2 * index + 1] == pytest.approx(math.cos(angle), abs=2e-6)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_are_pytorchs_in_both_orders_of_norm(norm: Literal["pre", "post"]) -> None:
    torch.manual_seed(5)
    sizes = dataclasses.replace(SIZES, norm=norm)
    encoder, decoder = EncoderLayer(sizes.encoder_layer).eval(), DecoderLayer(sizes.decoder_layer).eval()
    for layer in (encoder, decoder):
        randomize(layer)
    first = norm == "pre"
    # In training mode, where PyTorch takes no short cut that leaves padded places out.
    their_encoder = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True, norm_first=first).train()
    their_decoder = nn.TransformerDecoderLayer(12, 3, 20, dropout=0.0, batch_first=True, norm_first=first).train()
    copy_attention(encoder.self_attention, their_encoder.self_attn)
    copy_attention(decoder.self_attention, their_decoder.self_attn)
    copy_attention(decoder.cross_attention, their_decoder.multihead_attn)
    norms: dict[str, nn.Module] = {"self_attention": their_decoder.norm1, "cross_attention": their_decoder.norm2}
    for name, theirs in {**norms, "feed_forward": their_decoder.norm3}.items():
        theirs.load_state_dict(decoder.get_submodule(f"{name}_residual.norm").state_dict())
    for name, theirs in {"self_attention": their_encoder.norm1, "feed_forward": their_encoder.norm2}.items():
        theirs.load_state_dict(encoder.get_submodule(f"{name}_residual.norm").state_dict())
    for own, other in ((encoder, their_encoder), (decoder, their_decoder)):
        other.linear1.load_state_dict(own.feed_forward.get_submodule("0").state_dict())
        other.linear2.load_state_dict(own.feed_forward.get_submodule("3").state_dict())
    source, target = torch.randn(3, 6, 12), torch.randn(3, 4, 12)
    padding = torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    encoded, _ = encoder(source, padding[:, None, None, :])
    torch.testing.assert_close(encoded, their_encoder(source, src_key_padding_mask=~padding))
    decoded, _, _ = decoder(target, causal, encoded, padding[:, None, None, :])
    expected = their_decoder(target, encoded, tgt_mask=~causal, memory_key_padding_mask=~padding)
    torch.testing.assert_close(decoded, expected)


@BOTH
def test_a_token_sees_itself_and_what_is_before_it(sizes: TransformerSizes) -> None:
    model = random_model(sizes)
    source, lengths = torch.randint(17, (1, 5)), torch.tensor([5])
    targets = torch.randint(sizes.target_vocabulary, (1, 6))
    start = torch.tensor([2])
    logits = model(source, lengths, start, targets)
    for place in range(6):
        changed = targets.clone()
        changed[0, place] = (changed[0, place] + 1) % sizes.target_vocabulary
        differs = (model(source, lengths, start, changed) != logits).any(dim=-1)[0]
        # Target token `place` is the input of the next place: that and the later logits change, none before.
        assert differs.tolist() == [False] * (place + 1) + [True] * (5 - place)


@BOTH
def test_padding_changes_nothing(sizes: TransformerSizes) -> None:
    model = random_model(sizes)
    sources = [torch.randint(17, (length,)) for length in (2, 7, 4)]
    targets = [torch.randint(sizes.target_vocabulary, (length,)) for length in (5, 1, 3)]

    def padded(sequences: list[Tensor], extra: int) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        ids = torch.randint(17, (len(sequences), int(lengths.max()) + extra))  # noise, which must not matter
        for row, sequence in zip(ids, sequences, strict=True):
            row[: len(sequence)] = sequence
        return ids, lengths

    starts = torch.tensor([2, 5, 2])
    together = model.score(*padded(sources, 3), starts, *padded(targets, 2))
    cross, encoder, decoder = model.align(*padded(sources, 3), starts, *padded(targets, 2))
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        lengths = torch.tensor([len(source)]), torch.tensor([len(target)])
        single = (source[None], lengths[0], starts[index : index + 1], target[None], lengths[1])
        torch.testing.assert_close(together[index, : len(target)], model.score(*single)[0])
        assert (together[index, len(target) :] == 0).all()
        for whole, alone in zip((cross, encoder, decoder), model.align(*single), strict=True):
            part = whole[index, :, :, : alone.shape[3], : alone.shape[4]]
            torch.testing.assert_close(part, alone[0])
            assert float(whole[index].sum()) == pytest.approx(float(alone.sum()), rel=1e-5)  # 0 outside of the sentence


@BOTH
def test_steps_give_what_teacher_forcing_gives_however_rows_are_reordered(sizes: TransformerSizes) -> None:
    model = random_model(sizes)
    random = torch.Generator().manual_seed(6)
    sentences, beams, steps = 2, 3, 11
    sources = torch.randint(17, (sentences, 6), generator=random)
    lengths = torch.tensor([6, 3])
    memory, first_state = model.encode(sources, lengths)
    assert first_state == {}
    state = model.empty_state()
    histories: list[list[int]] = [[2 + row // beams] for row in range(sentences * beams)]
    parents = torch.zeros(sentences * beams, dtype=torch.long)
    for position in range(steps):
        tokens = torch.tensor([history[-1] for history in histories])
        logits, state = model.step(tokens, torch.full_like(tokens, position), parents, lengths, memory, state)
        for row, history in enumerate(histories):
            sentence = row // beams
            start, target = torch.tensor(history[:1]), torch.tensor([[*history[1:], 0]])
            expected = model(sources[sentence][None], lengths[sentence][None], start, target)[0, -1]
            torch.testing.assert_close(logits[row], expected, atol=1e-4, rtol=1e-4)
        chosen = torch.randint(beams, (sentences, beams), generator=random)
        parents = (chosen + torch.arange(sentences)[:, None] * beams).flatten()
        new = torch.randint(sizes.target_vocabulary, (sentences * beams,), generator=random).tolist()
        histories = [[*histories[parent], token] for parent, token in zip(parents.tolist(), new, strict=True)]


def test_a_step_runs_where_the_model_is() -> None:
    """A tensor of the step on the CPU would fail beside those of the model, as on a GPU during validation."""
    device = torch.device("meta")
    model = random_model(SIZES).to(device)
    integers = partial(torch.zeros, dtype=torch.long, device=device)
    memory, _ = model.encode(integers(2, 5), torch.ones(2, device=device))
    logits, written = model.step_in_place(
        integers(2, 3),
        integers(2, 3),
        integers(2, 3, 3),
        torch.ones(2, 3, 4, dtype=torch.bool, device=device),
        integers(2, 4),
        torch.ones(2, device=device),
        memory,
        {name: torch.zeros(2, 3, 4, 4, device=device) for name in model.empty_state()},
    )
    assert logits.device == device
    assert logits.shape == (6, 17)
    assert {value.device for value in written.values()} == {device}


def test_scores_are_computed_without_attention_weights_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the longest text take more memory than its logits."""
    model, seen = Transformer(SIZES).eval(), list[weakref.ref[Tensor]]()
    attend, project = MultiHeadAttention.attend, Transformer.logits

    def noted(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        attended, weights = attend(*arguments, **options)
        seen.append(weakref.ref(weights))
        return attended, weights

    def without_weights(self: Transformer, decoded: Tensor) -> Tensor:
        assert len(seen) == 6
        assert not any(weights() is not None for weights in seen)
        return project(self, decoded)

    monkeypatch.setattr(MultiHeadAttention, "attend", noted)
    monkeypatch.setattr(Transformer, "logits", without_weights)
    ids, lengths = torch.ones(2, 3, dtype=torch.int64), torch.tensor([3, 2])
    with torch.no_grad():
        assert model.score(ids, lengths, torch.zeros(2, dtype=torch.int64), ids, lengths).shape == (2, 3)


def test_embeddings_and_output_are_shared_only_where_it_says_so() -> None:
    shared, separate = Transformer(SIZES), Transformer(SEPARATE)
    assert shared.source_embedding is shared.target_embedding
    assert shared.output.weight is shared.target_embedding.weight
    assert separate.source_embedding.weight.shape == (17, 12)
    assert separate.target_embedding.weight.shape == (23, 12)
    assert separate.output.weight is not separate.target_embedding.weight
    half = Transformer(dataclasses.replace(SEPARATE, tie_output=True))
    assert half.output.weight is half.target_embedding.weight


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="width must be even"):
        Transformer(dataclasses.replace(SIZES, width=9))
    with pytest.raises(ValueError, match="got 17 source and 18 target tokens"):
        dataclasses.replace(SIZES, target_vocabulary=18)
