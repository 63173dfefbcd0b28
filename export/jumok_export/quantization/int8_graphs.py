"""int8 graphs: one weight scale per output channel, activation scales per row or calibrated.

Products of a model that came in 8 bits with both multipliers are rounded as Marian rounds them: a zero point and a bias
say it. Native kernels then give Marian's results, and ONNX Runtime's nearly.

No activation scale depends on other rows, so neither does a sentence's result.

Weights are signed, activations unsigned: with VNNI, such products take half the time of unsigned with unsigned
(7.4 against 14.7 ms for 128 rows times [512, 32000], one core of a Zen 5). Without VNNI they may saturate: see
`jumok_serve.runtime.sessions`.

Weights use fewer quantized values than 8 bits hold. Without VNNI, native kernels then sum six products in 16 bits
(`overflow_groups.h`), in two thirds of the time: 110 instead of 73 times 10^9 products/s on one core of a Zen 3. BLEU
of `models/`'s Transformer was no lower: 38.61 (greedy) and 39.05 (beam 4), against 38.45 and 39.21 with 127 values.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from jumok_export.graphs.graph import Graph, drop_unread
from jumok_export.graphs.weights import SCALES, VALUES, convert, values
from jumok_export.quantization.find_matrices import SIGNED, Matrices, Product, QuantizedRange

Scales = Mapping[str, float]
"""Activation scales by the `weight_key` of the matrix that the activation is multiplied with."""
Multipliers = Mapping[str, float]
"""Multipliers of the weights of a model that came in 8 bits, weight = value / multiplier, by `weight_key`."""
_SHIFT = np.float32(127)
"""Added to quantized activations by Marian."""
MARIAN_ZERO_POINT = SIGNED.zero_point - int(_SHIFT)
"""Zero point of products that are rounded as Marian rounds them, and of no others."""


def quantize_graph(
    graph: Graph,
    scales: Scales = MappingProxyType({}),
    *,
    signed: bool = False,
    multipliers: Multipliers = MappingProxyType({}),
) -> Graph:
    """Quantize a graph's constant-weight products and embeddings to int8.

    Weights have one scale per output channel, embeddings one per token: a tied embedding is stored once. Activations
    have the calibrated scale of their matrix, or one scale per row.

    Args:
        signed: True if the scales of ReLU outputs are for the range of activations in general.
        multipliers: products with these weights are rounded as Marian rounds them, if their activations have a scale
            and the weights keep the values that they came with.
    """
    model = graph.copy_model()
    return Graph(_Quantizer(model, scales, multipliers, signed=signed).run(), graph.inputs, graph.outputs)


class _Quantizer:
    def __init__(self, model: onnx.ModelProto, scales: Scales, multipliers: Multipliers, *, signed: bool) -> None:
        self.model = model
        self.scales = scales
        self.multipliers = multipliers
        self.matrices = Matrices(model, signed=signed)
        self.nodes: list[onnx.NodeProto] = []
        self.added: dict[str, onnx.TensorProto] = {}
        self.quantized_inputs: dict[tuple[str, float | None], tuple[str, str]] = {}

    def run(self) -> onnx.ModelProto:
        graph = self.model.graph
        computed = set()  # outputs of bias additions that a product includes
        for node in graph.node:
            product = self.matrices.product(node)
            if product is not None:
                self._product(product)
                computed.add(product.output)
            elif (table := self.matrices.embedding(node)) is not None:
                self._embedding(node, table)
            elif node.output[0] not in computed:
                self.nodes.append(node)
        del graph.node[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.added.values())
        drop_unread(graph)
        if all(opset.domain != "com.microsoft" for opset in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return self.model

    def _product(self, product: Product) -> None:
        output, zero_point = product.output, self._zero_point(product.activation_range)
        # Each product has its own weight and zero point: for processors without VNNI, ONNX Runtime makes weights
        # unsigned, which it refuses for shared ones. The weights file stores equal tensors once.
        stored, weight_scale = self._add_weight(
            product.weight, f"{output}.weight", channels=0 if product.transposed else 1
        )
        if product.transposed:
            self._add("Transpose", [stored], f"{stored}.transposed", perm=[1, 0])  # folded when a session is made
            stored = f"{stored}.transposed"
        weight_zero_point = self._constant(f"{output}.weight_zero_point", np.array(0, np.int8))
        key = self.matrices.key(product) if self.scales else ""
        calibrated, multiplier = self.scales.get(key), self.multipliers.get(key)
        if calibrated is not None:
            quantized, scale = self._quantize_by_constant(product, calibrated)
            bias = [] if product.bias is None else [product.bias]
            if multiplier is not None and self._keeps_values(product, multiplier):
                scale, weight_scale, zero_point, added = self._shifted(product, 1 / calibrated, multiplier)
                bias = [added]
            inputs = [quantized, stored, scale, weight_scale, zero_point, weight_zero_point, *bias]
            self._add("MatMulIntegerToFloat", inputs, output, domain="com.microsoft")
            return
        quantized, largest = self._quantize_rows(product)
        inputs = [quantized, stored, self._unit(product.activation_range), weight_scale, zero_point, weight_zero_point]
        self._add("MatMulIntegerToFloat", inputs, f"{output}.shares", domain="com.microsoft")
        if product.bias is None:
            self._add("Mul", [f"{output}.shares", largest], output)
        else:
            self._add("Mul", [f"{output}.shares", largest], f"{output}.product")
            self._add("Add", [f"{output}.product", product.bias], output)

    def _keeps_values(self, product: Product, multiplier: float) -> bool:
        """True if a product can be as Marian's: its weight keeps the values that it came with, and 128 stands for 0."""
        scale = convert(self.matrices.constants[product.weight], "scales", SCALES, 0 if product.transposed else 1)
        return product.activation_range is SIGNED and np.allclose(values(scale) * multiplier, 1, rtol=1e-5, atol=0)

    def _shifted(self, product: Product, of_activation: float, of_weight: float) -> tuple[str, str, str, str]:
        """Constants of a product in Marian's float32 arithmetic: both scales, the zero point and the bias.

        Marian adds 127 to activations before the product. The bias takes the share of these from it, after the product
        was rounded to float32; most of the difference from exact arithmetic is of this rounding.

        Args:
            of_activation, of_weight: multipliers of the quantized activation and weight.
        """
        output, axis = product.output, 1 if product.transposed else 0
        whole = convert(self.matrices.constants[product.weight], "values", VALUES, 1 - axis)
        sums = values(whole).sum(axis=axis, dtype=np.int64).astype(np.float32)
        alpha, beta = np.float32(of_activation), np.float32(of_weight)
        shift = sums * -(_SHIFT / alpha * (_SHIFT / beta) / _SHIFT)
        if product.bias is not None:
            shift = shift + values(self.matrices.vectors[product.bias])
        scales = np.full(len(sums), np.float32(1) / (alpha * beta))
        return (
            self._constant("unit_scale", np.array(1, np.float32)),
            self._constant(f"{output}.scales", scales),
            self._byte(MARIAN_ZERO_POINT),
            self._constant(f"{output}.shifted_bias", shift),
        )

    def _embedding(self, node: onnx.NodeProto, table: str) -> None:
        """Look up rows in the int8 table and multiply them by their scales."""
        output, ids = node.output[0], node.input[1]
        stored, scale = self._add_weight(table, f"{table}.rows", channels=0)
        last = self._constant("last_axis", np.array([-1]))
        self._add("Unsqueeze", [scale, last], f"{output}.scales")  # [V, 1], folded when a session is made
        self._add("Gather", [stored, ids], f"{output}.stored", axis=0)
        self._add("Gather", [f"{output}.scales", ids], f"{output}.scale", axis=0)
        self._add("Cast", [f"{output}.stored"], f"{output}.values", to=onnx.TensorProto.FLOAT)
        self._add("Mul", [f"{output}.values", f"{output}.scale"], output)

    def _quantize_by_constant(self, product: Product, scale: float) -> tuple[str, str]:
        """Quantize a product's activation by a calibrated scale; returns both names.

        All readers share the result.
        """
        name = product.activation
        if (name, scale) not in self.quantized_inputs:
            q = f"{name}.int8.calibrated{len(self.quantized_inputs)}"
            constant = self._constant(f"scale{len(self.quantized_inputs)}", np.array(scale, np.float32))
            source = self.matrices.rectified.get(name, name)
            self._add("QuantizeLinear", [source, constant, self._zero_point(product.activation_range)], q)
            self.quantized_inputs[name, scale] = (q, constant)
        return self.quantized_inputs[name, scale]

    def _quantize_rows(self, product: Product) -> tuple[str, str]:
        """Quantize a product's activation by row.

        Returns its name and that of the rows' largest magnitudes, [..., 1].

        Shared by all its readers. A row of zeros, divided by 0, gives undefined values, which are multiplied by 0.
        """
        name = product.activation
        if (name, None) not in self.quantized_inputs:
            q, last = f"{name}.int8", self._constant("last_axis", np.array([-1]))
            source = self.matrices.rectified.get(name, name)
            if source != name:
                self._add("ReduceMax", [source, last], f"{q}.most", keepdims=1)
                self._add("Relu", [f"{q}.most"], f"{q}.largest")
            else:
                self._add("Abs", [name], f"{q}.magnitude")
                self._add("ReduceMax", [f"{q}.magnitude", last], f"{q}.largest", keepdims=1)
            self._add("Div", [source, f"{q}.largest"], f"{q}.shares")
            inputs = [f"{q}.shares", self._unit(product.activation_range), self._zero_point(product.activation_range)]
            self._add("QuantizeLinear", inputs, q)
            self.quantized_inputs[name, None] = (q, f"{q}.largest")
        return self.quantized_inputs[name, None]

    def _add_weight(self, name: str, stored: str, *, channels: int) -> tuple[str, str]:
        """Add an int8 weight matrix with scales along the axis `channels`.

        Returns their names.
        """
        scale, weight = f"{name}.scale.{channels}", self.matrices.constants[name]
        self.added[stored] = convert(weight, stored, VALUES, channels)
        self.added[scale] = convert(weight, scale, SCALES, channels)
        return stored, scale

    def _zero_point(self, activation_range: QuantizedRange) -> str:
        return self._byte(activation_range.zero_point)

    def _byte(self, value: int) -> str:
        return self._constant(f"zero_point.{value}", np.array(value, np.uint8))

    def _unit(self, activation_range: QuantizedRange) -> str:
        return self._constant(f"unit.{activation_range.largest}", np.array(activation_range.unit))

    def _constant(self, name: str, value: NDArray[np.generic]) -> str:
        name = f"int8.{name}"
        self.added.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def _add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
