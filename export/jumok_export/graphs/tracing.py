"""Trace a PyTorch translation model into ONNX graphs."""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.export import Dim

from jumok_export.graphs.exporter import quick_exporter
from jumok_export.graphs.graph import OPSET, Graph, declare, drop_unread
from jumok_export.graphs.method_outputs import (
    check_attention,
    check_empty_state,
    check_encoded,
    check_scores,
    check_step,
    shapes_noted,
)
from jumok_export.graphs.scan import ATTENTION
from jumok_export.graphs.storage import Stored, WeightsFile
from jumok_export.graphs.traced_weights import TracedModel, with_weights_in, without_weights
from jumok_export.graphs.translations import TRANSLATIONS
from jumok_export.models.seq2seq import Tensors
from jumok_export.parallel import can_fork, forked
from jumok_serve.manifest.manifest import TensorSpec

logger = logging.getLogger(__name__)

BOTH = "score_and_align"
"""Method whose graph has the outputs of scorer and aligner."""
BESIDE_PARAMETERS = 20_000_000
"""Parameters from which the last graph is traced beside the others: it takes more than that of a second process."""


@runtime_checkable
class TranslationModel(Protocol):
    """The methods of a PyTorch module that can be exported.

    Symbols: B sentences, R = B * K rows, P previous rows, S source tokens.

    Axis 0 of every tensor is the batch or the row. Other axes have constant sizes, or depend on S or on the number T of
    decoded tokens.

    Optional: `align` outputs attention (see `EncoderDecoder.align`). `step_in_place` is exported instead of `step` (see
    `EncoderDecoder.step_in_place`): all rows of a sentence share one buffer of E entries, [B, ..., E, ...] instead of
    [P, ..., T, ...]. `score_and_align` has the outputs of both; it is then traced once instead of these two.

    If the attribute `scores_by_steps` is true, the model decodes given targets step by step. `score` and `align` are
    then not traced but made from `encode` and `step`; `align` needs `attending_step`, which outputs attention [R,
    layers, heads, S] too (see `AttentiveRecurrent`).
    """

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        """Encode source ids [B, S] of lengths [B].

        Returns memory [B, ...], and first state [B, ...] or nothing.
        """

    def empty_state(self) -> Tensors:
        """One row [1, ...] of decoder state before any token."""

    def step(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        token_ids: Tensor,
        positions: Tensor,
        parents: Tensor,
        source_lengths: Tensor,
        memory: Tensors,
        state: Tensors,
    ) -> tuple[Tensor, Tensors]:
        """Decode one token per row, continuing rows `parents` of `state`.

        Returns logits [R, V] and state [R, ...].
        """

    def score(
        self, source_ids: Tensor, source_lengths: Tensor, start_ids: Tensor, target_ids: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """Log-probabilities [B, T] of given target tokens, decoded from `start_ids` [B]."""


class _View(nn.Module):
    """One method of a model as a module, for the exporter."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Call the method; returns its outputs as a flat tuple."""
        return self.flat(getattr(self.model, self.method)(*inputs), inputs)

    def run(self, example: "_GraphExample") -> tuple[Tensor, ...]:
        """Call the method at one set of sizes and check its outputs; returns these as a flat tuple."""
        with torch.no_grad(), shapes_noted(self.method, example.inputs):
            outputs = getattr(self.model, self.method)(*example.arguments)
        example.check(outputs)
        return self.flat(outputs, example.arguments)

    @staticmethod
    def flat(outputs: Any, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Put outputs into one tuple, the next state in the order of the given one."""
        flat: list[Tensor] = []
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            names = inputs[-1] if isinstance(inputs[-1], dict) else output
            flat += [output[name] for name in names] if isinstance(output, dict) else [output]
        return tuple(flat)


def export_graphs(
    model: nn.Module,
    source_vocabulary: int,
    target_vocabulary: int,
    weights: WeightsFile | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Graph]:
    """Trace a model's graphs: encoder, decoder, scorer, and aligner if the model has `align`.

    Models that score by steps have no scorer and aligner here: see `with_one_pass`. Axes that vary are found by running
    the model at two sizes.

    Args:
        model: model in evaluation mode, with the methods of `TranslationModel`.
        weights: file that gets the weights; without it, every graph has a copy of its own.
        progress: is called with each graph before it is traced.

    Raises:
        TypeError: a method is missing.
        ValueError: a method returns something else than its contract says, an axis varies with something other than
            the contract's sizes, or PyTorch's exporter refuses a method.
    """
    if not isinstance(model, TranslationModel):
        needed = [name for name in ("encode", "empty_state", "step", "score") if not hasattr(model, name)]
        raise TypeError(
            f"{type(model).__name__} has no {', '.join(needed)}: see jumok_export.graphs.tracing.TranslationModel"
        )
    small = _Example(model, source_vocabulary, target_vocabulary, B=2, K=3, S=5, P=4, T=7)
    large = _Example(model, source_vocabulary, target_vocabulary, B=3, K=5, S=11, P=9, T=15)
    views = {"encoder": "encode", "decoder": _step_of(model), "scorer": "score", "aligner": "align"}
    if getattr(model, "scores_by_steps", False):
        del views["scorer"], views["aligner"]
    elif _scores_while_aligning(model):
        views = {"encoder": "encode", "decoder": _step_of(model), BOTH: BOTH}
    methods = {graph: method for graph, method in views.items() if hasattr(model, method)}

    def trace(graph: str) -> _Traced:
        return _trace(_View(model, methods[graph]), getattr(small, graph), getattr(large, graph))

    graphs, last = {}, [*methods][-1]
    stored: Stored = {}
    beside = weights is not None and can_fork() and _is_large(model)
    with quick_exporter(), forked(partial(trace, last)) if beside else contextlib.nullcontext() as other:
        for graph, method in methods.items():
            progress(f"exporting the {'scorer and aligner' if graph == BOTH else graph}")
            traced = (other() if graph == last and other is not None else None) or trace(graph)
            graphs[graph] = traced.graph(_View(model, method), weights, stored)
    if BOTH in graphs:
        both = graphs.pop(BOTH)
        graphs |= {"scorer": _part(both, both.outputs[:1]), "aligner": _part(both, both.outputs[1:])}
    return graphs


def _is_large(model: nn.Module) -> bool:
    return sum(parameter.numel() for parameter in model.parameters()) >= BESIDE_PARAMETERS


def _scores_while_aligning(model: nn.Module) -> bool:
    """True if a model has `score_and_align`, and no subclass replaces a method that it stands for."""

    def owner(method: str) -> type:
        return next(each for each in type(model).__mro__ if method in vars(each))

    return hasattr(model, BOTH) and all(issubclass(owner(BOTH), owner(name)) for name in ("forward", "score", "align"))


def _part(graph: Graph, outputs: tuple[TensorSpec, ...]) -> Graph:
    """The part of a graph that computes some of its outputs."""
    model = declare(graph.copy_model(), graph.inputs, outputs).model
    drop_unread(model.graph)
    read = {name for node in model.graph.node for name in node.input}
    return declare(model, tuple(spec for spec in graph.inputs if spec.name in read), outputs)


def _step_of(model: TranslationModel) -> str:
    """The name of the method that becomes the decoder."""
    return next(method for method in ("step_in_place", "attending_step", "step") if hasattr(model, method))


@dataclass(frozen=True)
class _GraphExample:
    """Inputs of one graph at one set of sizes, with tensor names."""

    arguments: tuple[Any, ...]
    inputs: dict[str, Tensor]
    output_names: tuple[str, ...]
    sizes: dict[str, int]
    check: Callable[[Any], None] = lambda _: None
    """Raises ValueError for outputs of a wrong shape."""


class _Example:
    def __init__(self, model: TranslationModel, source_vocabulary: int, target_vocabulary: int, **sizes: int) -> None:
        b, k, s, p, t = (sizes[name] for name in "BKSPT")
        r = b * k
        generator = torch.Generator().manual_seed(0)
        sizes = {**sizes, "R": r, "T_new": t + 1}
        source = {
            "source_ids": torch.randint(source_vocabulary, (b, s), generator=generator),
            "source_lengths": torch.full((b,), s),
        }
        with torch.no_grad(), shapes_noted("encode", source):
            memory, first_state = check_encoded(model.encode(*source.values()), b)
        with torch.no_grad():
            empty = model.empty_state()
        empty = check_empty_state(empty, first_state, carried=getattr(model, "scores_by_steps", False))
        self.encoder = _GraphExample(
            tuple(source.values()),
            source,
            (*(f"memory.{name}" for name in memory), *(f"state.{name}" for name in first_state)),
            {"B": b, "S": s},
        )
        rows = {
            "token_ids": torch.randint(target_vocabulary, (r,), generator=generator),
            "positions": torch.arange(t, t - r, -1).clamp(min=0),
            "parents": torch.randint(p, (r,), generator=generator),
            "source_lengths": source["source_lengths"],
        }
        symbols: tuple[str, ...] = ("B", "R", "P", "S", "T", "T_new")
        in_place = _step_of(model) == "step_in_place"
        if in_place:
            rows = {
                "token_ids": rows["token_ids"].reshape(b, k),
                "positions": rows["positions"].reshape(b, k),
                "places": torch.zeros(b, k, 3, dtype=torch.int64),
                "visible": torch.rand(b, k, t, generator=generator) < 0.5,
                "entry_positions": torch.randint(t, (b, t), generator=generator),
                "source_lengths": source["source_lengths"],
            }
            sizes["E"] = t
            symbols = ("B", "K", "R", "S", "E")
        state_rows = b if in_place else p
        state = {name: _enlarge(row, state_rows, t, generator) for name, row in empty.items()}
        self.decoder = _GraphExample(
            (*rows.values(), memory, state),
            {
                **rows,
                **{f"memory.{name}": value for name, value in memory.items()},
                **{f"state.{name}": value for name, value in state.items()},
            },
            (
                "logits",
                *(f"next_state.{name}" for name in state),
                *([ATTENTION] if _step_of(model) == "attending_step" else []),
            ),
            {name: sizes[name] for name in symbols},
            lambda outputs: check_step(_step_of(model), outputs, r, b if in_place else r, empty),
        )
        targets = {
            **source,
            "start_ids": torch.randint(target_vocabulary, (b,), generator=generator),
            "target_ids": torch.randint(target_vocabulary, (b, t), generator=generator),
            "target_lengths": torch.full((b,), t),
        }
        pair = {name: sizes[name] for name in "BST"}
        scores, attention = ("log_probabilities",), ("cross_attention", "encoder_attention", "decoder_attention")
        given = tuple(targets.values())
        self.scorer = _GraphExample(given, targets, scores, pair, lambda outputs: check_scores(outputs, b, t))
        self.aligner = _GraphExample(given, targets, attention, pair, lambda outputs: check_attention(outputs, b))
        self.score_and_align = _GraphExample(given, targets, (*scores, *attention), pair)


def _enlarge(row: Tensor, rows: int, time: int, generator: torch.Generator) -> Tensor:
    """Random state like `row` [1, ...] with `rows` rows and given time.

    An axis of size 0 gets the size `time`.
    """
    shape = [rows, *(size or time for size in row.shape[1:])]
    return torch.randn(shape, generator=generator).to(row.dtype)


class _Traced(NamedTuple):
    """A traced graph, whose weights are not in a file yet."""

    model: TracedModel
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def graph(self, view: _View, weights: WeightsFile | None, stored: Stored) -> Graph:
        """The graph, with its large constants in a file, if there is one."""
        model = with_weights_in(weights, self.model, view, stored)
        read = {name for node in model.graph.node for name in node.input}
        # Memory and state are passed on whole; other inputs are left out if the model does not read them.
        used = tuple(spec for spec in self.inputs if "." in spec.name or spec.name in read)
        return declare(model, used, self.outputs)


def _trace(view: _View, small: _GraphExample, large: _GraphExample) -> _Traced:
    outputs = [view.run(example) for example in (small, large)]
    sizes = (small.sizes, large.sizes)
    inputs = tuple(_spec(name, (value, large.inputs[name]), sizes, view.method) for name, value in small.inputs.items())
    results = tuple(
        _spec(name, pair, sizes, view.method)
        for name, pair in zip(small.output_names, zip(*outputs, strict=True), strict=True)
    )
    specs = {spec.name: spec for spec in inputs}

    def dynamic(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: dynamic(item, f"{name}.{key}") for key, item in value.items()}
        return {axis: Dim.DYNAMIC for axis, size in enumerate(specs[name].axes) if isinstance(size, str)}

    names = [name for name in small.inputs if "." not in name]
    names += ["memory", "state"][: len(small.arguments) - len(names)]
    shapes = tuple(dynamic(value, name) for name, value in zip(names, small.arguments, strict=True))
    # PyTorch remembers how it dispatched recurrent operators in an earlier export; it would unroll them at this length.
    for operator in (torch.ops.aten.gru.input, torch.ops.aten.lstm.input):
        getattr(operator, "_dispatch_cache", {}).clear()
    try:
        with _quiet():
            exported = torch.onnx.export(
                view,
                (*small.arguments, {}),  # without keyword arguments: what a last dictionary would be taken for
                dynamo=True,
                opset_version=OPSET,
                input_names=list(specs),
                output_names=list(small.output_names),
                dynamic_shapes=(shapes,),
                custom_translation_table=TRANSLATIONS,
                verbose=False,
            )
    except Exception as error:  # the exporter raises many types
        raise ValueError(_refusal(view.method, error)) from error
    assert exported is not None
    return _Traced(without_weights(exported, view), inputs, results)


def _refusal(method: str, error: Exception) -> str:
    """Describe the exporter's refusal: its reason, the line of the model, and what helps."""
    causes: list[BaseException] = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    reasons = [line.strip(" -") for line in str(causes[-1]).splitlines() if line.strip(" -")]
    # A first line that announces others says nothing alone.
    reason = (
        " ".join(reasons[:2]) if reasons and reasons[0].endswith(":") else next(iter(reasons), type(error).__name__)
    )
    line = re.search(r"The following call raised this error:\n\s*File (.+)(?:\n[ \t]+(\S.*))?", str(causes[-1]))
    code = f": `{line[2].strip()}`" if line and line[2] else ""  # none in a notebook
    where = f" at {line[1]}{code}" if line else ""
    return (
        f"PyTorch's exporter refuses `{method}`{where}: {reason}\nhint: no Python loop, condition or size may depend "
        "on the number of tokens or on values of tensors; use layers of whole sequences such as nn.GRU, and masks"
    )


def _spec(
    name: str, values: tuple[Tensor, Tensor], sizes: tuple[dict[str, int], dict[str, int]], method: str
) -> TensorSpec:
    """Describe a tensor by its shapes at two sizes."""
    axes: list[int | str] = []
    for axis, pair in enumerate(zip(values[0].shape, values[1].shape, strict=True)):
        symbols = [symbol for symbol in sizes[0] if (sizes[0][symbol], sizes[1][symbol]) == pair]
        if pair[0] == pair[1]:
            axes.append(pair[0])
        elif symbols:
            axes.append(symbols[0])
        else:
            raise ValueError(
                f"axis {axis} of {name!r} in `{method}` has size {pair[0]} and {pair[1]} where the sizes are "
                f"{sizes[0]} and {sizes[1]}: it must be constant or one of them"
            )
    return TensorSpec.model_validate(
        {"name": name, "dtype": str(values[0].dtype).removeprefix("torch."), "axes": tuple(axes)}
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep PyTorch's messages off the terminal; its prints, such as graphs that failed, go to the log."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    printed = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if printed.getvalue().strip():
            logger.debug("PyTorch's exporter printed:\n%s", printed.getvalue())
