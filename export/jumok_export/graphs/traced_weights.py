"""Weights of traced models: apart from their graph, and then in a file."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxscript import ir
from torch import Tensor, nn

from jumok_export.graphs.storage import SMALLEST_EXTERNAL, Stored, WeightsFile
from jumok_export.graphs.weights import TURNED, convert, refer


class Known(NamedTuple):
    """A constant that a tensor of the module holds.

    Attributes:
        name: the tensor's name in the module.
        turned: True if the constant is its transposition.
    """

    name: str
    turned: bool

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The constant, in the tensor's memory."""
        return tensors[self.name].T if self.turned else tensors[self.name]


class TracedModel(NamedTuple):
    """A traced model without its large constants.

    Attributes:
        content: the model; its large constants refer to no file.
        weights: values of each large constant by its name, or the tensor of the module that has them.
    """

    content: bytes
    weights: dict[str, Known | NDArray[Any]]


def without_weights(exported: torch.onnx.ONNXProgram, module: nn.Module) -> TracedModel:
    """Take the large constants out of a program of a module.

    Most of them are views of the module's tensors, many transposed.
    """
    known: dict[tuple[object, ...], Known] = {}
    for name, tensor in _tensors(module).items():
        if tensor.dtype == torch.float32:
            array = tensor.detach().numpy()
            known.setdefault(_memory(array), Known(name, turned=False))
            if array.ndim == 2:
                known.setdefault(_memory(array.T), Known(name, turned=True))
    weights: dict[str, Known | NDArray[Any]] = {}
    for name, value in exported.model.graph.initializers.items():
        constant = value.const_value
        if constant is None or constant.nbytes < SMALLEST_EXTERNAL:
            continue
        array = constant.numpy()
        weights[name] = known.get(_memory(array), array)
        shape = ir.Shape(array.shape)
        value.const_value = ir.ExternalTensor("", 0, constant.nbytes, constant.dtype, shape=shape, name=name)
    return TracedModel(exported.model_proto.SerializeToString(), weights)


def with_weights_in(
    file: WeightsFile | None, traced: TracedModel, module: nn.Module, stored: Stored
) -> onnx.ModelProto:
    """Put the large constants of a traced model into a file, or without one into the model.

    Args:
        stored: see `WeightsFile.store_once`.
    """
    tensors, model = _tensors(module), onnx.ModelProto.FromString(traced.content)
    for constant in model.graph.initializer:
        if constant.name not in traced.weights:
            continue
        given = traced.weights[constant.name]
        values = given.of(tensors) if isinstance(given, Known) else torch.from_numpy(given)
        if file is None:
            constant.CopyFrom(numpy_helper.from_array(values.detach().numpy(), constant.name))
            continue
        place, turned = file.store_once(values, stored) if isinstance(given, Known) else file.store(given)
        weight = refer(constant.name, constant.data_type, tuple(constant.dims)[:: -1 if turned else 1], place)
        constant.CopyFrom(convert(weight, constant.name, TURNED) if turned else weight)
    return model


def _memory(array: NDArray[Any]) -> tuple[object, ...]:
    """Key of an array's memory, as long as the array lives: equal keys mean equal values."""
    return array.ctypes.data, array.dtype, array.shape, array.strides


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict((*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)))
