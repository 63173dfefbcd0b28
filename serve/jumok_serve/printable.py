"""Escaping of foreign text in logs."""

import json

from jumok_proto.errors import printable

__all__ = ["printable", "printable_json"]


def printable_json(value: object) -> str:
    """Return JSON in one printable line."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    if written.isprintable():
        return written
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in written)
