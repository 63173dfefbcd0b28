"""Hooks of the documentation site.

Links to files of the repository outside `docs/` become plain paths, and options are marked for the style sheet.
"""

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]*)[^)]*\)")
OPTION = re.compile(r"<code>(?=--?[a-z][^<]{0,30}</code>)")
"""An option short enough for a line of a narrow screen."""


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Replace the links of one page that lead out of the site."""

    def plain(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(f"docs/{page.file.src_uri}"), link[2]))
        if path.startswith("docs/"):
            return link[0]
        return f"`{path}` in the repository" if path.endswith(link[1]) else f"{link[1]} (`{path}` in the repository)"

    return LINK.sub(plain, markdown)


def on_page_content(html: str, **_: object) -> str:
    """Mark the options of one page, which stay on one line."""
    return OPTION.sub('<code class="option">', html)
