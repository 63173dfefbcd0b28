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


def changed(method: str, change: Callable[[Any], Any]) -> nn.Module:
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


@pytest.mark.parametrize(
    ("state", "shape"),
    [(torch.zeros(WIDTH), "[4]"), (torch.zeros(5, WIDTH), "[5, 4]"), (torch.tensor(0.0), "[]")],
)
def test_an_empty_state_is_one_row(state: Tensor, shape: str) -> None:
    said = refusal(changed("empty_state", lambda empty: empty | {"sum": state}))
    assert said == (
        f"state 'sum' of `empty_state` has shape {shape}, expected one row [1, ...] of [rows, ...]: return state[None] "
        "if the axis of the rows is missing, state[:1] if there are several rows"
    )


@pytest.mark.parametrize(
    ("changed_state", "shape"),
    [(lambda total: total[0], "[4]"), (lambda total: total[None], "[1, 2, 4]"), (lambda total: total.sum(), "[]")],
)
def test_a_first_state_has_a_row_for_each_sentence(changed_state: Callable[[Tensor], Tensor], shape: str) -> None:
    said = refusal(changed("encode", lambda pair: (pair[0], pair[1] | {"sum": changed_state(pair[1]["sum"])})))
    assert said.startswith(
        f"first state 'sum' of `encode` has shape {shape}, expected [2, ...] for 2 sentences: axis 0"
    )
    assert "transpose states [layers, B, width] of nn.GRU" in said


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        (
            "encode",
            lambda pair: pair[1],
            "`encode` returns a value of type dict, expected memory and first state: two dictionaries",
        ),
        ("encode", lambda pair: (None, pair[1]), "the memory of `encode` is None, expected a dictionary of tensors"),
        (
            "encode",
            lambda pair: ({"scale": torch.tensor(2.0)}, pair[1]),
            "memory 'scale' of `encode` has shape [], expected [2, ...]",
        ),
        (
            "encode",
            lambda pair: (pair[0], pair[1] | {"sum": pair[1]["sum"][:, :3]}),
            "first state 'sum' of `encode` is a tensor [2, 3] of float32 and that of `empty_state` a tensor [1, 4] of "
            "float32: give both one type, and one shape after the axis of the sentences",
        ),
        ("empty_state", lambda empty: empty["sum"], "the output of `empty_state` is a tensor [1, 4] of float32"),
        (
            "empty_state",
            lambda empty: empty | {"sum": 0},
            "'sum' in the output of `empty_state` is a value of type int",
        ),
        (
            "empty_state",
            lambda empty: empty | {"sum": empty["sum"].long()},
            "first state 'sum' of `encode` is a tensor [2, 4] of float32 and that of `empty_state` a tensor [1, 4] of "
            "int64",
        ),
        ("step", lambda pair: pair[0], "`step` returns a tensor [6, 13] of float32, expected logits [R, V] and a"),
        ("step", lambda pair: (pair[0][:, None], pair[1]), "the logits of `step` are a tensor [6, 1, 13] of float32"),
        ("step", lambda pair: (pair[0], {}), "`step` returns next states [] and `empty_state` has ['past', 'sum']"),
        (
            "step",
            lambda pair: (pair[0], pair[1] | {"sum": pair[1]["sum"][:4]}),
            "next state 'sum' of `step` has shape [4, 4], expected [6, ...]: continue the rows `parents`",
        ),
        ("score", lambda scores: scores.sum(dim=1), "`score` returns a tensor [2] of float32, expected the log-prob"),
    ],
)
def test_other_outputs_are_named_with_their_shapes(method: str, change: Callable[[Any], Any], message: str) -> None:
    assert refusal(changed(method, change)).startswith(message)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda weights: weights, "`align` returns a tensor [2, 1, 1, 7, 5] of float32, expected attention of three"),
        (
            lambda weights: (weights[:, 0], weights, weights),
            "attention of `align` is a tensor [2, 1, 7, 5] of float32, expected [B, layers, heads, to, from]",
        ),
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
