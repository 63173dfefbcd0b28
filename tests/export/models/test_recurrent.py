"""Recurrent models against their papers' equations, worked vector by vector."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from jumok_export.graphs.tracing import export_graphs
from jumok_export.models.cells import Cell
from jumok_export.models.recurrent import AttentiveRecurrent, Recurrent, RecurrentSizes, make_recurrent
from jumok_export.models.seq2seq import reverse
from jumok_export.training.configuration import FeedingSection

VOCABULARY, START = 11, 2


def model(**sizes: Any) -> Recurrent:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"embedding": 5, "width": 6, **sizes}
    return make_recurrent(RecurrentSizes(source_vocabulary=9, target_vocabulary=VOCABULARY, **settings)).eval()


def sources(*lengths: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(9, (len(lengths), max(lengths)), generator=generator), torch.tensor(lengths)


def targets(sentences: int, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.full((sentences,), START), torch.randint(VOCABULARY, (sentences, length), generator=generator)


def step_cells(cells: list[Cell], x: Tensor, states: list[list[Tensor]]) -> Tensor:
    """Run one step of stacked cells, and replace their states."""
    for number, cell in enumerate(cells):
        states[number] = list(cell(x[None], [state[None] for state in states[number]]))
        states[number] = [state[0] for state in states[number]]
        x = states[number][0]
    return x


def worked(recurrent: Recurrent, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
    """Compute logits [T, V] and attention [T, S] of one sentence by the papers' equations."""
    sizes = recurrent.sizes
    cells = [module for module in recurrent.encoder.modules() if isinstance(module, Cell)]
    directions = 2 if sizes.bidirectional else 1
    xs = [recurrent.source_embedding.weight[token] for token in source]
    if sizes.reverse_source:
        xs.reverse()
    starts: list[list[Tensor]] = []
    for layer in range(sizes.layers):
        read: list[list[Tensor]] = []
        ends: list[list[Tensor]] = []
        for direction, cell in enumerate(cells[layer * directions : (layer + 1) * directions]):
            state = [torch.zeros(cell.width) for _ in cell.state_names]
            out = []
            for x in reversed(xs) if direction else xs:
                state = [value[0] for value in cell(x[None], [value[None] for value in state])]
                out.append(state[0])
            read.append(out[::-1] if direction else out)
            ends.append(state)
        xs = [torch.cat(states) for states in zip(*read, strict=True)]
        starts.append([torch.cat(values) for values in zip(*ends, strict=True)])
    if sizes.reverse_source:
        xs.reverse()
    if sizes.first_state == "zero":
        starts = [[torch.zeros(sizes.width) for _ in values] for values in starts]
    elif sizes.first_state == "mean":
        first = torch.tanh(recurrent.bridges["mean"](torch.stack(xs).mean(dim=0)))
        starts = [[first for _ in values] for values in starts]
    elif recurrent.bridges:
        starts = [
            [
                torch.tanh(recurrent.bridges[f"{name}_{layer}"](value))
                for name, value in zip(cells[0].state_names, values, strict=True)
            ]
            for layer, values in enumerate(starts)
        ]
    decoder = [module for module in recurrent.decoder.modules() if isinstance(module, Cell)]
    attention = recurrent.attention
    fed = torch.zeros(sizes.width)
    logits: list[Tensor] = []
    weights: list[Tensor] = []
    previous = START
    for token in target.tolist():
        x = recurrent.target_embedding.weight[previous]
        context = None

        def attend(query: Tensor) -> Tensor:
            assert attention is not None
            parameters = dict(attention.named_parameters())
            scores = []
            for state in xs:
                match sizes.attention:
                    case "dot":
                        scores.append(query @ state)
                    case "scaled_dot":
                        scores.append(query @ state / math.sqrt(len(query)))
                    case "general":
                        scores.append(query @ parameters["key_projection.weight"] @ state)
                    case _:
                        both = (
                            parameters["query_projection.weight"] @ query + parameters["key_projection.weight"] @ state
                        )
                        scores.append(parameters["weight"] @ torch.tanh(both))
            weights.append(torch.stack(scores).softmax(dim=0))
            return sum((weight * state for weight, state in zip(weights[-1], xs, strict=True)), torch.zeros(1))

        if sizes.attention == "bahdanau":
            context = attend(starts[-1][0])
            x = torch.cat((x, context))
        elif sizes.input_feeding:
            x = torch.cat((x, fed))
        hidden = step_cells(decoder, x, starts)
        if sizes.attention not in {"none", "bahdanau"}:
            context = attend(hidden)
        said = hidden if context is None else torch.cat((context, hidden))
        if recurrent.attentional is not None:
            said = fed = torch.tanh(recurrent.attentional(said))
        logits.append(recurrent.output.weight @ said + recurrent.output.bias)
        previous = token
    return torch.stack(logits), torch.stack(weights) if weights else None


VARIANTS: list[dict[str, Any]] = [
    {"attention": "none", "cell": "rnn"},
    {"attention": "none", "cell": "lstm", "layers": 2, "reverse_source": True, "bidirectional": False},
    {"attention": "dot", "cell": "gru", "readout": "direct"},
    {"attention": "scaled_dot", "cell": "lstm", "layers": 2},
    {"attention": "general", "cell": "lstm", "encoder_width": 8, "input_feeding": True},
    {"attention": "general", "cell": "gru", "reverse_source": True, "embedding": 6, "tie_output": True},
    {"attention": "concat", "cell": "rnn", "encoder_width": 4, "bidirectional": False},
    {"attention": "bahdanau", "cell": "gru", "encoder_width": 8, "readout": "direct"},
    {"attention": "bahdanau", "cell": "lstm", "layers": 2},
    {"attention": "general", "cell": "gru", "layers": 2, "first_state": "mean"},
    {"attention": "concat", "cell": "lstm", "encoder_width": 8, "first_state": "mean", "reverse_source": True},
    {"attention": "general", "cell": "lstm", "encoder_width": 4, "first_state": "zero"},
]


@pytest.mark.parametrize("sizes", VARIANTS, ids=lambda sizes: "-".join(map(str, sizes.values())))
@torch.no_grad()
def test_a_padded_batch_is_what_the_equations_give_sentence_by_sentence(sizes: dict[str, Any]) -> None:
    recurrent = model(**sizes)
    source_ids, lengths = sources(6, 1, 4)
    start_ids, target_ids = targets(3, 5)
    logits = recurrent(source_ids, lengths, start_ids, target_ids)
    target_lengths = torch.tensor([5, 2, 5])
    scores = recurrent.score(source_ids, lengths, start_ids, target_ids, target_lengths)
    for sentence, length in enumerate(lengths):
        expected, attention = worked(recurrent, source_ids[sentence, :length], target_ids[sentence])
        torch.testing.assert_close(logits[sentence], expected)
        of_targets = expected.log_softmax(dim=-1)[torch.arange(5), target_ids[sentence]]
        of_targets[target_lengths[sentence] :] = 0
        torch.testing.assert_close(scores[sentence], of_targets)
        assert (attention is None) == (not isinstance(recurrent, AttentiveRecurrent))
        if isinstance(recurrent, AttentiveRecurrent) and attention is not None:
            (weights,) = recurrent.align(source_ids, lengths, start_ids, target_ids, target_lengths)
            assert weights.shape == (3, 1, 1, 5, 6)
            attention[target_lengths[sentence] :] = 0
            torch.testing.assert_close(weights[sentence, 0, 0, :, :length], attention)
            assert (weights[sentence, 0, 0, :, length:] == 0).all()


@torch.no_grad()
def test_steps_of_several_rows_a_sentence_are_the_whole() -> None:
    recurrent = model(attention="general", input_feeding=True)
    source_ids, lengths = sources(5, 3)
    start_ids, target_ids = targets(4, 6)  # two rows per sentence
    expected = recurrent(source_ids.repeat_interleave(2, 0), lengths.repeat_interleave(2), start_ids, target_ids)
    memory, state = recurrent.encode(source_ids, lengths)
    parents, tokens = torch.tensor([0, 0, 1, 1]), start_ids
    for position in range(6):
        logits, state = recurrent.step(tokens, torch.full((4,), position), parents, lengths, memory, state)
        torch.testing.assert_close(logits, expected[:, position])
        parents, tokens = torch.arange(4), target_ids[:, position]


def test_encoder_and_decoder_share_nothing() -> None:
    recurrent = model(attention="bahdanau")
    encoder = {id(p) for p in (*recurrent.encoder.parameters(), *recurrent.source_embedding.parameters())}
    decoder = {id(p) for p in (*recurrent.decoder.parameters(), *recurrent.target_embedding.parameters())}
    assert not encoder & decoder
    assert recurrent.source_embedding.weight.data_ptr() != recurrent.target_embedding.weight.data_ptr()


def test_reversal_keeps_padding_in_its_place() -> None:
    ids, lengths = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]]), torch.tensor([4, 2])
    assert reverse(ids, lengths).tolist() == [[4, 3, 2, 1], [6, 5, 0, 0]]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"attention": "dot", "encoder_width": 8}, "take attention 'general'"),
        ({"attention": "none", "input_feeding": True}, "input_feeding feeds the attentional vector"),
        ({"attention": "bahdanau", "input_feeding": True}, "got readout 'attentional' and attention 'bahdanau'"),
        ({"attention": "dot", "input_feeding": True, "readout": "direct"}, "got readout 'direct'"),
        ({"width": 7}, "must be even, got 7"),
        ({"attention": "none", "first_state": "zero"}, "first_state 'zero' needs attention"),
        ({"tie_output": True}, "which is 6, got 5"),
        ({"tie_output": True, "embedding": 6, "readout": "direct"}, "which is 12, got 6"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(**sizes)


@torch.no_grad()
def test_free_running_feeds_the_most_likely_tokens() -> None:
    recurrent = model(attention="general")
    source_ids, lengths = sources(5, 3)
    start_ids, target_ids = targets(2, 7)
    free = recurrent(source_ids, lengths, start_ids, target_ids, forced_share=0.0)
    chosen = free.argmax(dim=-1)
    torch.testing.assert_close(free, recurrent(source_ids, lengths, start_ids, chosen))
    assert (chosen != target_ids).any()
    torch.manual_seed(3)
    mixed = recurrent(source_ids, lengths, start_ids, target_ids, forced_share=0.5)
    forced = recurrent(source_ids, lengths, start_ids, target_ids)
    torch.testing.assert_close(mixed[:, 0], free[:, 0])
    assert not torch.allclose(mixed, free, atol=1e-4)
    assert not torch.allclose(mixed, forced, atol=1e-4)


def test_the_share_of_the_targets_tokens_falls_as_in_its_paper() -> None:
    assert FeedingSection().forced_share(10**6, 99, 100) == 1.0
    constant = FeedingSection(mode="scheduled_sampling", decay="constant", share=0.75)
    assert constant.forced_share(0, 0, 9) == constant.forced_share(10**6, 8, 9) == 0.75
    linear = FeedingSection(mode="scheduled_sampling", decay="linear", share=0.9, slope=1e-3, least=0.25)
    assert linear.forced_share(0, 0, 9) == 0.9
    assert linear.forced_share(400, 0, 9) == pytest.approx(0.5)
    assert linear.forced_share(10**6, 0, 9) == 0.25
    sigmoid = FeedingSection(mode="scheduled_sampling", decay="inverse_sigmoid", pace=100.0)
    assert sigmoid.forced_share(0, 0, 9) == pytest.approx(100 / 101)
    assert sigmoid.forced_share(round(100 * math.log(100)), 0, 9) == pytest.approx(0.5, abs=0.01)
    assert sigmoid.forced_share(10**9, 0, 9) == pytest.approx(0.0)
    phases = FeedingSection(mode="two_phases", free_epochs=2)
    assert [phases.forced_share(0, epoch, 5) for epoch in range(5)] == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_a_state_that_no_loop_can_carry_is_refused() -> None:
    class Growing(Recurrent):
        def empty_state(self) -> dict[str, Tensor]:
            return {name: torch.zeros(1, 0, 6) for name in super().empty_state()}

    class Stateless(Recurrent):
        def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            return super().encode(source_ids, source_lengths)[0], {}

    sizes = RecurrentSizes(source_vocabulary=9, target_vocabulary=VOCABULARY, attention="none", embedding=5, width=6)
    for kind, message in ((Growing, "'hidden.0' grows with time"), (Stateless, "needs a first state 'hidden.0'")):
        with pytest.raises(ValueError, match=message):
            export_graphs(kind(sizes).eval(), 9, VOCABULARY)
