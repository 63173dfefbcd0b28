"""Names of native operators, and their nodes."""

from collections.abc import Sequence
from typing import Any

from onnx import NodeProto, helper

DOMAIN = "jumok"
VERSION = 1

FLOAT, INT8, QUANTIZED = "Float", "Int8", "Quantized"
"""Prefixes of operators for fp32 and int8 data, and the suffix of operators with int8 output."""


def native(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> NodeProto:
    """A node of a native operator."""
    return helper.make_node(operator, inputs, outputs, domain=DOMAIN, **attributes)
