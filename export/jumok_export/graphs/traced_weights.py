"""Weights of traced models: apart from their graph, and then in a file."""

from typing import Any, NamedTuple

import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxscript import ir
from torch import Tensor, nn

from jumok_export.graphs.storage import SMALLEST_EXTERNAL, Stored, WeightsFile
from jumok_export.graphs.weights import TURNED, convert, refer


class TracedModel(NamedTuple):
    """A traced model without its large constants.

    Attributes:
        content: the model; its large constants refer to no file.
        weights: name of each large constant, and its values unless the module has a tensor of that name with them.
    """

    content: bytes
    weights: dict[str, NDArray[Any] | None]


def without_weights(exported: torch.onnx.ONNXProgram, module: nn.Module) -> TracedModel:
    """Take the large constants out of a program of a module."""
    tensors, weights = _tensors(module), dict[str, NDArray[Any] | None]()
    for name, value in exported.model.graph.initializers.items():
        constant = value.const_value
        if constant is None or constant.nbytes < SMALLEST_EXTERNAL:
            continue
        known, raw = tensors.get(name), getattr(constant, "raw", None)
        same = known is not None and isinstance(raw, Tensor) and raw.data_ptr() == known.data_ptr()
        weights[name] = None if same else constant.numpy()
        shape = ir.Shape(constant.numpy().shape)
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
        array = tensors[constant.name].detach().numpy() if given is None else given
        if file is None:
            constant.CopyFrom(numpy_helper.from_array(array, constant.name))
            continue
        place, turned = file.store_once(tensors[constant.name], stored) if given is None else file.store(given)
        shape = array.shape[::-1] if turned else array.shape
        weight = refer(constant.name, constant.data_type, shape, place)
        constant.CopyFrom(convert(weight, constant.name, TURNED) if turned else weight)
    return model


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict((*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)))
