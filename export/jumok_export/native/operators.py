"""What native operators are called, and nodes of them."""

from collections.abc import Sequence
from typing import Any

from onnx import NodeProto, helper

DOMAIN = "jumok"
VERSION = 1

FLOAT, INT8, QUANTIZED = "Float", "Int8", "Quantized"
"""How the names begin of operators that have forms for floats and for 8 bits, and end of operators that give 8 bits."""


def native(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> NodeProto:
    """A node of a native operator."""
    return helper.make_node(operator, inputs, outputs, domain=DOMAIN, **attributes)
