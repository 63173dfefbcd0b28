"""Native products: operators that are fused with them, and those that are not."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import NodeProto

from jumok_export.graphs.graph import Graph
from jumok_export.graphs.matching import attributes
from jumok_export.native.graphs import native_graph
from jumok_export.native.operators import DOMAIN
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.native import library
from tests.support.models.small_graphs import native_of, node, operators, outputs_of, small_graph

DEPTH, COLUMNS = 6, 10
ROWS = "positions"
"""The input; by its name, the rules know that it has one vector per row."""
RANDOM = np.random.default_rng(9)
CONSTANTS: Mapping[str, Any] = {
    "scale": np.array(0.02, np.float32),
    "zero_point": np.array(128, np.uint8),
    "weights": RANDOM.integers(-64, 65, (DEPTH, COLUMNS), np.int8),  # products of these are cut off nowhere
    "weight_scales": RANDOM.uniform(0.01, 0.03, COLUMNS).astype(np.float32),
    "weight_zero_point": np.array(0, np.int8),
    "bias": RANDOM.normal(size=COLUMNS).astype(np.float32),
}
TYPES: Mapping[str, Literal["uint8", "int8"]] = {"rounded": "uint8", "signed": "int8"}
INPUTS = ("levels", "weights", "scale", "weight_scales", "zero_point", "weight_zero_point", "bias")


def product(output: str = "product", **others: str) -> NodeProto:
    """A product of the quantized input; some inputs may be replaced, or absent ("")."""
    return node("MatMulIntegerToFloat", " ".join(others.get(name, name) for name in INPUTS), output)


def graph_of(nodes: Sequence[NodeProto], *outputs: str, **constants: NDArray[Any]) -> Graph:
    """A graph that quantizes `ROWS` [B, DEPTH], followed by nodes and changed constants."""
    rounded = node("QuantizeLinear", f"{ROWS} scale zero_point", "levels")
    inputs = (TensorSpec(name=ROWS, dtype="float32", axes=("B", DEPTH)),)
    given = tuple(TensorSpec(name=name, dtype=TYPES.get(name, "float32"), axes=("B", COLUMNS)) for name in outputs)
    return small_graph([rounded, *nodes], {**CONSTANTS, **constants}, inputs, given)


def kinds(graph: Graph) -> Counter[str]:
    return Counter(operators(graph))


def made_native(graph: Graph) -> Graph:
    """The native graph, after a comparison of its results."""
    native = native_of(graph)
    if library() is None:
        return native
    feeds = {ROWS: RANDOM.normal(size=(7, DEPTH)).astype(np.float32)}
    for spec, one, other in zip(graph.outputs, outputs_of(graph, feeds), outputs_of(native, feeds), strict=True):
        if spec.dtype == "float32":
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)
        else:  # what is in the middle between two levels becomes one or the other
            assert np.abs(one.astype(int) - other).max() <= 1
    return native


def rounding(name: str) -> NodeProto:
    return node("QuantizeLinear", f"{name} scale zero_point", "rounded")


SIGMOID = node("Sigmoid", "product", "share")
SILU = [product(), SIGMOID, node("Mul", "product share", "silu")]
GELU = [product(), node("Gelu", "product", "gelu")]
RELU = [product(), node("Relu", "product", "relu")]
TURNED = [node("Transpose", "turned", "weights.turned", perm=[1, 0]), product(weights="weights.turned")]


@pytest.mark.parametrize("rounds", [False, True], ids=["float", "rounded"])
@pytest.mark.parametrize(
    ("nodes", "settings"),
    [
        pytest.param([product()], (0, 1, 0), id="bias"),
        pytest.param([product(bias="")], (0, 0, 0), id="no bias"),
        pytest.param(TURNED, (1, 1, 0), id="transposed"),
        pytest.param(SILU, (0, 1, 1), id="silu"),
        pytest.param([*SILU[:2], node("Mul", "share product", "silu")], (0, 1, 1), id="silu, turned around"),
        pytest.param(GELU, (0, 1, 2), id="gelu"),
        pytest.param(RELU, (0, 1, 3), id="relu"),
        pytest.param([product(), node("Gelu", "product", "gelu", approximate="none")], (0, 1, 2), id="exact gelu"),
    ],
)
def test_products_are_fused_with_what_follows(nodes: list[NodeProto], settings: tuple[int, ...], rounds: bool) -> None:
    output = nodes[-1].output[0]
    behind, output = ([rounding(output)], "rounded") if rounds else ([], output)
    native = made_native(graph_of([*nodes, *behind], output, turned=CONSTANTS["weights"].T))
    operator = "ProductQuantized" if rounds else "Product"
    assert kinds(native) == {"QuantizeLinear": 1, operator: 1}
    only = next(each for each in native.model.graph.node if each.domain == DOMAIN)
    assert attributes(only) == dict(zip(("transposed", "biased", "activation"), settings, strict=True))


NEGATED = node("Neg", "product", "other")
SCALED = node("Mul", "product bias", "more")
BY_COLUMN = node("QuantizeLinear", "product weight_scales zero_points", "rounded", axis=1)
STAYING = {
    "its sigmoid is read": ([*SILU, node("Neg", "share", "other")], "silu other"),
    "it is read": ([*SILU, NEGATED], "silu other"),
    "it is given": (SILU, "silu product"),
    "its sigmoid is given": (SILU, "silu share"),
    "a square of its sigmoid": ([*SILU[:2], node("Mul", "share share", "silu")], "silu"),
    "a gate of something else": ([*SILU[:2], node("Mul", "share bias", "silu")], "silu"),
    "a sum with its sigmoid": ([*SILU[:2], node("Add", "product share", "silu")], "silu"),
    "a sigmoid of more": ([product(), SCALED, node("Sigmoid", "more", "share"), SILU[2]], "silu"),
    "another gelu": ([product(), node("Gelu", "product", "gelu", approximate="tanh")], "gelu"),
    "what becomes gelu is given": (GELU, "gelu product"),
    "what becomes gelu is read": ([*GELU, NEGATED], "gelu other"),
    "what becomes relu is read": ([*RELU, NEGATED], "relu other"),
    "another activation": ([product(), node("Tanh", "product", "other")], "other"),
    "what is rounded is given": ([product(), rounding("product")], "rounded product"),
    "what is rounded is read": ([product(), rounding("product"), NEGATED], "rounded other"),
    "a scale for each column": ([product(), BY_COLUMN], "rounded"),
    "levels with signs": ([product(), node("QuantizeLinear", "product scale weight_zero_point", "signed")], "signed"),
}


@pytest.mark.parametrize("case", STAYING)
def test_other_operators_after_a_product_stay(case: str) -> None:
    nodes, outputs = STAYING[case]
    graph = graph_of(nodes, *outputs.split(), zero_points=np.full(COLUMNS, 128, np.uint8))
    native = made_native(graph)
    plain = kinds(graph)
    assert kinds(native) == plain - Counter({"MatMulIntegerToFloat": 1}) + Counter({"Product": 1})
    only = next(each for each in native.model.graph.node if each.domain == DOMAIN)
    assert attributes(only)["activation"] == 0


def test_outputs_with_other_readers_remain() -> None:
    """An activation may be a graph output, or have other readers; quantization is then separate."""
    for nodes, name in ((SILU, "silu"), (GELU, "gelu"), (RELU, "relu")):
        for more, outputs in (([], [name]), ([node("Neg", name, "other")], ["other"])):
            native = made_native(graph_of([*nodes, rounding(name), *more], "rounded", *outputs))
            behind = Counter(each.op_type for each in more)
            assert kinds(native) == behind + Counter({"QuantizeLinear": 2, "Product": 1})


@pytest.mark.parametrize(
    ("others", "constants"),
    [
        pytest.param({"weights": "computed"}, {}, id="weights that are computed"),
        pytest.param({"bias": "computed"}, {"data": CONSTANTS["bias"]}, id="a bias that is computed"),
        pytest.param({}, {"weight_zero_point": np.array(1, np.int8)}, id="weights around another level"),
        pytest.param({}, {"weight_zero_point": np.eye(COLUMNS, dtype=np.int8)[0]}, id="a column around another level"),
        pytest.param({}, {"weights": CONSTANTS["weights"].astype(np.uint8)}, id="weights without signs"),
        pytest.param({}, {"weight_scales": np.array(0.02, np.float32)}, id="one scale of weights"),
        pytest.param({"zero_point": "", "weight_zero_point": "", "bias": ""}, {}, id="levels around 0"),
        pytest.param({"scale": "scales"}, {"scales": np.full(1, 0.02, np.float32)}, id="a vector of scales"),
    ],
)
def test_other_products_stay(others: Mapping[str, str], constants: Mapping[str, Any]) -> None:
    data = CONSTANTS["weights"] if "data" not in constants else constants["data"]
    nodes = [node("Identity", "data", "computed"), product(**others)]
    assert native_graph(graph_of(nodes, "product", **{**constants, "data": data})) is None


def test_three_products_of_one_input_are_one_operator() -> None:
    """Every three with the same settings, in order."""
    names = ["query", "key", "value", "gate", "more"]
    turned = node("Transpose", "turned", "weights.turned", perm=[1, 0])
    again = node("QuantizeLinear", f"{ROWS} weight_scale zero_point", "again")
    cases = (
        ([product(name) for name in names[:2]], {"Product": 2}),
        ([product(name) for name in names[:3]], {"ThreeProducts": 1}),
        ([product(name) for name in names], {"ThreeProducts": 1, "Product": 2}),
        ([*map(product, names[:2]), product("value", bias="")], {"Product": 3}),
        ([turned, *map(product, names[:2]), product("value", weights="weights.turned")], {"Product": 3}),
        ([again, *map(product, names[:2]), product("value", levels="again")], {"QuantizeLinear": 1, "Product": 3}),
        ([*map(product, names[:2]), *SILU], {"Product": 3}),
        ([*map(product, names[:2]), product(), rounding("product")], {"Product": 2, "ProductQuantized": 1}),
    )
    constants = {"turned": CONSTANTS["weights"].T, "weight_scale": np.array(0.03, np.float32)}
    for nodes, expected in cases:
        outputs = [*(set(names) & {each.output[0] for each in nodes}), nodes[-1].output[0]]
        native = made_native(graph_of(nodes, *dict.fromkeys(outputs), **constants))
        assert kinds(native) == Counter({"QuantizeLinear": 1}) + Counter(expected)


ADDED = [
    node("MatMul", f"{ROWS} computed", "added"),
    node("Add", "product added", "sum"),
    node("LayerNormalization", "sum weight_scales bias", "normal", epsilon=1e-4),
]
TURNED_SUM = node("Add", "added product", "sum")
SUM = [node("Add", "product more", "sum"), ADDED[2]]


APART = {"Product": 1, "AddNorm": 1}
NORMS: Mapping[str, tuple[list[NodeProto], str, Mapping[str, int]]] = {
    "floats": ([product(), *ADDED], "normal", {"ProductAddNorm": 1}),
    "the sum is given": ([product(), *ADDED], "normal sum", {"ProductAddNorm": 1}),
    "rounded": ([product(), *ADDED, rounding("normal")], "rounded", {"ProductAddNormQuantized": 1}),
    "turned around": ([product(), ADDED[0], TURNED_SUM, ADDED[2]], "normal", {"ProductAddNorm": 1}),
    "the product is given": ([product(), *ADDED], "normal product", APART),
    "the product is read": ([product(), NEGATED, *ADDED], "normal other", {**APART, "Neg": 1}),
    "an activation between": ([*SILU, ADDED[0], node("Add", "silu added", "sum"), ADDED[2]], "normal", APART),
    "two products": ([product(), product("more", bias=""), *SUM], "normal", {"ProductAddNorm": 1, "Product": 1}),
}


@pytest.mark.parametrize("case", NORMS)
def test_the_norm_of_a_sum_with_a_product_is_computed_with_it(case: str) -> None:
    nodes, outputs, expected = NORMS[case]
    weights = RANDOM.normal(size=(DEPTH, COLUMNS)).astype(np.float32)
    nodes = [node("Identity", "projection", "computed"), *nodes]
    native = made_native(graph_of(nodes, *outputs.split(), projection=weights))
    others = Counter({"Identity": 1, "MatMul": 1} if ADDED[0] in nodes else {})
    assert kinds(native) == Counter({"QuantizeLinear": 1}) + others + Counter(expected)


def test_fp32_products_are_fused_with_the_operators_after_them() -> None:
    weights = RANDOM.normal(size=(DEPTH, COLUMNS)).astype(np.float32)
    multiplied = node("MatMul", f"{ROWS} projection", "multiplied")
    product = node("Add", "multiplied bias", "product")
    gemm = node("Gemm", f"{ROWS} turned bias", "product", transB=1)
    for nodes, output, settings in (
        ([multiplied], "multiplied", (0, 0, 0)),
        ([multiplied, product], "product", (0, 1, 0)),
        ([gemm], "product", (1, 1, 0)),
        ([multiplied, product, *SILU[1:]], "silu", (0, 1, 1)),
        ([gemm, GELU[1]], "gelu", (1, 1, 2)),
        ([gemm, RELU[1]], "relu", (1, 1, 3)),
    ):
        native = made_native(graph_of(nodes, output, projection=weights, turned=weights.T))
        assert kinds(native) == {"FloatProduct": 1}
        (only,) = native.model.graph.node
        assert attributes(only) == dict(zip(("transposed", "biased", "activation"), settings, strict=True))
    norm = [node("Add", f"product {ROWS}.added", "sum"), ADDED[2]]
    others = [node("Neg", "twice", f"{ROWS}.added"), node("Add", "product product", "twice")]
    native = made_native(graph_of([gemm, others[1], others[0], *norm], "normal", turned=weights.T))
    assert kinds(native) == {"FloatProduct": 1, "Add": 2, "Neg": 1, "LayerNormalization": 1}
    added = [node("Gemm", f"{ROWS} again bias", "more", transB=1), *SUM]
    native = made_native(graph_of([gemm, *added], "normal", turned=weights.T, again=weights.T[::-1]))
    assert kinds(native) == {"FloatProduct": 1, "FloatProductAddNorm": 1}
    rows = [node("MatMul", f"{ROWS} projection", name) for name in ("query", "key", "value")]
    native = made_native(graph_of(rows, "query", "key", "value", projection=weights))
    assert kinds(native) == {"ThreeFloatProducts": 1}


def by_row(output: str = "product", bias: str = "") -> list[NodeProto]:
    """A product of rows that are quantized with a scale each, which multiplies it again; without a bias by default."""
    return [
        node("Abs", ROWS, "magnitude"),
        node("ReduceMax", "magnitude last_axis", "largest", keepdims=1),
        node("Div", f"{ROWS} largest", "parts"),
        node("QuantizeLinear", "parts unit zero_point", "by_row"),
        *scaled(output, bias),
    ]


def scaled(output: str, bias: str = "") -> list[NodeProto]:
    """One more product of these rows."""
    return [
        product(f"{output}.shares", levels="by_row", scale="unit", bias=""),
        node("Mul", f"{output}.shares largest", f"{output}.product" if bias else output),
        *([node("Add", f"{output}.product {bias}", output)] if bias else []),
    ]


BY_ROW: Mapping[str, Any] = {"unit": np.array(1 / 127, np.float32), "last_axis": np.array([-1])}
DIVIDED = {"QuantizeRows": 1}


BIASED = by_row(bias="bias")
THREE = [*by_row("query", "bias"), *scaled("key", "bias"), *scaled("value", "bias")]


@pytest.mark.parametrize(
    ("nodes", "output", "expected"),
    [
        (by_row(), "product", {"Product": 1}),
        (BIASED, "product", {"Product": 1}),
        ([*BIASED, *SILU[1:]], "silu", {"Product": 1}),
        ([*BIASED, *GELU[1:]], "gelu", {"Product": 1}),
        ([*BIASED, *RELU[1:]], "relu", {"Product": 1}),
        ([*BIASED, rounding("product")], "rounded", {"ProductQuantized": 1}),
        ([*BIASED, *scaled("more"), *SUM], "normal", {"Product": 1, "ProductAddNorm": 1}),
        (THREE, "value", {"ThreeProducts": 1}),
    ],
    ids=["no bias", "bias", "silu", "gelu", "relu", "rounded", "norm", "three"],
)
def test_scales_of_rows_are_fused_too(nodes: list[NodeProto], output: str, expected: Mapping[str, int]) -> None:
    """Results have the bits of those that separate operators compute after the native product.

    ONNX Runtime computes SiLU and GELU by other formulas.
    """
    products = [each.output[0] for each in nodes if each.op_type == "MatMulIntegerToFloat"]
    others = [name.removesuffix(".shares") for name in products if "ThreeProducts" in expected]
    outputs = dict.fromkeys([*others, output])
    fused = made_native(graph_of(nodes, *outputs, **BY_ROW))
    assert kinds(fused) == Counter(DIVIDED) + Counter(expected)
    apart = made_native(graph_of(nodes, *outputs, *products, **BY_ROW))
    assert kinds(apart)["Mul"] >= len(products)
    if library() is not None and output not in {"silu", "gelu"}:
        feeds = {ROWS: RANDOM.normal(size=(9, DEPTH)).astype(np.float32)}
        for one, other in zip(outputs_of(apart, feeds), outputs_of(fused, feeds), strict=False):
            np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize(
    "replaced",
    [
        node("Mul", "product.shares bias", "product"),
        node("Mul", "product.shares product.shares", "product"),
        node("Mul", "product.shares magnitudes", "product"),
        node("ReduceMax", "magnitude first_axis", "largest", keepdims=1),
        node("Neg", ROWS, "magnitude"),
    ],
    ids=["one factor a column", "a square", "other rows' scales", "largest of a column", "the least of a row"],
)
def test_other_factors_stay(replaced: NodeProto) -> None:
    nodes = [replaced if each.output == replaced.output else each for each in by_row()]
    more = [node("ReduceMax", f"{ROWS} last_axis", "magnitudes", keepdims=1)]
    native = native_of(graph_of([*more, *nodes], "product", first_axis=np.array([0]), **BY_ROW))
    assert kinds(native)["Mul"] == 1


@pytest.mark.parametrize("rectified", [0, 1])
def test_the_quantization_of_rows_is_one_operator(rectified: int) -> None:
    """Also if other nodes read its results; divisions that others read stay."""
    relu = [node("ReduceMax", f"{ROWS} last_axis", "most", keepdims=1), node("Relu", "most", "largest")]
    nodes = [*(relu if rectified else by_row()[:2]), *by_row()[2:]]
    native = made_native(graph_of(nodes, "product", **BY_ROW))
    assert kinds(native) == {"QuantizeRows": 1, "Product": 1}
    assert attributes(native.model.graph.node[0]) == {"rectified": rectified}
    more = [node("Neg", "largest", "negative"), node("Add", "product negative", "sum")]
    native = made_native(graph_of([*nodes[:-2], more[0], *nodes[-2:], more[1]], "sum", **BY_ROW))
    assert kinds(native) == {"QuantizeRows": 1, "Product": 1, "Neg": 1, "Add": 1}
    more = [node("MatMul", "parts matrix", "other"), node("Add", "product other", "sum")]
    matrix = np.ones((DEPTH, COLUMNS), np.float32)
    native = made_native(graph_of([*nodes, *more], "sum", matrix=matrix, **BY_ROW))
    assert kinds(native)["QuantizeRows"] == kinds(native)["Div"] == 1


@pytest.mark.parametrize(
    "replaced",
    [
        node("ReduceMax", "magnitude last_axis", "largest", keepdims=0),
        node("ReduceMax", "magnitude first_axis", "largest", keepdims=1),
        node("ReduceMin", "magnitude last_axis", "largest", keepdims=1),
        node("Div", f"largest {ROWS}", "parts"),
        node("Div", "magnitude largest", "parts"),
        node("QuantizeLinear", "parts units zero_points", "by_row", axis=1),
    ],
    ids=["rank", "axis", "least", "reciprocals", "magnitudes", "scales of columns"],
)
def test_other_quantization_of_rows_stays(replaced: NodeProto) -> None:
    nodes = [replaced if each.output == replaced.output else each for each in by_row()]
    units: Mapping[str, Any] = {"units": np.full(DEPTH, 0.02, np.float32), "zero_points": np.full(DEPTH, 128, np.uint8)}
    native = native_of(graph_of(nodes, "product", first_axis=np.array([0]), **units, **BY_ROW))
    assert "QuantizeRows" not in kinds(native)


def test_a_bias_of_another_shape_follows_the_scales_of_rows() -> None:
    nodes = [*by_row(), node("Add", "product table", "sum")]
    native = made_native(graph_of(nodes, "sum", table=np.ones((1, COLUMNS), np.float32), **BY_ROW))
    assert kinds(native) == Counter(DIVIDED) + Counter({"Product": 1, "Add": 1})


def test_reshapes_follow_quantization() -> None:
    """Unless the reshaped tensor has other readers."""
    nodes = [product(), node("Reshape", "product shape", "spread"), rounding("spread")]
    shape = np.array([-1, COLUMNS])
    native = made_native(graph_of(nodes, "rounded", shape=shape))
    assert kinds(native) == {"QuantizeLinear": 1, "ProductQuantized": 1, "Reshape": 1}
    native = made_native(graph_of(nodes, "rounded", "spread", shape=shape))
    assert kinds(native) == {"QuantizeLinear": 2, "Product": 1, "Reshape": 1}
