"""Formats of files by name, with the names of files that tell them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FILE_FORMATS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "text": ("txt",),
        "markdown": ("md", "markdown"),
        "html": ("html", "htm", "xhtml"),
        "srt": ("srt",),
        "vtt": ("vtt",),
        "ass": ("ass", "ssa"),
        "po": ("po", "pot"),
        "xliff": ("xliff", "xlf"),
        "android": ("strings.xml",),
        "xcstrings": ("xcstrings",),
        "json": ("json",),
        "chrome": ("messages.json",),
        "arb": ("arb",),
        "properties": ("properties",),
        "strings": ("strings",),
        "yaml": ("yml", "yaml"),
        "qt": ("ts",),
        "resx": ("resx",),
        "docx": ("docx", "docm", "dotx", "dotm"),
        "pptx": ("pptx", "pptm", "ppsx", "ppsm", "potx", "potm"),
        "xlsx": ("xlsx", "xlsm", "xltx", "xltm"),
        "odt": ("odt", "ott"),
        "ods": ("ods", "ots"),
        "odp": ("odp", "otp"),
        "epub": ("epub",),
    }
)
"""Ends of the names of files, without the dot, or whole names with one, by format. Server, SDK and page of translation
take them from here."""

ENDINGS: Final = tuple(
    dict.fromkeys(f".{name.rpartition('.')[2]}" for names in FILE_FORMATS.values() for name in names)
)
"""Ends of the names of all files that can be translated, with the dot."""
