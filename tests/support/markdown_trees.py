"""Trees of Markdown documents without their words, by two parsers, and models that change words."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import pyromark
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pyromark import Options

GFM = Options.ENABLE_TABLES | Options.ENABLE_STRIKETHROUGH | Options.ENABLE_TASKLISTS | Options.ENABLE_FOOTNOTES
_FIXED = re.compile(r'<(m\d+) translate="no">.*?</\1>|<[^>]*>|&#?\w+;', re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")


def _outside(text: str, change: Callable[[str], str]) -> str:
    """Change what is between the elements of HTML."""
    parts, end = [], 0
    for found in _FIXED.finditer(text):
        parts += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*parts, change(text[end:])])


def with_one_word_changed(text: str) -> str:
    """Change the first word of a text."""
    left = 1

    def change(part: str) -> str:
        nonlocal left
        changed, number = _WORD.subn("Wort", part, count=left) if left else (part, 0)
        left -= number
        return changed

    return _outside(text, change)


def with_all_words_changed(text: str) -> str:
    """Change every word of a text into a Korean one."""
    return _outside(text, lambda part: _WORD.sub("말", part))


def tree(document: str, options: Options = GFM) -> list[str]:
    """Return the events of pyromark; texts, and spaces for breaks between their lines, are one."""
    found: list[str] = []
    events = [*pyromark.events(document, options=options)]
    for event, behind in zip(events, [*events[1:], "End"], strict=False):
        if event == "SoftBreak" and behind == "HardBreak":
            continue  # a line of a backslash alone
        if event == "SoftBreak" or (isinstance(event, dict) and "Text" in event):
            found += [] if found[-1:] == ["text"] else ["text"]
        elif isinstance(event, dict) and "Html" in event:
            found += _tags(event["Html"])
        else:
            found.append(json.dumps(_without_labels(event)))
    return found


def _without_labels(event: Any) -> Any:
    """Return an event without the kind and the label of a link."""
    if not isinstance(event, dict):
        return event
    return {key: _without_labels(value) for key, value in event.items() if key not in {"link_type", "id"}}


def _tags(written: str) -> list[str]:
    return re.findall(r"<[^>]*>", written)


_COMMONMARK = MarkdownIt("commonmark")
_WITH_TABLES = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def second_tree(document: str, *, gfm: bool = True) -> list[str]:
    """Return the tokens of markdown-it-py."""
    found: list[str] = []

    def walk(tokens: Iterable[Token]) -> None:
        for token in tokens:
            if token.type in {"text", "softbreak", "text_special"}:
                found.extend([] if found[-1:] == ["text"] else ["text"])
            elif token.type == "html_block":
                found.extend(_tags(token.content))
            elif token.type != "inline":
                attributes = {name: value for name, value in token.attrs.items() if name != "alt"}
                content = "" if token.type == "image" else token.content
                found.append(f"{token.type} {token.tag} {attributes} {content}")
            walk(token.children or ())

    walk((_WITH_TABLES if gfm else _COMMONMARK).parse(document))
    return found
