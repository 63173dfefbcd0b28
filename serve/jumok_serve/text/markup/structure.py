"""Structure of a document's tokens: mended tags, partners, and tags that separate sentences."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_serve.text.markup.scanner import Kind, Token, attributes

BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "base",
        "blockquote",
        "body",
        "br",
        "button",
        "caption",
        "center",
        "col",
        "colgroup",
        "dd",
        "details",
        "dialog",
        "dir",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "frame",
        "frameset",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "head",
        "header",
        "hgroup",
        "hr",
        "html",
        "iframe",
        "legend",
        "li",
        "link",
        "main",
        "menu",
        "meta",
        "nav",
        "noframes",
        "noscript",
        "ol",
        "optgroup",
        "option",
        "p",
        "param",
        "pre",
        "script",
        "search",
        "section",
        "select",
        "source",
        "style",
        "summary",
        "table",
        "tbody",
        "td",
        "template",
        "textarea",
        "tfoot",
        "th",
        "thead",
        "title",
        "tr",
        "track",
        "ul",
    ]
)
"""Elements of HTML that separate sentences."""
IGNORED = frozenset("code kbd math pre samp script style svg template textarea tt var".split())  # noqa: SIM905
"""Elements of HTML whose content is not translated."""


def mend(tokens: Sequence[Token]) -> list[Token]:
    """Close elements of HTML that are not blocks in the order in which they were opened.

    A tag that comes too late moves; an end without a start stays as a mark. Each tag stays once.
    """
    mended: list[Token] = []
    stack: list[Token] = []
    names: Counter[str] = Counter()
    closed: Counter[str] = Counter()  # before their tags

    def close_last() -> None:
        last = stack.pop()
        names[last.name] -= 1
        if last.name not in BLOCKS:
            mended.append(Token(Kind.END, f"</{last.name}>", last.name))
            closed[last.name] += 1

    for token in tokens:
        if token.kind is Kind.END:
            if names[token.name]:
                while stack[-1].name != token.name:
                    close_last()
                stack.pop()
                names[token.name] -= 1
            elif closed[token.name]:
                closed[token.name] -= 1
                continue
            elif token.name not in BLOCKS:
                token = Token(Kind.RAW, token.written)  # noqa: PLW2901
        elif token.kind is Kind.START:
            stack.append(token)
            names[token.name] += 1
        mended.append(token)
    while stack:
        close_last()
    return mended


@dataclass(frozen=True, slots=True)
class Structure:
    """Tokens with their partners.

    Attributes:
        ends: index of the end tag of each start tag that has one.
        separate: True for tokens that separate sentences, [n].
        ignored: start tags of elements that are not translated.
    """

    tokens: Sequence[Token]
    ends: dict[int, int] = field(default_factory=dict)
    separate: list[bool] = field(default_factory=list)
    ignored: set[int] = field(default_factory=set)


def find_structure(tokens: Sequence[Token], kind: MarkupKind, rules: MarkupRules) -> Structure:
    """Find the structure of mended tokens."""
    name = str.lower if kind == "html" else str
    blocks = BLOCKS if kind == "html" else _xml_blocks(tokens)
    splitting = {name(tag) for tag in rules.splitting_tags}
    inside = {name(tag) for tag in rules.non_splitting_tags}
    ignored = {name(tag) for tag in rules.ignore_tags} | (IGNORED if kind == "html" else frozenset())
    found = Structure(tokens, find_ends(tokens))
    for index, token in enumerate(tokens):
        block = (token.name if kind == "html" else index) in blocks
        named = bool(token.name) and token.name not in inside
        found.separate.append(token.kind is Kind.CDATA or (named and (block or token.name in splitting)))
        if index in found.ends and (token.name in ignored or _not_translated(token)):
            found.ignored.add(index)
    _separate_parents(found)
    return found


def _not_translated(token: Token) -> bool:
    return "translate" in token.written.lower() and ("translate", "no") in (
        (attribute, value.lower()) for attribute, value in attributes(token.written)
    )


def find_ends(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the index of each start tag's end tag, for those that have one."""
    ends: dict[int, int] = {}
    stack: list[int] = []
    names: Counter[str] = Counter()
    for index, token in enumerate(tokens):
        if token.kind is Kind.START:
            stack.append(index)
            names[token.name] += 1
        elif token.kind is Kind.END and names[token.name]:
            while tokens[stack[-1]].name != token.name:
                names[tokens[stack.pop()].name] -= 1
            names[token.name] -= 1
            ends[stack.pop()] = index
    return ends


def _separate_parents(structure: Structure) -> None:
    """Let elements around a token that separates sentences do so too."""
    separate, stack = structure.separate, list[int]()
    for index, token in enumerate(structure.tokens):
        if separate[index]:
            for parent in reversed(stack):
                if separate[parent]:
                    break
                separate[parent] = separate[structure.ends[parent]] = True
        if token.kind is Kind.START and index in structure.ends:
            stack.append(index)
        elif stack and structure.ends[stack[-1]] == index:
            stack.pop()


def _xml_blocks(tokens: Sequence[Token]) -> set[int]:
    """Return the tags that have no text beside them, and neither have the elements around them."""
    has_text = {parent for parent, token in _with_parents(tokens) if token.kind is Kind.TEXT and token.written.strip()}
    blocks: set[int] = set()
    inline: set[int] = set()
    ends = find_ends(tokens)
    for index, (parent, token) in enumerate(_with_parents(tokens)):
        if token.kind not in {Kind.START, Kind.EMPTY}:
            continue
        if parent in has_text or parent in inline:
            inline.add(index)
        else:
            blocks |= {index, ends.get(index, index)}
    return blocks


def _with_parents(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Yield the index of the start tag around each token, -1 without one, and the token."""
    stack = [-1]
    for index, token in enumerate(tokens):
        if token.kind is Kind.END and len(stack) > 1:
            stack.pop()
        yield stack[-1], token
        if token.kind is Kind.START:
            stack.append(index)
