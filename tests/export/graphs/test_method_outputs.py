"""Models of one's own whose methods return other shapes than their contract says."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jumok_export.graphs.tracing import export_graphs

WORDS, WIDTH = 13, 4


class Counting(nn.Module):
    """Decodes by sums of embeddings: one state of one size, and one that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.output = nn.Linear(WIDTH, WORDS)

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> Any:
        inside = torch.arange(source_ids.shape[1]) < source_lengths[:, None]
        total = (self.embedding(source_ids) * inside[..., None]).sum(dim=1)
        return {"total": total}, {"sum": total, "past": total[:, None]}

    def empty_state(self) -> Any:
        return {"sum": torch.zeros(1, WIDTH), "past": torch.zeros(1, 0, WIDTH)}

    def step(
        self, token_ids: Tensor, positions: Tensor, parents: Tensor, source_lengths: Tensor, memory: Any, state: Any
    ) -> Any:
        new = state["sum"][parents] + self.embedding(token_ids)
        past = torch.cat((state["past"][parents], new[:, None]), dim=1)
        return self.output(new), {"past": past, "sum": new}  # in another order than the given state

    def score(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> Any:
        _, first = self.encode(source_ids, source_lengths)
        before = torch.cat((start_ids[:, None], target_ids[:, :-1]), dim=1)
        logits = self.output(first["sum"][:, None] + self.embedding(before).cumsum(dim=1))
        scores = logits.log_softmax(dim=-1).gather(-1, target_ids[..., None])[..., 0]
        return scores.masked_fill(torch.arange(target_ids.shape[1]) >= target_lengths[:, None], 0.0)


Change = Callable[[Any], Any]


def changed(method: str, change: Change) -> nn.Module:
    """A model with one method whose output is changed."""
    model = Counting().eval()
    original = getattr(model, method)
    setattr(model, method, lambda *inputs: change(original(*inputs)))
    return model


def refusal(model: nn.Module) -> str:
    with pytest.raises(ValueError, match="`") as refused:
        export_graphs(model, WORDS, WORDS)
    return str(refused.value)


def test_the_model_itself_is_exported_with_its_states_in_any_order() -> None:
    decoder = export_graphs(Counting().eval(), WORDS, WORDS)["decoder"]
    axes = {spec.name: spec.axes for spec in decoder.outputs}
    assert axes == {"logits": ("R", WORDS), "next_state.sum": ("R", WIDTH), "next_state.past": ("R", "T_new", WIDTH)}


def with_empty(state: Tensor | int) -> Change:
    """Change an empty state."""
    return lambda empty: empty | {"sum": state}


def with_state(change: Change) -> Change:
    """Change a first or next state, which comes after memory or logits."""
    return lambda pair: (pair[0], pair[1] | {"sum": change(pair[1]["sum"])})


FIRST = "first state 'sum' of `encode`"
TYPES = f"{FIRST} is a tensor {{}} of float32 and that of `empty_state` a tensor [1, 4] of {{}}"
OUTPUTS: list[tuple[str, Change, str]] = [
    ("encode", lambda pair: pair[1], "`encode` returns a value of type dict, expected memory and first state: two"),
    ("encode", lambda pair: (None, pair[1]), "the memory of `encode` is None, expected a dictionary of tensors"),
    ("encode", lambda pair: ({"scale": torch.tensor(2.0)}, pair[1]), "memory 'scale' of `encode` has shape [], expect"),
    ("encode", with_state(lambda total: total[0]), f"{FIRST} has shape [4], expected [2, ...] for 2 sentences: axis 0"),
    ("encode", with_state(lambda total: total[None]), f"{FIRST} has shape [1, 2, 4], expected [2, ...] for 2"),
    ("encode", with_state(lambda total: total.sum()), f"{FIRST} has shape [], expected [2, ...] for 2 sentences"),
    ("encode", with_state(lambda total: total[:, :3]), f"{TYPES.format([2, 3], 'float32')}: give both one"),
    (
        "encode",
        lambda pair: (pair[0], {"other": pair[0]["total"]}),
        "`encode` gives first states ['other'] and `empty_state` has ['past', 'sum']",
    ),
    (
        "encode",
        lambda pair: ({"sideways": pair[0]["total"].T}, pair[1]),
        "memory 'sideways' of `encode` has shape [4, 2]",
    ),
    ("empty_state", lambda empty: empty["sum"], "the output of `empty_state` is a tensor [1, 4] of float32"),
    ("empty_state", with_empty(0), "'sum' in the output of `empty_state` is a value of type int"),
    ("empty_state", with_empty(torch.zeros(1, 4).long()), TYPES.format([2, 4], "int64")),
    ("empty_state", with_empty(torch.zeros(4)), "state 'sum' of `empty_state` has shape [4], expected one row"),
    ("empty_state", with_empty(torch.zeros(5, 4)), "state 'sum' of `empty_state` has shape [5, 4], expected one row"),
    ("empty_state", with_empty(torch.tensor(0.0)), "state 'sum' of `empty_state` has shape [], expected one row [1, ."),
    ("step", lambda pair: pair[0], "`step` returns a tensor [6, 13] of float32, expected logits [R, V] and a"),
    ("step", lambda pair: (pair[0][:, None], pair[1]), "the logits of `step` are a tensor [6, 1, 13] of float32"),
    ("step", lambda pair: (pair[0], {}), "`step` returns next states [] and `empty_state` has ['past', 'sum']"),
    ("step", with_state(lambda new: new[:4]), "next state 'sum' of `step` has shape [4, 4], expected [6"),
    ("score", lambda scores: scores.sum(dim=1), "`score` returns a tensor [2] of float32, expected the log-prob"),
]


@pytest.mark.parametrize(("method", "change", "message"), OUTPUTS)
def test_other_outputs_are_named_with_their_shapes(method: str, change: Change, message: str) -> None:
    assert refusal(changed(method, change)).startswith(message)


def test_states_of_other_shapes_come_with_a_hint() -> None:
    hint = "return state[None] if the axis of the rows is missing, state[:1] if there are several rows"
    assert refusal(changed("empty_state", with_empty(torch.zeros(4)))).endswith(hint)
    layers = changed("encode", with_state(lambda total: total[None]))
    assert "transpose states [layers, B, width] of nn.GRU" in refusal(layers)


def test_an_axis_that_is_twice_the_source_is_refused() -> None:
    class Doubled(Counting):
        def encode(self, source_ids: Tensor, source_lengths: Tensor) -> Any:
            memory, state = super().encode(source_ids, source_lengths)
            return memory | {"twice": torch.cat((source_ids, source_ids), dim=1)}, state

    assert "axis 1 of 'memory.twice' in `encode` has size 10 and 22 where the sizes are" in refusal(Doubled().eval())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda weights: weights, "`align` returns a tensor [2, 1, 1, 7, 5] of float32, expected attention of three"),
        (lambda weights: (weights[:, 0], weights, weights), "attention of `align` is a tensor [2, 1, 7, 5] of"),
    ],
)
def test_attention_has_layers_and_heads(returned: Callable[[Tensor], Any], message: str) -> None:
    class Aligning(Counting):
        def align(self, source_ids: Tensor, _: Tensor, __: Tensor, target_ids: Tensor, ___: Tensor) -> Any:
            return returned(torch.zeros(len(source_ids), 1, 1, target_ids.shape[1], source_ids.shape[1]))

    assert refusal(Aligning().eval()).startswith(message)


def test_an_error_within_a_method_notes_the_shapes_of_its_inputs() -> None:
    model = changed("step", lambda pair: pair[0] @ torch.zeros(2, 2))
    with pytest.raises(RuntimeError, match="mat1 and mat2") as raised:
        export_graphs(model, WORDS, WORDS)
    (note,) = raised.value.__notes__
    assert note.startswith("`step` was called with token_ids [6], positions [6], parents [6], source_lengths [2], ")
    assert "state.sum [4, 4], state.past [4, 7, 4]; docs/own-model.md has the shapes" in note
