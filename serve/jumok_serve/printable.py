"""Escaping of foreign text, so that it can forge neither lines nor terminal commands."""

import json


def printable(text: str) -> str:
    r"""Replace line ends, control characters and lone surrogates by escapes such as ``\n``; keep other text."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def printable_json(value: object) -> str:
    """Return JSON in one printable line."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    if written.isprintable():
        return written
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in written)
