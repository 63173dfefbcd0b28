"""The graphs that choose tokens: `select` picks every row's best candidates, `sampler` draws one token a row.

Both work on logits where these lie. Constraints come in as sparse lists: factors (a value below 0 is multiplied, one
above 0 divided) and then biases (added). The semantics are those of the logits processors of Hugging Face's `generate`.
"""

import onnx
from onnx import NodeProto, TensorProto, helper

from jumok_export.onnx_graph import OPSET, Graph, declare
from jumok_serve.manifest import TensorSpec

SORTED_FOR_MASS = 512
"""Tokens among which top-p is looked for first."""


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
        node("Min", ["candidates", "vocabulary"], ["count"]),
        *_candidates("constrained", "renormalize"),
        node("Unsqueeze", ["scores", "last"], ["running"]),
        node("Add", ["best", "running"], ["totals"]),
    ]
    return _graph("select", nodes, inputs, outputs, vocabulary)


def sampler_graph(vocabulary: int) -> Graph:
    """The graph that draws one token for each of the rows that `rows` names.

    Logits are constrained, divided by the temperature, cut to the `top_k` best (0 keeps all) and then to the fewest
    best whose probabilities reach `top_p`; tokens as likely as the last that is kept are kept too. The token is the
    first, by id, at which the cumulative probability exceeds `uniform`: inversion sampling. `totals` is the running
    score plus the token's log-probability among those that were kept.

    Cutting needs the best logits in order, but seldom more than a few hundred of them: the whole vocabulary is sorted
    only where these do not reach `top_p`.
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
    columns = ("scores", "temperature", "top_k", "top_p", "uniform")
    nodes = [
        *(node("Unsqueeze", [name, "last"], [f"{name}.column"]) for name in columns),  # [D, 1]
        node("Gather", ["logits", "rows"], ["drawn"], axis=0),
        *_constrain("drawn", "logit", "constrained"),
        node("ReduceMax", ["constrained", "last"], ["best"], keepdims=1),
        node("Sub", ["constrained", "best"], ["centred"]),  # so that no temperature leads beyond every float
        node("Div", ["centred", "temperature.column"], ["warm"]),
        # How many of the best are put in order.
        node("Less", ["top_p.column", "certain"], ["cuts"]),
        node("Where", ["cuts", "sorted_for_mass", "one"], ["depth_for_mass"]),
        node("Max", ["depth_for_mass", "top_k.column"], ["depths"]),
        node("ReduceMax", ["depths"], ["depth"], keepdims=0),
        node("Min", ["depth", "vocabulary"], ["some"]),
        node("TopK", ["warm", "some"], ["some_best", "some_order"], axis=-1, largest=1, sorted=1),
        # Top-k: everything that is not below the k-th best.
        node("Equal", ["top_k.column", "zero"], ["unlimited"]),
        node("Min", ["top_k.column", "vocabulary"], ["limit"]),
        node("Sub", ["limit", "one"], ["last_of_k"]),
        node("Max", ["last_of_k", "zero"], ["place_of_k"]),
        node("GatherElements", ["some_best", "place_of_k"], ["kth_best"], axis=1),
        node("Where", ["unlimited", "minus_infinity", "kth_best"], ["least_of_k"]),
        *_at_least("warm", "least_of_k", "top"),
        node("ReduceLogSumExp", ["top", "last"], ["norm"], keepdims=1),
        # Top-p: a token stays while those before it have not reached p. Where p is 1, rounding must cut nothing.
        *_probabilities("some_best"),
        node("ReduceSum", ["some_best.probabilities", "last"], ["reached"], keepdims=1),
        node("Less", ["reached", "top_p.column"], ["short"]),
        node("And", ["short", "cuts"], ["lacking"]),
        *_if_any(
            "lacking",
            then=[node("TopK", ["warm", "vocabulary"], ["all_best", "all_order"], axis=-1, largest=1, sorted=1)],
            otherwise=[node("Identity", ["some_best"], ["few_best"])],
            outputs={"ordered": ("all_best", "few_best")},
        ),
        *_probabilities("ordered"),
        node("CumSum", ["ordered.probabilities", "axis"], ["mass_before"], exclusive=1),
        node("Less", ["mass_before", "top_p.column"], ["within"]),
        node("Where", ["within", "ordered", "infinity"], ["those_within"]),
        node("ReduceMin", ["those_within", "last"], ["last_within"], keepdims=1),
        node("Where", ["cuts", "last_within", "minus_infinity"], ["least_of_p"]),
        *_at_least("top", "least_of_p", "nucleus"),
        # Inversion: the place of the token is the number of tokens whose cumulative probability is not above uniform.
        node("LogSoftmax", ["nucleus"], ["log_probabilities"], axis=-1),
        node("Exp", ["log_probabilities"], ["weights"]),
        node("Cast", ["weights"], ["exact_weights"], to=TensorProto.DOUBLE),
        node("CumSum", ["exact_weights", "axis"], ["cumulative"]),
        node("ReduceMax", ["cumulative", "last"], ["all"], keepdims=1),
        node("Cast", ["uniform.column"], ["level"], to=TensorProto.DOUBLE),
        node("LessOrEqual", ["cumulative", "level"], ["passed"]),
        node("Less", ["cumulative", "all"], ["followed"]),  # rounding may leave the sum short of 1
        node("And", ["passed", "followed"], ["skipped"]),
        node("Cast", ["skipped"], ["skipped_count"], to=TensorProto.INT64),
        node("ReduceSum", ["skipped_count", "last"], ["tokens"], keepdims=1),
        node("GatherElements", ["log_probabilities", "tokens"], ["log_probability"], axis=1),
        node("Add", ["log_probability", "scores.column"], ["totals"]),
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


def _candidates(scores: str, renormalized: str) -> list[NodeProto]:
    """The `count` best of every row, as `best` and `tokens`; a log-softmax of the rows that ask for it goes before."""
    node = helper.make_node
    return _if_any(
        renormalized,
        then=[
            node("LogSoftmax", [scores], ["normal"], axis=-1),
            node("Unsqueeze", [renormalized, "last"], ["asking"]),
            node("Where", ["asking", "normal", scores], ["processed"]),
            node("TopK", ["processed", "count"], ["then_best", "then_tokens"], axis=-1, largest=1, sorted=1),
        ],
        otherwise=[node("TopK", [scores, "count"], ["else_best", "else_tokens"], axis=-1, largest=1, sorted=1)],
        outputs={"best": ("then_best", "else_best"), "tokens": ("then_tokens", "else_tokens")},
    )


def _at_least(scores: str, least: str, output: str) -> list[NodeProto]:
    """Scores, -inf where they are below `least`."""
    node = helper.make_node
    return [
        node("Less", [scores, least], [f"{output}.below"]),
        node("Where", [f"{output}.below", "minus_infinity", scores], [output]),
    ]


def _probabilities(ordered: str) -> list[NodeProto]:
    """Probabilities of the best of every row among those that top-k leaves."""
    node = helper.make_node
    return [
        *_at_least(ordered, "least_of_k", f"{ordered}.top"),
        node("Sub", [f"{ordered}.top", "norm"], [f"{ordered}.log_probabilities"]),
        node("Exp", [f"{ordered}.log_probabilities"], [f"{ordered}.probabilities"]),
    ]


def _if_any(
    condition: str, *, then: list[NodeProto], otherwise: list[NodeProto], outputs: dict[str, tuple[str, str]]
) -> list[NodeProto]:
    """Computes `then` where a condition holds anywhere; the value names what each branch calls an output."""
    node = helper.make_node
    branches = [
        helper.make_graph(
            nodes,
            name,
            [],
            [
                helper.make_tensor_value_info(
                    names[place], TensorProto.INT64 if output == "tokens" else TensorProto.FLOAT, None
                )
                for output, names in outputs.items()
            ],
        )
        for place, (name, nodes) in enumerate((("some", then), ("none", otherwise)))
    ]
    return [
        node("Cast", [condition], [f"{condition}.number"], to=TensorProto.INT32),
        node("ReduceMax", [f"{condition}.number"], [f"{condition}.most"], keepdims=0),
        node("Cast", [f"{condition}.most"], [f"{condition}.any"], to=TensorProto.BOOL),
        node("If", [f"{condition}.any"], list(outputs), then_branch=branches[0], else_branch=branches[1]),
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
        helper.make_tensor("sorted_for_mass", TensorProto.INT64, [1], [SORTED_FOR_MASS]),
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
