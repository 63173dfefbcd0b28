"""Escaping of foreign text, so that it can forge neither lines nor terminal commands."""


def printable(text: str) -> str:
    r"""Replace line ends, control characters and lone surrogates by escapes such as ``\n``; keep other text."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
