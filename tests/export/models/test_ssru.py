"""The SSRU decoder against its equations, and its ways of decoding against each other."""

import torch
from torch import Tensor

from jumok_export.models.ssru import SSRU, SSRUTransformer
from jumok_export.models.transformer import TransformerSizes

VOCABULARY, START, WIDTH = 13, 2, 16


def model(norm: str = "post") -> SSRUTransformer:
    torch.manual_seed(4)
    sizes = TransformerSizes(
        source_vocabulary=VOCABULARY,
        target_vocabulary=VOCABULARY,
        width=WIDTH,
        heads=2,
        feed_forward=24,
        encoder_layers=1,
        decoder_layers=2,
        max_positions=32,
        norm="pre" if norm == "pre" else "post",
        output_bias=True,
        dropout=0.0,
    )
    return SSRUTransformer(sizes).eval().requires_grad_(False)


def sentences() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    sources = torch.randint(VOCABULARY, (3, 7), generator=generator)
    targets = torch.randint(VOCABULARY, (3, 5), generator=generator)
    return sources, torch.tensor([7, 4, 1]), torch.full((3,), START), targets


def test_the_unit_computes_its_equations() -> None:
    torch.manual_seed(0)
    unit = SSRU(3).requires_grad_(False)
    xs, cell = torch.randn(4, 3), torch.zeros(3)
    expected = []
    for x in xs:
        forget = 1 / (1 + torch.exp(-(unit.forget_projection.weight @ x + unit.forget_projection.bias)))
        cell = forget * cell + (1 - forget) * (unit.input_projection.weight @ x)
        expected.append(cell.clamp(min=0))
    torch.testing.assert_close(unit.follow(xs[None])[0], torch.stack(expected))


def test_steps_repeat_the_decoding_of_whole_targets() -> None:
    for norm in ("post", "pre"):
        decoder = model(norm)
        sources, lengths, start, targets = sentences()
        expected = decoder(sources, lengths, start, targets)
        cross = decoder.align(sources, lengths, start, targets, torch.tensor([5, 5, 5]))[0]
        memory, state = decoder.encode(sources, lengths)
        assert {name: tuple(value.shape) for name, value in state.items()} == {"cell.0": (3, 16), "cell.1": (3, 16)}
        parents = torch.arange(3)
        for time, token_ids in enumerate(decoder.shift(start, targets).unbind(dim=1)):
            positions = torch.full((3,), time)
            inputs = (token_ids, positions, parents, lengths, memory, state)
            logits, new = decoder.step(*inputs)
            torch.testing.assert_close(logits, expected[:, time], atol=1e-5, rtol=1e-5)
            attending, _, weights = decoder.attending_step(*inputs)
            torch.testing.assert_close(attending, logits)
            torch.testing.assert_close(weights, cross[..., time, :], atol=1e-5, rtol=1e-5)
            state = new


def test_rows_of_a_beam_continue_the_rows_that_they_name() -> None:
    decoder = model()
    sources, lengths, _, _ = sentences()
    memory, first = decoder.encode(sources, lengths)
    repeated = {name: value.repeat_interleave(2, dim=0) for name, value in first.items()}
    tokens = torch.tensor([3, 4, 5, 6, 7, 8])
    zeros, rows = torch.zeros(6, dtype=torch.int64), torch.arange(6)
    _, state = decoder.step(tokens, zeros, rows, lengths, memory, repeated)
    parents = torch.tensor([1, 1, 2, 3, 5, 4])
    logits, _ = decoder.step(tokens, zeros + 1, parents, lengths, memory, state)
    taken = {name: value[parents] for name, value in state.items()}
    expected, _ = decoder.step(tokens, zeros + 1, rows, lengths, memory, taken)
    torch.testing.assert_close(logits, expected)
    assert not torch.allclose(logits, decoder.step(tokens, zeros + 1, rows, lengths, memory, state)[0])
