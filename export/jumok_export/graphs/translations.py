"""ONNX forms of PyTorch operators, for `torch.onnx.export`."""

from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnxscript
import torch
from onnx.defs import OpSchema
from onnxscript import opset20
from onnxscript.function_libs.torch_lib.ops.core import aten_unflatten

from jumok_export.models import operators  # noqa: F401 - it defines the operators

DOMAIN = "com.microsoft"


def _input(name: str, kind: str, *, optional: bool = False) -> OpSchema.FormalParameter:
    option = OpSchema.FormalParameterOption.Optional if optional else OpSchema.FormalParameterOption.Single
    return OpSchema.FormalParameter(name, kind, param_option=option)


_MULTI_HEAD_ATTENTION = onnxscript.values.Op(
    onnxscript.values.Opset(DOMAIN, 1),
    "MultiHeadAttention",
    OpSchema(
        "MultiHeadAttention",
        DOMAIN,
        1,
        inputs=[
            _input("query", "T"),
            _input("key", "T"),
            _input("value", "T"),
            _input("bias", "T", optional=True),
            _input("key_padding_mask", "M", optional=True),
            _input("attention_bias", "T", optional=True),
        ],
        outputs=[_input("output", "T")],
        type_constraints=[("T", ["tensor(float)", "tensor(float16)"], ""), ("M", ["tensor(int32)"], "")],
        attributes=[
            OpSchema.Attribute("num_heads", OpSchema.AttrType.INT, "", required=True),
            OpSchema.Attribute("scale", OpSchema.AttrType.FLOAT, "", required=False),
            OpSchema.Attribute("mask_filter_value", OpSchema.AttrType.FLOAT, "", required=False),
        ],
    ),
)
"""The used part of https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md."""


def _fused_attention(  # noqa: PLR0917 - the operator's arguments
    query: Any, key: Any, value: Any, lengths: Any, bias: Any, heads: int, scale: float
) -> Any:
    masked = {} if lengths is None else {"mask_filter_value": float(torch.finfo(torch.float32).min)}
    return _MULTI_HEAD_ATTENTION(query, key, value, None, lengths, bias, num_heads=heads, scale=scale, **masked)


def _write(buffer: Any, places: Any, values: Any, heads: int) -> Any:
    in_heads: Any = opset20.Constant(value_ints=[0, 0, heads, -1])  # 0 keeps a size
    return opset20.ScatterND(buffer, places, opset20.Reshape(values, in_heads))


def _cast(value: Any, dtype: int, *_: object) -> Any:
    return opset20.Cast(value, to=dtype)


def _unflatten(value: Any, dim: int, sizes: Sequence[Any]) -> Any:
    before = len(value.shape) - 1
    if dim not in {-1, before} or not all(isinstance(size, int) for size in sizes):
        return aten_unflatten(value, dim, sizes)
    shape: Any = opset20.Constant(value_ints=[0] * before + list(sizes))  # 0 keeps a size
    return opset20.Reshape(value, shape)


def _recurrent_layer(  # noqa: PLR0917 - the operator's arguments
    x: Any,
    lengths: Any,
    input_weight: Any,
    input_bias: Any,
    hidden_weight: Any,
    hidden_bias: Any,
    kind: str,
    backwards: bool,
) -> Any:
    op: Any = opset20
    direction = op.Constant(value_ints=[0])
    sources = op.Transpose(x, perm=[1, 0, 2])  # time comes first
    weights = [op.Unsqueeze(weight, direction) for weight in (input_weight, hidden_weight)]
    bias = op.Unsqueeze(op.Concat(input_bias, hidden_bias, axis=0), direction)
    settings = {"hidden_size": hidden_weight.shape[1], "direction": "reverse" if backwards else "forward"}
    inputs = (sources, *weights, bias, op.Cast(lengths, to=onnx.TensorProto.INT32))
    if kind == "lstm":
        states, *last = op.LSTM(*inputs, **settings)
    elif kind == "gru":
        states, *last = op.GRU(*inputs, **settings, linear_before_reset=1)
    else:
        states, *last = op.RNN(*inputs, **settings)
    states = op.Transpose(op.Squeeze(states, op.Constant(value_ints=[1])), perm=[1, 0, 2])
    ends = [op.Squeeze(state, direction) for state in last]
    return states, op.Concat(*ends, axis=1) if len(ends) > 1 else ends[0]


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.jumok.fused_attention.default: _fused_attention,
    torch.ops.jumok.write.default: _write,
    torch.ops.jumok.recurrent_layer.default: _recurrent_layer,
    torch.ops.aten.to.dtype: _cast,  # PyTorch would decompose it
    torch.ops.aten.unflatten.int: _unflatten,  # onnxscript's form computes shapes at each run
}
"""ONNX form of each PyTorch operator, for the `custom_translation_table` of `torch.onnx.export`."""
