"""Formats of files by name, with the ends of names that tell them."""

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
        "po": ("po", "pot"),
        "xliff": ("xliff", "xlf"),
        "docx": ("docx", "docm", "dotx", "dotm"),
        "pptx": ("pptx", "pptm", "ppsx", "ppsm", "potx", "potm"),
        "xlsx": ("xlsx", "xlsm", "xltx", "xltm"),
        "odt": ("odt", "ott"),
        "ods": ("ods", "ots"),
        "odp": ("odp", "otp"),
        "epub": ("epub",),
    }
)
"""Ends of the names of files, without the dot, by format. Server, SDK and page of translation take them from here."""
