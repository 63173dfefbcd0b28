"""Weights of graphs in a file, mapped when they are read.

A weight may have another form, such as int8: it is then converted when it is read, matrix by matrix.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_np_to_float16

from jumok_export.graphs.quantize_matrix import parts, quantize_weight

HALF, VALUES, SCALES, TURNED = "half", "values", "scales", "turned"
"""Forms of an fp32 weight: fp16, quantized values, their scales along an axis, or transposed.

A transposed weight can be converted again.
"""


class Place(NamedTuple):
    """Bytes of a tensor in a weights file."""

    path: Path
    offset: int
    length: int


def refer(name: str, data_type: int, shape: tuple[int, ...], place: Place) -> TensorProto:
    """Make a graph's constant whose values are in a weights file."""
    tensor = TensorProto(name=name, data_type=data_type, dims=shape, data_location=TensorProto.EXTERNAL)
    said = {"location": place.path, "offset": place.offset, "length": place.length}
    for key, value in said.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def is_external(tensor: TensorProto) -> bool:
    """True if a constant's values are in a weights file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def convert(tensor: TensorProto, name: str, form: str, channels: int = 0) -> TensorProto:
    """Make the constant that is an fp32 weight in another form.

    A weight in a file is converted when it is read.

    Args:
        tensor: the fp32 weight.
        form: one of `HALF`, `VALUES`, `SCALES` and `TURNED`.
        channels: axis with one scale for each index, of the last two.
    """
    said, shape = _said(tensor), tuple(tensor.dims)
    turned = said.get("form") == TURNED
    if not is_external(tensor) or ("form" in said and not turned):
        return numpy_helper.from_array(_converted(values(tensor), form, channels), name)
    in_file = shape[::-1] if turned else shape
    if turned and form == TURNED:
        return refer(name, tensor.data_type, in_file, _place(said))
    data_type = {HALF: TensorProto.FLOAT16, VALUES: TensorProto.INT8}.get(form, tensor.data_type)
    of_form = {SCALES: shape[channels : channels + 1], TURNED: shape[::-1]}.get(form, shape)
    converted = refer(name, data_type, of_form, _place(said))
    more = {"form": form, "channels": channels, "shape": " ".join(map(str, in_file)), "turned": int(turned)}
    for key, value in more.items():
        converted.external_data.add(key=key, value=str(value))
    return converted


def source(tensor: TensorProto) -> tuple[object, ...]:
    """Key of a constant's values in a file: equal keys mean equal values."""
    return tensor.data_type, *tensor.dims, *(entry.value for entry in tensor.external_data)


def place_of(tensor: TensorProto) -> Place | None:
    """Place of a constant that a file holds in its own form; None for others."""
    said = _said(tensor)
    if not is_external(tensor) or "form" in said:
        return None
    return _place(said)


def name_weights_alone(model: ModelProto) -> Path | None:
    """Name a model's weights file without its folder, as ONNX Runtime wants it; returns the folder."""
    folder = None
    for tensor in model.graph.initializer:
        place = place_of(tensor)
        if place is not None:
            folder = place.path.parent
            tensor.external_data[0].value = place.path.name
    return folder


def values(tensor: TensorProto) -> NDArray[Any]:
    """Values of a constant; those in a file are mapped, and converted if necessary."""
    if not is_external(tensor):
        return numpy_helper.to_array(tensor)
    said = _said(tensor)
    if "form" not in said:
        return mapped(_place(said), helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims))
    form, shape, turned = said["form"], tuple(map(int, said["shape"].split())), said["turned"] == "1"
    if form in {VALUES, SCALES}:
        return _quantized(_place(said), shape, int(said["channels"]), turned)[form == SCALES]
    dtype = np.float32 if form == HALF else helper.tensor_dtype_to_np_dtype(tensor.data_type)
    weight = mapped(_place(said), np.dtype(dtype), shape)
    return _converted(weight.T if turned else weight, form, 0)


def mapped(place: Place, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Map a tensor of a weights file, read-only."""
    return np.asarray(np.memmap(place.path, dtype, "r", place.offset, shape))


def equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """True if two arrays are equal; compared in parts, a small one first."""
    if one.shape != other.shape or (one.ndim and not np.array_equal(one[:1], other[:1])):
        return False
    return all(np.array_equal(one[part], other[part]) for part in parts(one.shape, 0))


def checksum(array: NDArray[Any]) -> int:
    """Sum of an array's bits as whole numbers; that of a transposed array is equal."""
    bits = array.view(f"u{array.itemsize}")
    return int(bits.sum(dtype=np.uint32 if array.itemsize <= 4 else np.uint64))  # u4 into u8 takes four times as long


def all_finite(array: NDArray[Any]) -> bool:
    """True if an array has neither NaN nor infinite values; looks at parts."""
    return all(np.isfinite(array[part]).all() for part in parts(array.shape, 0))


def forget_quantized() -> None:
    """Free the matrix that was quantized last."""
    _quantized.cache_clear()


@lru_cache(maxsize=1)  # values and scales are read one after another
def _quantized(
    place: Place, shape: tuple[int, ...], channels: int, turned: bool
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    weight = mapped(place, np.dtype(np.float32), shape)
    return quantize_weight(weight.T if turned else weight, channels)


def _converted(weight: NDArray[Any], form: str, channels: int) -> NDArray[Any]:
    if form == TURNED:
        return weight.T
    if form in {VALUES, SCALES}:
        return quantize_weight(weight, channels)[form == SCALES]
    half = np.empty(weight.shape, np.float16)
    for part in parts(weight.shape, 0):
        half[part] = convert_np_to_float16(weight[part])
    return half


def _place(said: dict[str, str]) -> Place:
    return Place(Path(said["location"]), int(said["offset"]), int(said["length"]))


def _said(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}
