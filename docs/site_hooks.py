"""Hook of the documentation site: links to files of the repository outside `docs/` become plain paths."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]*)[^)]*\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Replace the links of one page that lead out of the site."""

    def plain(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(f"docs/{page.file.src_uri}"), link[2]))
        return link[0] if path.startswith("docs/") else f"{link[1]} (`{path}` in the repository)"

    return LINK.sub(plain, markdown)
