"""Native graphs: replaced and remaining operators, and equal results."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from jumok_export.bundles import add_native, recipe
from jumok_export.bundles.add_native import add_native_graphs
from jumok_export.bundles.recipe import make_graphs, make_native_graphs, write_variant
from jumok_export.bundles.variants import Folder
from jumok_export.errors import ExportError
from jumok_export.graphs.graph import Graph
from jumok_export.native.operators import DOMAIN
from jumok_export.quantization.find_matrices import Matrices
from jumok_export.quantization.int8_graphs import quantize_graph
from jumok_export.verification.native import verify_native
from jumok_export.verification.runtime_side import RuntimeSide
from jumok_export.verification.samples import InputBounds
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.parts import NATIVE_GRAPHS
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import SLOTS, Graphs
from tests.support.models import variants
from tests.support.models.native_operators import needs_library
from tests.support.models.small_graphs import native_of
from tests.support.models.small_graphs import operators as names

KINDS = ("tiny", "marian-two-vocabularies", "t5-gated-silu")
"""Pre-norm, post-norm and RMS norm; ReLU, GELU and SiLU; T5 adds a position bias too."""
FORMS = ("fp32", "int8 by row", "int8 calibrated")
OPERATORS: Mapping[str, tuple[str, str, str]] = {
    "fp32": ("SelfAttention", "CrossAttention", "AddNorm"),
    "int8 by row": ("Int8SelfAttention", "Int8CrossAttention", "AddNorm"),
    "int8 calibrated": ("Int8SelfAttentionQuantized", "Int8CrossAttentionQuantized", "AddNormQuantized"),
}

Make = Callable[[str, str], dict[str, Graph]]


@pytest.fixture(scope="module")
def make(tiny_graphs: dict[str, Graph], imported_graphs: Callable[[str], dict[str, Graph]]) -> Make:
    """The graphs of a kind of model in a form; read-only."""

    @cache
    def make_in_form(name: str, form: str) -> dict[str, Graph]:
        graphs = dict(tiny_graphs if name == "tiny" else imported_graphs(name))
        for each in ("encoder", "decoder") if form != "fp32" else ():
            matrices = Matrices(graphs[each].model)
            scales = {matrices.key(product): 0.02 for product in matrices.products()}
            graphs[each] = quantize_graph(graphs[each], scales if form == "int8 calibrated" else {})
        return graphs

    return make_in_form


def finished(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """The graphs for the CPU."""
    return make_graphs(graphs, ("cpu",))


def with_native(graphs: Mapping[str, Graph], *, int8: bool) -> dict[str, Graph]:
    """The graphs and their native forms."""
    return {**graphs, **make_native_graphs(graphs, "int8" if int8 else "fp32")}


def operators(graph: Graph) -> Counter[str]:
    return Counter(names(graph))


def native_operators(graph: Graph) -> Counter[str]:
    return Counter(node.op_type for node in graph.model.graph.node if node.domain == DOMAIN)


def besides_products(graph: Graph) -> set[str]:
    """Native fp32 operators between embeddings and memory, and those that belong to products."""
    others = {"", "ThreeFloatProducts", "FloatEmbedding", "FloatEntries"}
    return {name.removeprefix("FloatProduct") for name in native_operators(graph)} - others


def products(plain: Graph, at_once: int, rounded: int) -> Counter[str]:
    """The native products of a graph, with a number of fused threes."""
    before = operators(plain)
    in_fp32, in_int8 = before["MatMul"] + before["Gemm"], before["MatMulIntegerToFloat"]
    assert 0 in (in_fp32, in_int8)
    if in_fp32:
        return Counter({"ThreeFloatProducts": at_once, "FloatProduct": in_fp32 - 3 * at_once})
    return Counter({"ThreeProducts": at_once, "ProductQuantized": rounded, "Product": in_int8 - 3 * at_once - rounded})


def quantized_rows(plain: Graph) -> Counter[str]:
    """Native operators that quantize rows: each divides by its largest magnitude in plain graphs."""
    scaled = [name for node in plain.model.graph.node for name in node.output if name.endswith(".int8.largest")]
    return +Counter({"QuantizeRows": len(scaled)})


def embeddings(plain: Graph) -> Counter[str]:
    """Native embeddings: int8 ones, and scaled fp32 ones."""
    nodes = plain.model.graph.node
    tables = {node.output[0]: node.input[0] for node in nodes if node.op_type == "Gather"}
    scaled = {name for node in nodes if node.op_type == "Mul" for name in node.input}
    in_int8 = sum(table.endswith(".rows") for table in tables.values())
    in_floats = sum(table.endswith("weight") and name in scaled for name, table in tables.items())
    return +Counter({"Int8Embedding": in_int8, "FloatEmbedding": in_floats})


def with_norms_behind(expected: Counter[str], kind: str, form: str, norms: int) -> Counter[str]:
    """The operators with a number of norms fused into products."""
    if kind == "t5-gated-silu":
        return +expected
    product, add_norm = "FloatProduct" if form == "fp32" else "Product", OPERATORS[form][2]
    together = Counter({f"{product}{add_norm}": norms})
    return expected + together - Counter({product: norms, add_norm: norms})


def rounds_hidden_layers(kind: str, form: str) -> bool:
    """True if the first product of a feed-forward layer quantizes its output: a gate multiplies first."""
    return form == "int8 calibrated" and kind != "t5-gated-silu"


def assert_products_scale_rows(graph: Graph) -> None:
    """Scales of rows are read by native products alone."""
    for node in graph.model.graph.node:
        if any(name.endswith(".largest") for name in node.input):
            assert node.domain == DOMAIN


def assert_everything_is_read(graph: Graph) -> None:
    read = {name for node in graph.model.graph.node for name in node.input}
    given = {name for node in graph.model.graph.node for name in node.output}
    assert given <= read | {spec.name for spec in graph.outputs} | {""}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_decoders_are_made_of_native_operators(make: Make, kind: str, form: str) -> None:
    """Products, attention, sums with norms and the selection are one operator each."""
    graphs = with_native(finished(make(kind, form)), int8=form != "fp32")
    plain, native = graphs["decoder"], graphs["decoder_native"]
    before, after = operators(plain), operators(native)
    layers, norms = before["MultiHeadAttention"] // 2, before["LayerNormalization"]
    assert norms == {"tiny": 3 * layers + 1, "marian-two-vocabularies": 3 * layers, "t5-gated-silu": 0}[kind]
    self_attention, cross_attention, add_norm = OPERATORS[form]
    expected = Counter({self_attention: layers, cross_attention: layers, add_norm: norms, "Select": 1})
    expected += products(plain, layers, layers if rounds_hidden_layers(kind, form) else 0) + embeddings(plain)
    expected += quantized_rows(plain)
    assert native_operators(native) == with_norms_behind(expected, kind, form, 3 * layers)
    replaced = {"MultiHeadAttention", "ScatterND", "LayerNormalization", "LogSoftmax", "TopK", "Where"}
    assert replaced.isdisjoint(after)
    assert (before["GatherND"], after["GatherND"]) == ((1, 1) if kind == "t5-gated-silu" else (1, 0))
    assert "ReduceMean" in after if kind == "t5-gated-silu" else "ReduceMean" not in after
    assert_products_scale_rows(native)
    assert_everything_is_read(native)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_encoders_are_made_of_native_operators(make: Make, kind: str, form: str) -> None:
    """All but attention with a position bias; two products a layer project the memory."""
    graphs = with_native(finished(make(kind, form)), int8=False)
    layers, memory = (operators(graphs[name])["MultiHeadAttention"] for name in ("encoder", "decoder"))
    expected = products(graphs["encoder"], layers + memory // 3, layers if rounds_hidden_layers(kind, form) else 0)
    if kind != "t5-gated-silu":
        # The norm before the first layer follows the positions.
        _, attention, add_norm = OPERATORS[form]
        norms = 2 * layers + (kind == "tiny")
        expected += Counter({attention.removeprefix("Int8"): layers, add_norm: norms})
    expected += embeddings(graphs["encoder"]) + Counter({"FloatEntries": len(graphs["encoder"].outputs)})
    expected += quantized_rows(graphs["encoder"])
    native = graphs["encoder_native"]
    assert native_operators(native) == with_norms_behind(expected, kind, form, 2 * layers)
    assert operators(native)["MultiHeadAttention"] == (layers if kind == "t5-gated-silu" else 0)
    assert_products_scale_rows(native)
    assert kind != "tiny" or operators(native).keys().isdisjoint({"Range", "Shape", "Gather", "GatherND", "Transpose"})
    assert_everything_is_read(native)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_memory_and_state_are_in_8_bits_in_int8_alone(make: Make, kind: str, form: str) -> None:
    """Each entry has four more bytes, its scale; decoders read by slot."""
    plain = finished(make(kind, form))
    graphs = with_native(plain, int8=form != "fp32")
    dtype, more = ("float32", 0) if form == "fp32" else ("int8", 4)
    for name, native in (("decoder", graphs["decoder_native"]), ("encoder", graphs.get("encoder_native"))):
        if native is None:
            assert form == "fp32"
            continue
        for side in ("inputs", "outputs"):
            specs, expected = ({spec.name: spec for spec in getattr(each, side)} for each in (native, plain[name]))
            assert specs.keys() == expected.keys()
            for spec in specs.values():
                before = expected[spec.name]
                if name == "decoder" and spec.name.startswith(("memory.", "state.", "next_state.", "visible")):
                    before = before.model_copy(update={"axes": (SLOTS, *before.axes[1:])})
                if spec.name.startswith(("memory.", "state.", "next_state.")):
                    assert (spec.dtype, before.dtype) == (dtype, "float32")
                    assert spec.axes == (*before.axes[:-1], int(before.axes[-1]) + more)
                else:
                    assert spec == before
    if form != "fp32":
        memory = [spec.name for spec in plain["encoder"].outputs]
        found = operators(graphs["encoder_native"])
        assert found["Int8Entries"] == len(memory)
        assert found["Transpose"] == operators(plain["encoder"])["Transpose"] - len(memory)


Edit = Callable[[onnx.GraphProto], None]


def edited(graph: Graph, edit: Edit) -> Graph:
    model = graph.copy_model()
    edit(model.graph)
    return Graph(model, graph.inputs, graph.outputs)


def first(graph: onnx.GraphProto, operator: str) -> onnx.NodeProto:
    return next(node for node in graph.node if node.op_type == operator)


def place(graph: onnx.GraphProto, node: onnx.NodeProto) -> int:
    return next(index for index, each in enumerate(graph.node) if each.output == node.output)


def add_constant(graph: onnx.GraphProto, name: str, value: Any) -> None:
    graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))


def instead_of(name: str, operator: str) -> Edit:
    """Make all readers of an input read an operator's output on it."""

    def edit(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.input[:] = [f"other {name}" if read == name else read for read in node.input]
        graph.node.insert(0, helper.make_node(operator, [name], [f"other {name}"]))

    return edit


def with_another_mask(graph: onnx.GraphProto) -> None:
    add_constant(graph, "little", np.float32(-1))
    first(graph, "Where").input[2] = "little"


def with_another_axis(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "LayerNormalization" and attribute.name == "axis":
                attribute.i = 1


def with_what_rows_share(graph: onnx.GraphProto) -> None:
    """Add one vector per sentence before the first norm."""
    norm = first(graph, "LayerNormalization")
    add = next(node for node in graph.node if node.output[0] == norm.input[0])
    add_constant(graph, "rows", [1])
    mean = helper.make_node("ReduceMean", [add.input[1], "rows"], ["shared"], keepdims=1)
    add.input[1] = "shared"
    graph.node.insert(place(graph, add), mean)


def with_other_keys(graph: onnx.GraphProto) -> None:
    """Compute keys by an operator that may not give one per token."""
    attention = first(graph, "MultiHeadAttention")
    add_constant(graph, "axis", 1)
    sums = helper.make_node("CumSum", [attention.input[1], "axis"], ["sums"])
    attention.input[1] = "sums"
    graph.node.insert(place(graph, attention), sums)


@pytest.mark.parametrize(
    ("role", "edit", "kept"),
    [
        ("decoder", instead_of("visible", "Not"), {"CrossAttention", "AddNorm", "Select"}),
        ("decoder", instead_of("places", "Neg"), {"CrossAttention", "AddNorm", "Select"}),
        ("decoder", with_another_mask, {"CrossAttention", "AddNorm", "Select"}),
        ("decoder", instead_of("source_lengths", "Abs"), {"SelfAttention", "AddNorm", "Select"}),
        ("decoder", with_another_axis, {"SelfAttention", "CrossAttention", "Select"}),
        ("encoder", instead_of("source_lengths", "Abs"), {"AddNorm"}),
        ("encoder", with_other_keys, {"AddNorm"}),
    ],
)
def test_other_computations_stay(make: Make, role: str, edit: Edit, kept: set[str]) -> None:
    native = native_of(edited(finished(make("tiny", "fp32"))[role], edit))
    assert besides_products(native) == kept
    assert (operators(native)["MultiHeadAttention"] == 0) == ({"SelfAttention", "CrossAttention"} <= kept)


@pytest.mark.parametrize("name", ["visible", "source_lengths"])
def test_without_native_attention_alone_sentences_are_in_the_order_of_slots(make: Make, name: str) -> None:
    graphs = finished(make("tiny", "fp32"))
    graphs |= {"decoder": edited(graphs["decoder"], instead_of(name, "Not" if name == "visible" else "Abs"))}
    native = with_native(graphs, int8=False)["decoder_native"]
    assert native.inputs == graphs["decoder"].inputs
    assert not any("places" in node.input for node in native.model.graph.node if "Cross" in node.op_type)


def with_other_positions(name: str, value: int) -> Edit:
    """Positions with another start or step."""

    def edit(graph: onnx.GraphProto) -> None:
        first(graph, "Range").input[("first", "length", "step").index(name)] = "other"
        add_constant(graph, "other", value)

    return edit


def with_projected_embeddings(graph: onnx.GraphProto) -> None:
    """Multiply embeddings before positions are added to them."""
    add = first(graph, "Range")
    while add.op_type != "Add":  # the numbers become places, and these rows
        [rows] = add.output
        add = next(node for node in graph.node if rows in node.input)
    [embedded] = set(add.input) - {rows}
    scale = first(graph, "LayerNormalization").input[1]
    [width] = next(each.dims for each in graph.initializer if each.name == scale)
    add_constant(graph, "projection", np.eye(width, dtype=np.float32))
    add.input[list(add.input).index(embedded)] = "projected"
    graph.node.insert(place(graph, add), helper.make_node("MatMul", [embedded, "projection"], ["projected"]))


@pytest.mark.parametrize(
    ("role", "edit", "norms", "products"),
    [
        ("decoder", with_what_rows_share, -1, 0),
        ("encoder", with_other_positions("first", 1), -1, 0),
        ("encoder", with_other_positions("step", 2), -1, 0),
        ("encoder", with_other_positions("length", 3), -1, 0),
        ("encoder", with_projected_embeddings, 0, 1),
    ],
    ids=["sum with what rows share", "first position", "step", "number of positions", "product before positions"],
)
def test_norms_of_other_sums_stay(make: Make, role: str, edit: Edit, norms: int, products: int) -> None:
    """Sums are of vectors of one row each, positions the first ones, and products apart from these."""
    plain = finished(make("tiny", "fp32"))[role]
    before, after = (operators(native_of(graph)) for graph in (plain, edited(plain, edit)))
    assert before["AddNorm"] > 0
    assert after["AddNorm"] == before["AddNorm"] + norms
    assert after["LayerNormalization"] == -norms
    assert after["FloatProduct"] == before["FloatProduct"] + products


def test_the_cache_stays_in_fp32_if_other_operators_read_it(make: Make) -> None:
    def read(graph: onnx.GraphProto) -> None:
        attention = next(node for node in graph.node if node.op_type == "MultiHeadAttention" and node.input[4])
        graph.node.insert(0, helper.make_node("Abs", [attention.input[1]], ["absolute"]))
        attention.input[1] = "negative"
        graph.node.insert(place(graph, attention), helper.make_node("Neg", ["absolute"], ["negative"]))

    graphs = finished(make("tiny", "int8 by row"))
    graphs["decoder"] = edited(graphs["decoder"], read)
    native = with_native(graphs, int8=True)
    assert {spec.dtype for spec in native["decoder_native"].inputs if "." in spec.name} == {"float32", "int64"}
    assert {spec.dtype for spec in native["encoder_native"].outputs} == {"float32"}


@needs_library
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_native_graphs_equal_plain_graphs(make: Make, kind: str, form: str, tmp_path: Path) -> None:
    precision = form.partition(" ")[0]
    folder = Folder(tmp_path, write_variant(make(kind, form), tmp_path, precision))
    plain, native = (Graphs(folder, precision, device=CPU, threads=1, native=native) for native in (False, True))
    assert (plain.native, native.native) == (False, True)
    size = plain.vocabulary
    bounds = InputBounds(
        source_vocabulary=size, target_vocabulary=size, start=2, pad=1, max_source_length=18, max_target_length=18
    )
    checks = verify_native(RuntimeSide(plain), native, None, bounds, precision)
    assert [check for check in checks if not check.passed] == []
    assert {check.name for check in checks} == {"native: step logits", "native: step state", "native: decode"}
    assert all(check.cases for check in checks)


@needs_library
def test_bundles_have_verified_native_graphs(tiny_bundle: Path, listed_bundle: Path) -> None:
    for path, more in ((tiny_bundle, set[str]()), (listed_bundle, {"decoder_shortlist_native"})):
        manifest = Bundle.open(path).manifest
        for precision in ("fp32", "int8"):
            graphs = set(manifest.precisions[precision].graphs)
            assert graphs & set(NATIVE_GRAPHS) == {"decoder_native", "encoder_native"} | more
            checks = {check.name for check in manifest.verification[precision].checks}
            assert {"native: step logits", "native: step state", "native: decode"} <= checks
            assert ("native: shortlist logits" in checks) == bool(more)


def stripped(bundle: Path, copy: Path) -> Path:
    """A copy of a bundle without native graphs."""

    def strip(manifest: dict[str, Any]) -> None:
        for precision, variant in manifest["precisions"].items():
            for name in variant["graphs"].keys() & {*NATIVE_GRAPHS}:
                file = variant["graphs"].pop(name)["file"]
                (copy / file).unlink()
                del manifest["files"][file]
            report = manifest["verification"][precision]
            report["checks"] = [check for check in report["checks"] if not check["name"].startswith("native: ")]

    return variants.edited(bundle, copy, strip)


@needs_library
def test_add_native_writes_the_graphs_of_an_export(listed_bundle: Path, tmp_path: Path) -> None:
    without = stripped(listed_bundle, tmp_path / "without")
    assert not any(variant.native for variant in Bundle.open(without).manifest.precisions.values())
    (without / "README.md").write_text("A card.", encoding="utf-8")
    added = add_native_graphs(without, without, overwrite=True)
    expected = Bundle.open(listed_bundle)
    assert added.manifest.files == expected.manifest.files
    assert (without / "README.md").read_text(encoding="utf-8") == "A card."
    for precision, report in added.manifest.verification.items():
        names = [check.name for check in report.checks]
        assert names == [check.name for check in expected.manifest.verification[precision].checks]
    again = add_native_graphs(without, tmp_path / "again")
    assert again.manifest.files == expected.manifest.files
    assert [check.name for check in again.manifest.verification["int8"].checks] == names


def test_native_graphs_are_not_written_without_kernels(
    tiny_graphs: dict[str, Graph], tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (recipe, add_native):
        monkeypatch.setattr(module, "library", lambda: None)
    variant = write_variant(tiny_graphs, tmp_path / "variant", "fp32")
    assert not variant.native
    assert set(variant.graphs) == {*tiny_graphs, "sampler"}
    with pytest.raises(ExportError, match="has no native kernels; install a C"):
        add_native_graphs(tiny_bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()
