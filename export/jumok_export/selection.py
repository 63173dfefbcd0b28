"""The graphs that choose tokens: `select` picks every row's best candidates, `sampler` draws one token a row.

Both work on logits where these lie. Constraints come in as sparse lists: factors (a value below 0 is multiplied, one
above 0 divided) and then biases (added). The semantics are those of the logits processors of Hugging Face's `generate`.
"""

import onnx
from onnx import NodeProto, TensorProto, helper

from jumok_export.onnx_graph import OPSET, Graph, declare
from jumok_serve.manifest import TensorSpec


def selection_graphs(vocabulary: int) -> dict[str, Graph]:
    """The graphs `select` and `sampler` for logits of this width."""
    return {"select": select_graph(vocabulary), "sampler": sampler_graph(vocabulary)}


def select_graph(vocabulary: int) -> Graph:
    """The graph that picks every row's best candidates: constraints, log-softmax and top-k.

    `totals` is the running score plus the processed log-probability. What begins with `logit` acts before the
    log-softmax (greedy search), what begins with `log_prob` after it, and is not renormalised (beam search) unless the
    row's `renormalize` is true. Of equal candidates the lower token comes first.
    """
    inputs = (
        TensorSpec(name="logits", dtype="float32", axes=("R", vocabulary)),
        TensorSpec(name="scores", dtype="float32", axes=("R",)),
        TensorSpec(name="candidates", dtype="int64", axes=(1,)),
        *_constraint_specs("logit"),
        *_constraint_specs("log_prob"),
        TensorSpec(name="renormalize", dtype="bool", axes=("R",)),
    )
    outputs = (
        TensorSpec(name="tokens", dtype="int64", axes=("R", "C")),
        TensorSpec(name="totals", dtype="float32", axes=("R", "C")),
    )
    node = helper.make_node
    nodes = [
        *_constrain("logits", "logit", "constrained_logits"),
        node("LogSoftmax", ["constrained_logits"], ["log_probabilities"], axis=-1),
        *_constrain("log_probabilities", "log_prob", "constrained"),
        *_renormalize("constrained", "renormalize", "processed"),
        node("Min", ["candidates", "vocabulary"], ["count"]),
        node("TopK", ["processed", "count"], ["best", "tokens"], axis=-1, largest=1, sorted=1),
        node("Unsqueeze", ["scores", "last"], ["running"]),
        node("Add", ["best", "running"], ["totals"]),
    ]
    return _graph("select", nodes, inputs, outputs, vocabulary)


def sampler_graph(vocabulary: int) -> Graph:
    """The graph that draws one token for each of the rows that `rows` names.

    Logits are constrained, divided by the temperature, cut to the `top_k` best (equal ones to the last are kept; 0
    keeps all) and then to the fewest best whose probabilities reach `top_p`; the best one is always kept. The token is
    the first, by falling probability, at which the cumulative probability exceeds `uniform`: inversion sampling.
    `totals` is the running score plus the token's log-probability among those that were kept.
    """
    inputs = (
        TensorSpec(name="logits", dtype="float32", axes=("R", vocabulary)),
        TensorSpec(name="rows", dtype="int64", axes=("D",)),
        TensorSpec(name="scores", dtype="float32", axes=("D",)),
        *_constraint_specs("logit"),
        TensorSpec(name="temperature", dtype="float32", axes=("D",)),
        TensorSpec(name="top_k", dtype="int64", axes=("D",)),
        TensorSpec(name="top_p", dtype="float32", axes=("D",)),
        TensorSpec(name="uniform", dtype="float32", axes=("D",)),
    )
    outputs = (
        TensorSpec(name="tokens", dtype="int64", axes=("D", 1)),
        TensorSpec(name="totals", dtype="float32", axes=("D", 1)),
    )
    node = helper.make_node
    nodes = [
        node("Gather", ["logits", "rows"], ["drawn"], axis=0),
        *_constrain("drawn", "logit", "constrained"),
        node("Unsqueeze", ["temperature", "last"], ["temperatures"]),
        node("Div", ["constrained", "temperatures"], ["warm"]),
        node("TopK", ["warm", "vocabulary"], ["sorted", "order"], axis=-1, largest=1, sorted=1),
        # Top-k: everything that is not below the k-th best; 0 stands for the whole vocabulary.
        node("Equal", ["top_k", "zero"], ["unlimited"]),
        node("Where", ["unlimited", "vocabulary", "top_k"], ["limited"]),
        node("Min", ["limited", "vocabulary"], ["kept"]),
        node("Sub", ["kept", "one"], ["last_kept"]),
        node("Unsqueeze", ["last_kept", "last"], ["last_kept_place"]),
        node("GatherElements", ["sorted", "last_kept_place"], ["threshold"], axis=1),
        node("Less", ["sorted", "threshold"], ["below_threshold"]),
        node("Where", ["below_threshold", "minus_infinity", "sorted"], ["top"]),
        # Top-p: a token stays while those before it have not reached p.
        node("Softmax", ["top"], ["probabilities"], axis=-1),
        node("CumSum", ["probabilities", "axis"], ["before"], exclusive=1),
        node("Less", ["top_p", "certain"], ["cuts"]),  # where p is 1, rounding must not cut the least likely
        node("Where", ["cuts", "top_p", "infinity"], ["reach"]),
        node("Unsqueeze", ["reach", "last"], ["mass"]),
        node("Less", ["before", "mass"], ["within_mass"]),
        node("Where", ["within_mass", "top", "minus_infinity"], ["nucleus"]),
        # Inversion: the place of the token is the number of tokens whose cumulative probability is not above uniform.
        node("LogSoftmax", ["nucleus"], ["log_probabilities"], axis=-1),
        node("Exp", ["log_probabilities"], ["weights"]),
        node("CumSum", ["weights", "axis"], ["cumulative"]),
        node("Unsqueeze", ["uniform", "last"], ["level"]),
        node("LessOrEqual", ["cumulative", "level"], ["passed"]),
        node("Greater", ["weights", "nothing"], ["possible"]),  # rounding may leave the sum short of 1
        node("And", ["passed", "possible"], ["skipped"]),
        node("Cast", ["skipped"], ["skipped_count"], to=TensorProto.INT64),
        node("Cast", ["possible"], ["possible_count"], to=TensorProto.INT64),
        node("ReduceSum", ["skipped_count", "last"], ["place"], keepdims=1),
        node("ReduceSum", ["possible_count", "last"], ["choices"], keepdims=1),
        node("Sub", ["choices", "one"], ["last_choice"]),
        node("Min", ["place", "last_choice"], ["bounded"]),
        node("Max", ["bounded", "zero"], ["chosen"]),
        node("GatherElements", ["order", "chosen"], ["tokens"], axis=1),
        node("GatherElements", ["log_probabilities", "chosen"], ["log_probability"], axis=1),
        node("Unsqueeze", ["scores", "last"], ["running"]),
        node("Add", ["log_probability", "running"], ["totals"]),
    ]
    return _graph("sampler", nodes, inputs, outputs, vocabulary)


def _constraint_specs(stage: str) -> tuple[TensorSpec, ...]:
    """Factors and biases of one stage, as (row, token) and value."""
    return tuple(
        spec
        for kind in ("factors", "biases")
        for spec in (
            TensorSpec(name=f"{stage}_{kind}.places", dtype="int64", axes=(f"{stage}_{kind}", 2)),
            TensorSpec(name=f"{stage}_{kind}.values", dtype="float32", axes=(f"{stage}_{kind}",)),
        )
    )


def _constrain(scores: str, stage: str, output: str) -> list[NodeProto]:
    """Factors, then biases. No place has two factors, so replacing values is safe."""
    node = helper.make_node
    factors, biases = f"{stage}_factors", f"{stage}_biases"
    return [
        node("GatherND", [scores, f"{factors}.places"], [f"{stage}_old"]),
        node("Less", [f"{stage}_old", "nothing"], [f"{stage}_negative"]),
        node("Mul", [f"{stage}_old", f"{factors}.values"], [f"{stage}_multiplied"]),
        node("Div", [f"{stage}_old", f"{factors}.values"], [f"{stage}_divided"]),
        node("Where", [f"{stage}_negative", f"{stage}_multiplied", f"{stage}_divided"], [f"{stage}_new"]),
        node("ScatterND", [scores, f"{factors}.places", f"{stage}_new"], [f"{stage}_penalised"]),
        node("ScatterND", [f"{stage}_penalised", f"{biases}.places", f"{biases}.values"], [output], reduction="add"),
    ]


def _renormalize(scores: str, rows: str, output: str) -> list[NodeProto]:
    """Log-softmax of the rows that ask for it; nothing is computed where none does."""
    node = helper.make_node
    some = helper.make_graph(
        [
            node("LogSoftmax", [scores], ["normal"], axis=-1),
            node("Unsqueeze", [rows, "last"], ["asking"]),
            node("Where", ["asking", "normal", scores], ["renormalized"]),
        ],
        "some",
        [],
        [helper.make_tensor_value_info("renormalized", TensorProto.FLOAT, None)],
    )
    none = helper.make_graph(
        [node("Identity", [scores], ["unchanged"])],
        "none",
        [],
        [helper.make_tensor_value_info("unchanged", TensorProto.FLOAT, None)],
    )
    return [
        node("Cast", [rows], ["asked"], to=TensorProto.INT32),
        node("ReduceMax", ["asked"], ["any_asked"], keepdims=0),
        node("Cast", ["any_asked"], ["any_asks"], to=TensorProto.BOOL),
        node("If", ["any_asks"], [output], then_branch=some, else_branch=none),
    ]


def _graph(
    name: str,
    nodes: list[NodeProto],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    vocabulary: int,
) -> Graph:
    constants = [
        helper.make_tensor("last", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("axis", TensorProto.INT64, [], [-1]),
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("vocabulary", TensorProto.INT64, [1], [vocabulary]),
        helper.make_tensor("nothing", TensorProto.FLOAT, [1], [0.0]),
        helper.make_tensor("certain", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("infinity", TensorProto.FLOAT, [1], [float("inf")]),
        helper.make_tensor("minus_infinity", TensorProto.FLOAT, [1], [float("-inf")]),
    ]
    read = {name for node in nodes for name in node.input} | {"last"}
    used = [constant for constant in constants if constant.name in read]
    model = helper.make_model(
        helper.make_graph(nodes, name, [], [], initializer=used),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=10,
    )
    declare(model, inputs, outputs)
    onnx.checker.check_model(model)
    return Graph(model, inputs, outputs)
