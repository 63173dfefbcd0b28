"""Native products with constant weights, fused with scales of rows, activation, norm and quantization."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence, Set

import numpy as np
from onnx import NodeProto, TensorProto

from jumok_export.graphs.graph import reads
from jumok_export.graphs.matching import Found, attributes
from jumok_export.native.operators import QUANTIZED, native
from jumok_export.native.row_quantization import scales_of_rows
from jumok_export.quantization.find_matrices import Matrices

NOTHING, SILU, GELU, RELU = 0, 1, 2, 3
"""Numbers of the activations in the operators."""
PLAIN = {"Product": 3, "FloatProduct": 1}
"""Products with float output, and their number of inputs before the weights."""
OPERANDS = {"Product": 6, "FloatProduct": 3}
"""Their number of inputs before the factors of rows, an optional one of int8 products."""
AT_ONCE = 3
"""Products of one tensor in one operator: queries, keys and values."""


def product(found: Found, node: NodeProto) -> NodeProto | None:
    """Replace an int8 product.

    Scales of rows, the bias after them, activation and quantization are included if nothing else reads the output
    before them.
    """
    inputs = _product_inputs(found, node)
    if inputs is None:
        return None
    activations, weights, scale, weight_scales, zero_point, bias = inputs
    turned = found.maker(weights, "Transpose")
    transposed = turned is not None and attributes(turned).get("perm") == [1, 0]
    if transposed and turned is not None:
        weights = turned.input[0]
    matrix = found.constants.get(weights)
    if matrix is None or matrix.data_type != TensorProto.INT8 or len(matrix.dims) != 2:
        return None
    factors: list[str] = []
    output = node.output[0]
    if not bias:
        factors, bias, output = _scaled_rows(found, activations, output, matrix.dims[0 if transposed else 1])
    activation, output = _activation(found, output)
    rounding = found.rounding(output) if found.only_reader(output) else None
    given = [activations, scale, zero_point, weights, weight_scales, bias]
    chosen = {"transposed": int(transposed), "biased": int(bool(bias)), "activation": activation}
    if rounding is not None:
        given += rounding.input[1:]
        return native(f"Product{QUANTIZED}", [*given, *factors], [rounding.output[0]], **chosen)
    return native("Product", [*given, *factors], [output], **chosen)


def float_product(matrices: Matrices, found: Found, node: NodeProto) -> NodeProto | None:
    """Replace an fp32 product with its bias.

    The activation is included if nothing else reads the output of the product.
    """
    made = matrices.product(node)
    if made is None:
        return None
    activation, output = _activation(found, made.output)
    chosen = {"transposed": int(made.transposed), "biased": int(made.bias is not None), "activation": activation}
    return native("FloatProduct", [made.activation, made.weight, made.bias or ""], [output], **chosen)


def fuse_norms(nodes: Sequence[NodeProto], outputs: Collection[str], constants: Set[str]) -> list[NodeProto]:
    """Fuse plain products into the sum and norm after them.

    A sum with constants stays: it adds positions, and has as many rows as one sentence, not as all.
    """
    readers = Counter(name for node in nodes for name in reads(node))
    products = {
        node.output[0]: node
        for node in nodes
        if node.op_type in PLAIN and attributes(node)["activation"] == NOTHING
        if readers[node.output[0]] == 1 and node.output[0] not in outputs
    }
    fused: list[NodeProto] = []
    gone: set[str] = set()
    for node in nodes:
        name = next((each for each in node.input[:2] if each in products), None)
        if not node.op_type.startswith("AddNorm") or name is None or not constants.isdisjoint(node.input[:2]):
            fused.append(node)
            continue
        made, gone = products[name], gone | {name}
        added = node.input[1] if node.input[0] == name else node.input[0]
        operands, factors = operands_of(made)
        settings = attributes(made) | attributes(node)
        inputs = [*operands, added, *node.input[2:], *factors]
        fused.append(native(f"{made.op_type}{node.op_type}", inputs, node.output, **settings))
    return [node for node in fused if gone.isdisjoint(node.output)]


def fuse_threes(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """Fuse every three plain products of the same input into one operator."""
    waiting: dict[tuple[object, ...], list[NodeProto]] = {}
    for node in nodes:
        if node.op_type in PLAIN:
            shared, (_, factors) = node.input[: PLAIN[node.op_type]], operands_of(node)
            waiting.setdefault((node.op_type, *shared, *factors, str(attributes(node))), []).append(node)
    groups = [
        each[first : first + AT_ONCE]
        for each in waiting.values()
        for first in range(0, len(each) - AT_ONCE + 1, AT_ONCE)
    ]
    first_of = {group[0].output[0]: group for group in groups}
    others = {node.output[0] for group in groups for node in group[1:]}
    for node in nodes:
        name = node.output[0]
        if name in first_of:
            group = first_of[name]
            own = PLAIN[node.op_type]
            weights = [name for one in group for name in operands_of(one)[0][own:]]
            inputs = [*node.input[:own], *weights, *operands_of(node)[1]]
            yield native(f"Three{node.op_type}s", inputs, [one.output[0] for one in group], **attributes(node))
        elif name not in others:
            yield node


def operands_of(product: NodeProto) -> tuple[list[str], list[str]]:
    """The operands of a plain product, and the factors of its rows in a list of one; empty without them."""
    count = OPERANDS[product.op_type]
    return list(product.input[:count]), list(product.input[count:])


def _product_inputs(found: Found, node: NodeProto) -> list[str] | None:
    """The six inputs of an int8 product, bias maybe ""; or None."""
    if node.op_type != "MatMulIntegerToFloat":
        return None
    activations, weights, scale, weight_scales, zero_point, weight_zero_point, bias = [*node.input, *[""] * 7][:7]
    scalar, zero, weight_zero = (found.constant(name) for name in (scale, zero_point, weight_zero_point))
    scales = found.constants.get(weight_scales)  # one per column
    if scalar is None or zero is None or weight_zero is None or scales is None or len(scales.dims) != 1:
        return None
    if bias and bias not in found.constants:
        return None
    if (
        scalar.ndim != 0
        or zero.dtype != np.uint8
        or zero.ndim != 0
        or weight_zero.dtype != np.int8
        or np.any(weight_zero)
    ):
        return None
    return [activations, weights, scale, weight_scales, zero_point, bias]


def _scaled_rows(found: Found, levels: str, output: str, columns: int) -> tuple[list[str], str, str]:
    """Find the scales of rows by which a product is multiplied, and the bias that is added then.

    Returns:
        The scales in a list of one, which are the product's factors; the bias; and the name of the result. List and
        bias are empty if there are none.
    """
    times, scales = found.only_reader(output), scales_of_rows(found, levels)
    if times is None or times.op_type != "Mul" or scales is None or set(times.input) != {output, scales}:
        return [], "", output
    output = times.output[0]
    add = found.only_reader(output)
    if add is not None and add.op_type == "Add":
        for name in add.input:
            if name in found.constants and list(found.constants[name].dims) == [columns]:
                return [scales], name, add.output[0]
    return [scales], "", output


def _activation(found: Found, output: str) -> tuple[int, str]:
    """Find the activation that alone reads an output; return its kind and the name of its own output."""
    readers = found.readers.get(output, [])
    reader = found.only_reader(output)
    if reader is not None and reader.op_type == "Gelu" and attributes(reader).get("approximate", b"none") == b"none":
        return GELU, reader.output[0]
    if reader is not None and reader.op_type == "Relu":
        return RELU, reader.output[0]
    gate = next((each for each in readers if each.op_type == "Sigmoid"), None)
    times = found.only_reader(gate.output[0]) if gate is not None else None
    if gate is None or times is None or times.op_type != "Mul" or set(times.input) != {output, gate.output[0]}:
        return NOTHING, output
    return (SILU, times.output[0]) if len(readers) == 2 and output not in found.outputs else (NOTHING, output)
