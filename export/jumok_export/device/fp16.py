"""fp16 form of a graph; long sums stay in 32 bits."""

import onnx
from onnx import TensorProto, numpy_helper
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from jumok_export.graphs.graph import Graph, declare
from jumok_export.graphs.weights import HALF, convert, is_external, values
from jumok_serve.manifest.manifest import TensorSpec

IN_FP32 = ("LogSoftmax", "Pow", "ReduceMean", "ReduceSum", "Sqrt", "Reciprocal", "Exp", "Log")
"""Operators that 16 bits lack range or precision for: probabilities, and squares within norms.

Fused layer norm and softmax accumulate in 32 bits regardless of their input.
"""
HALVED = ("memory.", "state.", "next_state.")
"""Prefixes of the inputs and outputs that become fp16."""


def half_graph(graph: Graph) -> Graph:
    """Convert an fp32 graph of ONNX's own operators to fp16.

    Values beyond fp16's range, such as masks, become its largest number.
    """
    model = graph.copy_model()
    stored = {tensor.name: TensorProto.FromString(tensor.SerializeToString()) for tensor in _in_files(model)}
    for tensor in _in_files(model):
        tensor.CopyFrom(numpy_helper.from_array(values(tensor), tensor.name))
    kept = [spec.name for spec in (*graph.inputs, *graph.outputs) if not spec.name.startswith(HALVED)]
    model = convert_float_to_float16(
        model, keep_io_types=kept, op_block_list=[*DEFAULT_OP_BLOCK_LIST, *IN_FP32], force_fp16_initializers=True
    )
    for tensor in model.graph.initializer:
        if tensor.name in stored and tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(convert(stored[tensor.name], tensor.name, HALF))
        elif tensor.name in stored:
            tensor.CopyFrom(stored[tensor.name])
    # Several fp32 operators may read one value; one cast is enough.
    kept_nodes: list[onnx.NodeProto] = []
    written: set[str] = set()
    for node in model.graph.node:
        if node.op_type != "Cast" or node.output[0] not in written:
            kept_nodes.append(node)
        written.update(node.output)
    del model.graph.node[:]
    model.graph.node.extend(kept_nodes)
    inputs, outputs = tuple(map(_halved, graph.inputs)), tuple(map(_halved, graph.outputs))
    return declare(model, inputs, outputs)


def _in_files(model: onnx.ModelProto) -> list[TensorProto]:
    return [tensor for tensor in model.graph.initializer if is_external(tensor)]


def _halved(spec: TensorSpec) -> TensorSpec:
    if spec.dtype != "float32" or not spec.name.startswith(HALVED):
        return spec
    return spec.model_copy(update={"dtype": "float16"})
