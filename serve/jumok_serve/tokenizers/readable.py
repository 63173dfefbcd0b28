"""Which texts can be translated at all."""

import re

from jumok_proto.errors import InvalidArgumentError

# NUL ends a string in many a library; a surrogate alone has no UTF-8 form, so no tokenizer can be given it.
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")


def check_text(text: str, field: str) -> None:
    """Raise ``InvalidArgumentError`` for ``field`` where ``text`` holds a NUL or a lone surrogate (or is no string)."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{field} must be a string, got {type(text).__name__}", field=field)
    found = _UNUSABLE.search(text)
    if found is None:
        return
    point = ord(found.group())
    what = "the NUL character" if point == 0 else "a lone surrogate, which is no character"
    raise InvalidArgumentError(f"{field}: character {found.start()} is U+{point:04X}, {what}; remove it", field=field)
