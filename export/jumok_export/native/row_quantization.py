"""Native quantization of rows, each with a scale of its own."""

from onnx import NodeProto

from jumok_export.graphs.matching import Found, attributes
from jumok_export.native.operators import native


def quantized_rows(found: Found, node: NodeProto) -> NodeProto | None:
    """Replace the scales of rows, the division by them, and the quantization of the quotients.

    Args:
        node: the operator that computes the scales.
    """
    scaled = _scaled(found, node.output[0])
    if scaled is None:
        return None
    rows, rectified = scaled
    for reader in found.readers.get(node.output[0], []):
        rounding = found.rounding(reader.output[0]) if _divides(reader, rows, node.output[0]) else None
        if rounding is not None:
            inputs, outputs = [rows, *rounding.input[1:]], [rounding.output[0], node.output[0]]
            return native("QuantizeRows", inputs, outputs, rectified=int(rectified))
    return None


def scales_of_rows(found: Found, levels: str) -> str | None:
    """The largest magnitudes [.., 1] by which rows were divided when they were quantized, or None."""
    rounded = found.maker(levels, "QuantizeLinear")
    shares = found.maker(rounded.input[0], "Div") if rounded is not None else None
    scaled = _scaled(found, shares.input[1]) if shares is not None else None
    if shares is None or scaled is None or not _divides(shares, scaled[0], shares.input[1]):
        return None
    return shares.input[1]


def _divides(node: NodeProto, rows: str, scales: str) -> bool:
    return node.op_type == "Div" and list(node.input) == [rows, scales]


def _scaled(found: Found, scales: str) -> tuple[str, bool] | None:
    """Rows whose largest magnitudes a tensor [.., 1] holds, and True if only positive numbers count; or None."""
    relu = found.maker(scales, "Relu")
    most = found.maker(relu.input[0] if relu is not None else scales, "ReduceMax")
    if most is None or len(most.input) != 2 or attributes(most).get("keepdims", 1) != 1:
        return None
    magnitude, axes = found.maker(most.input[0], "Abs"), found.constant(most.input[1])
    if axes is None or axes.tolist() != [-1] or (magnitude is None) == (relu is None):
        return None
    return (most.input[0], True) if magnitude is None else (magnitude.input[0], False)
