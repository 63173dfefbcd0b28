"""Selection graphs: `select` finds each row's best candidates, `sampler` draws one token.

Constraints are sparse: factors (scores below 0 are multiplied, others divided), then biases (added), as in the logits
processors of Hugging Face's `generate`.
"""

from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from jumok_export.graphs.graph import Graph, make_graph
from jumok_serve.manifest.manifest import TensorSpec

SORTED_FOR_MASS = 512
"""Tokens that are sorted first for top-p."""

TYPICAL_CANDIDATES = 8
"""Candidates that the block width is optimised for: those of beam size 4."""

SAVED_BY_BLOCKS = 4
"""Blocks are used if they reduce the scores to sort by this factor."""


SHORTLIST_BLOCK = 16
"""Tokens per block in shortlist logits; fastest for 1,000 to 4,000 tokens. The width of the logits is a multiple."""


def select_graph(width: int | None) -> Graph:
    """Make the graph that finds each row's best candidates: constraints, log-softmax, top-k.

    `totals` is the running score plus the processed log-probability. `logit` constraints apply before the log-softmax
    (greedy search), `log_prob` constraints after it (beam search); only the rows in `renormalize` get another
    log-softmax. Among equal candidates the lower token comes first. A row's result does not depend on other rows.

    Args:
        width: width of the logits; None for any multiple of `SHORTLIST_BLOCK`, where tokens are columns.
    """
    node = helper.make_node
    nodes = [
        *_width(width),
        *_constrain("logits", "logit", "constrained_logits"),
        node("LogSoftmax", ["constrained_logits"], ["log_probabilities"], axis=-1),
        *_constrain("log_probabilities", "log_prob", "constrained"),
        node("Min", ["candidates", "vocabulary"], ["count"]),
        *_candidates("constrained", width),
        node("Gather", ["constrained", "renormalize"], ["renormalized_rows"], axis=0),
        node("LogSoftmax", ["renormalized_rows"], ["normal"], axis=-1),
        node("Gather", ["tokens", "renormalize"], ["renormalized_tokens"], axis=0),
        node("GatherElements", ["normal", "renormalized_tokens"], ["normal_best"], axis=1),
        node("Unsqueeze", ["renormalize", "last"], ["renormalized_places"]),
        node("ScatterND", ["best", "renormalized_places", "normal_best"], ["processed"]),
        node("Unsqueeze", ["scores", "last"], ["running"]),
        node("Add", ["processed", "running"], ["totals"]),
    ]
    flat = [*_flat_values("logit"), *_flat_values("log_prob")]
    return _graph("select", nodes, select_inputs(width), SELECTED, width=width, flat=flat)


def sampler_graph(width: int | None) -> Graph:
    """Make the graph that draws one token for each of the rows in `rows`.

    Logits are constrained, divided by the temperature, cut to the `top_k` best (0: all) and to the fewest best whose
    probabilities reach `top_p`; ties with the last token stay. The token is the first, by id, whose cumulative
    probability exceeds `uniform` (inversion sampling). `totals` is the running score plus the token's log-probability
    among those kept.

    The whole vocabulary is sorted only if the best few hundred logits do not reach `top_p`.

    Args:
        width: width of the logits; None for any, where tokens are columns.
    """
    inputs = (
        _logits_spec(width),
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
        *_width(width),
        *(node("Unsqueeze", [name, "last"], [f"{name}.column"]) for name in columns),  # [D, 1]
        node("Gather", ["logits", "rows"], ["drawn"], axis=0),
        *_constrain("drawn", "logit", "constrained"),
        node("ReduceMax", ["constrained", "last"], ["best"], keepdims=1),
        node("Sub", ["constrained", "best"], ["centred"]),  # so that no temperature leads beyond every float
        node("Div", ["centred", "temperature.column"], ["warm"]),
        # Number of best scores to sort.
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
        node("Cast", ["lacking"], ["lacking.number"], to=TensorProto.INT32),
        node("ReduceMax", ["lacking.number"], ["lacking.most"], keepdims=0),
        *_if(
            "lacking.most",
            then=[node("TopK", ["warm", "vocabulary"], ["all_best", "all_order"], axis=-1, largest=1, sorted=1)],
            otherwise=[node("Identity", ["some_best"], ["few_best"])],
            output="ordered",
        ),
        *_probabilities("ordered"),
        node("Cast", ["ordered.probabilities"], ["ordered.exact"], to=TensorProto.DOUBLE),  # sums of fp32 drift
        node("CumSum", ["ordered.exact", "axis"], ["mass_before"], exclusive=1),
        node("Cast", ["top_p.column"], ["top_p.exact"], to=TensorProto.DOUBLE),
        node("Less", ["mass_before", "top_p.exact"], ["within"]),
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
    return _graph("sampler", nodes, inputs, outputs, width=width, flat=_flat_values("logit"))


def _logits_spec(width: int | None) -> TensorSpec:
    return TensorSpec(name="logits", dtype="float32", axes=("R", width or "U"))


def _width(width: int | None) -> list[NodeProto]:
    """Nodes that compute the width of logits that have no constant width."""
    if width is not None:
        return []
    node = helper.make_node
    return [
        node("Shape", ["logits"], ["vocabulary"], start=1),
        node("Concat", ["last", "vocabulary"], ["by_row"], axis=0),
    ]


def select_inputs(width: int | None) -> tuple[TensorSpec, ...]:
    """Inputs of a graph `select`."""
    return (
        _logits_spec(width),
        TensorSpec(name="scores", dtype="float32", axes=("R",)),
        TensorSpec(name="candidates", dtype="int64", axes=(1,)),
        *_constraint_specs("logit"),
        *_constraint_specs("log_prob"),
        TensorSpec(name="renormalize", dtype="int64", axes=("N",)),
    )


SELECTED = (
    TensorSpec(name="tokens", dtype="int64", axes=("R", "C")),
    TensorSpec(name="totals", dtype="float32", axes=("R", "C")),
)
"""Outputs of a graph `select`."""


def _constraint_specs(stage: str) -> tuple[TensorSpec, ...]:
    """Factors and biases of one stage, with positions in flat scores.

    A position is row * width + token.
    """
    return tuple(
        spec
        for kind in ("factors", "biases")
        for spec in (
            TensorSpec(name=f"{stage}_{kind}.places", dtype="int64", axes=(f"{stage}_{kind}",)),
            TensorSpec(name=f"{stage}_{kind}.values", dtype="float32", axes=(f"{stage}_{kind}",)),
        )
    )


def _constrain(scores: str, stage: str, output: str) -> list[NodeProto]:
    """Apply factors, then biases. No score has two factors, so scattering values is safe.

    Scores are flat meanwhile: unlike `ScatterND`, `ScatterElements` may work in place.
    """
    node = helper.make_node
    factors, biases = f"{stage}_factors", f"{stage}_biases"
    flat, penalised, biased = _flat_names(stage)
    return [
        node("Reshape", [scores, "last"], [flat]),
        node("Gather", [flat, f"{factors}.places"], [f"{stage}_old"]),
        node("Less", [f"{stage}_old", "nothing"], [f"{stage}_negative"]),
        node("Mul", [f"{stage}_old", f"{factors}.values"], [f"{stage}_multiplied"]),
        node("Div", [f"{stage}_old", f"{factors}.values"], [f"{stage}_divided"]),
        node("Where", [f"{stage}_negative", f"{stage}_multiplied", f"{stage}_divided"], [f"{stage}_new"]),
        node("ScatterElements", [flat, f"{factors}.places", f"{stage}_new"], [penalised]),
        node("ScatterElements", [penalised, f"{biases}.places", f"{biases}.values"], [biased], reduction="add"),
        node("Reshape", [biased, "by_row"], [output]),
    ]


def _flat_names(stage: str) -> tuple[str, ...]:
    return tuple(f"{stage}_{name}" for name in ("flat", "penalised", "biased"))


def _flat_values(stage: str) -> list[ValueInfoProto]:
    """Shapes that let ONNX Runtime update flat scores in place."""
    size = f"{stage}_scores"
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in _flat_names(stage)]


def _candidates(scores: str, vocabulary: int | None) -> list[NodeProto]:
    """Find the `count` best of every row, in order, as `best`, and their `tokens`.

    A large vocabulary is cut into blocks of consecutive tokens. Only the `count` blocks with the highest maxima are
    searched: each other block follows `count` blocks with a higher maximum, or an equal one at a lower token.
    """
    node = helper.make_node
    width = SHORTLIST_BLOCK if vocabulary is None else block_width(vocabulary)
    if width is None:
        return [node("TopK", [scores, "count"], ["best", "tokens"], axis=-1)]
    if vocabulary is None:
        number, blocks = -1, node("Div", ["vocabulary", "width"], ["blocks"])
    else:
        number = vocabulary // width
        blocks = node("Constant", [], ["blocks"], value_ints=[number])
    return [
        node("Constant", [], ["width"], value_ints=[width]),
        node("Constant", [], ["cut"], value_ints=[0, number, width]),
        blocks,
        node("Constant", [], ["flat"], value_ints=[0, -1]),
        node("Reshape", [scores, "cut"], ["by_block"]),
        node("ReduceMax", ["by_block", "last"], ["maxima"], keepdims=0),
        node("Min", ["count", "blocks"], ["depth"]),
        node("TopK", ["maxima", "depth"], ["highest", "chosen"], axis=-1),
        node("TopK", ["chosen", "depth"], ["ascending", "order"], axis=-1, largest=0),  # so that ties go by token
        node("Unsqueeze", ["ascending", "last"], ["places"]),
        node("GatherND", ["by_block", "places"], ["within_chosen"], batch_dims=1),
        node("Reshape", ["within_chosen", "flat"], ["few"]),
        node("TopK", ["few", "count"], ["best", "found"], axis=-1),
        node("Div", ["found", "width"], ["which"]),
        node("GatherElements", ["ascending", "which"], ["block"], axis=1),
        node("Sub", ["block", "which"], ["moved"]),  # from block number `which` of the few to `block` of them all
        node("Mul", ["moved", "width"], ["distance"]),
        node("Add", ["found", "distance"], ["tokens"]),
    ]


def block_width(vocabulary: int) -> int | None:
    """Tokens per block for the fewest scores to sort; None: no blocks."""

    def to_order(width: int) -> int:
        return vocabulary // width + TYPICAL_CANDIDATES * width

    best = min((width for width in range(1, vocabulary + 1) if vocabulary % width == 0), key=to_order)
    return best if to_order(best) * SAVED_BY_BLOCKS <= vocabulary else None


def _at_least(scores: str, least: str, output: str) -> list[NodeProto]:
    """Scores, -inf if they are below `least`."""
    node = helper.make_node
    return [
        node("Less", [scores, least], [f"{output}.below"]),
        node("Where", [f"{output}.below", "minus_infinity", scores], [output]),
    ]


def _probabilities(ordered: str) -> list[NodeProto]:
    """Probabilities of each row's best tokens among those that top-k keeps."""
    node = helper.make_node
    return [
        *_at_least(ordered, "least_of_k", f"{ordered}.top"),
        node("Sub", [f"{ordered}.top", "norm"], [f"{ordered}.log_probabilities"]),
        node("Exp", [f"{ordered}.log_probabilities"], [f"{ordered}.probabilities"]),
    ]


def _if(number: str, *, then: list[NodeProto], otherwise: list[NodeProto], output: str) -> list[NodeProto]:
    """Compute `then` if a number is not 0, else `otherwise`.

    Each branch outputs the first output of its last node.
    """
    ways = [
        helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)]
        )
        for name, nodes in (("then", then), ("otherwise", otherwise))
    ]
    return [
        helper.make_node("Cast", [number], [f"{number}.any"], to=TensorProto.BOOL),
        helper.make_node("If", [f"{number}.any"], [output], then_branch=ways[0], else_branch=ways[1]),
    ]


def _graph(
    name: str,
    nodes: list[NodeProto],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    *,
    width: int | None,
    flat: list[ValueInfoProto],
) -> Graph:
    constants = [
        helper.make_tensor("last", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("axis", TensorProto.INT64, [], [-1]),
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("sorted_for_mass", TensorProto.INT64, [1], [SORTED_FOR_MASS]),
        helper.make_tensor("nothing", TensorProto.FLOAT, [1], [0.0]),
        helper.make_tensor("certain", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("infinity", TensorProto.FLOAT, [1], [float("inf")]),
        helper.make_tensor("minus_infinity", TensorProto.FLOAT, [1], [float("-inf")]),
    ]
    if width is not None:
        constants[5:5] = [
            helper.make_tensor("vocabulary", TensorProto.INT64, [1], [width]),
            helper.make_tensor("by_row", TensorProto.INT64, [2], [-1, width]),
        ]
    read = {name for node in nodes for name in node.input} | {"last"}
    used = [constant for constant in constants if constant.name in read]
    return make_graph(name, nodes, inputs, outputs, constants=used, shapes=flat)
