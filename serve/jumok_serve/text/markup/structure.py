"""Structure of a document's tokens: mended tags, partners, and tags that separate sentences."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_serve.text.markup.scanner import Kind, Token, attributes

BLOCKS = frozenset(
    """
    address article aside base blockquote body br button caption center col colgroup dd details dialog dir div dl
    dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe
    legend li link main menu meta nav noframes noscript ol optgroup option p param pre script search section
    select source style summary table tbody td template textarea tfoot th thead title tr track ul
    """.split()  # noqa: SIM905
)
"""Elements of HTML that separate sentences."""
IGNORED = frozenset("code kbd math pre rp rt samp script style svg template textarea tt var".split())  # noqa: SIM905
"""Elements of HTML whose content is not translated."""
MASKS = frozenset({"x", "ph"})
"""Elements of XLIFF that stand for placeholders if they are empty; clients of translation services write them too."""
SCRIPTS = frozenset({"sub", "sup"})
MAX_SCRIPT = 16
"""Characters, and tags, of a sub- or superscript that is no text."""
MAX_UNIT = 64
"""Characters of a formula after which further scripts are marks."""
_FORMULA = r"(?:(?:[A-Z][a-z]?\d{0,3}){1,4}|[A-Za-z\u0370-\u03ff]|[cdkmn\u00b5]m|ft|yd)"
"""Symbols of chemistry and mathematics, and units."""
_FORMULA_BEFORE = re.compile(rf"(?<!\w){_FORMULA}$")
_FORMULA_AFTER = re.compile(rf"{_FORMULA}(?![A-Za-z0-9])")


def mend(tokens: Iterable[Token], ignored: Container[str] = IGNORED) -> list[Token]:
    """Close elements of HTML that are not blocks in the order in which they were opened, and join formulas.

    A tag that comes too late moves; an end without a start stays as a mark. Each tag stays once.

    Args:
        ignored: names of elements that are not translated; inside of them nothing is mended.
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
                count = len(mended)
                while stack[-1].name != token.name:
                    close_last()
                names[token.name] -= 1
                if is_translated(stack.pop(), "html", ignored) is False:
                    closed.subtract(one.name for one in mended[count:])
                    del mended[count:]
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
    return _with_formulas(mended)


def _with_formulas(source: list[Token]) -> list[Token]:
    """Join sub- and superscripts of HTML with the formula that they are glued to; beside words they are marks."""
    if not any(token.name in SCRIPTS for token in source):
        return source
    tokens, ends, joined, index, last = [*source, Token(Kind.TEXT, "")], find_ends(source), list[Token](), 0, " "
    while index < len(source):
        token, end = tokens[index], ends.get(index, index)
        script = _script(tokens[index + 1 : end]) if token.name in SCRIPTS and end - index <= MAX_SCRIPT else ""
        after = tokens[end + 1].written if script and tokens[end + 1].kind is Kind.TEXT else ""
        if script and not (last.isspace() and not after[:1].isalnum()):
            written = "".join(one.written for one in tokens[index : end + 1])
            before = joined[-1] if joined else tokens[-1]
            is_unit = before.kind is Kind.UNIT and len(before.name) < MAX_UNIT
            at = max(0, len(before.written) - MAX_SCRIPT)
            word = _FORMULA_BEFORE.search(before.written, at) if before.kind is Kind.TEXT else None
            rest = _FORMULA_AFTER.match(after)
            if is_unit or word or (rest and last.isspace()):
                start = before.written if is_unit else word[0] if word else ""
                name = before.name if is_unit else f" {start}"  # no element has such a name
                if start:
                    joined[-1] = Token(Kind.TEXT, before.written.removesuffix(start))
                found = rest[0] if rest else ""
                joined.append(Token(Kind.UNIT, start + written + found, name + script + found))
                if found:
                    tokens[end + 1] = Token(Kind.TEXT, after[len(found) :])
            else:
                joined.append(Token(Kind.RAW, written, token.name))
            last = script[-1]
        else:
            end = index
            joined += (token,) if token.written else ()
            last = " " if token.name in BLOCKS else token.written[-1:] or last if token.kind is Kind.TEXT else last
        index = end + 1
    return [token for token in joined if token.written]


def _script(tokens: Sequence[Token]) -> str:
    """Return the text of a sub- or superscript if it is short and without white space and blocks; otherwise empty."""
    text = "".join(token.written for token in tokens if token.kind is Kind.TEXT)
    fits = len(text) <= MAX_SCRIPT and not any(map(str.isspace, text)) and not any(one.name in BLOCKS for one in tokens)
    return text if fits else ""


@dataclass(frozen=True, slots=True)
class Structure:
    """Tokens with their partners.

    Attributes:
        ends: index of the end tag of each start tag that has one.
        separate: True for tokens that separate sentences, [n].
        ignored: last token of each part that is not translated, by its first one.
    """

    tokens: Sequence[Token]
    ends: dict[int, int] = field(default_factory=dict)
    separate: list[bool] = field(default_factory=list)
    ignored: dict[int, int] = field(default_factory=dict)


def ignored_names(kind: MarkupKind, rules: MarkupRules) -> Container[str]:
    """Return the names of elements that are not translated."""
    return IGNORED.union(map(str.lower, rules.ignore_tags)) if kind == "html" else frozenset(rules.ignore_tags)


def find_structure(tokens: Sequence[Token], kind: MarkupKind, rules: MarkupRules) -> Structure:
    """Find the structure of mended tokens."""
    name = str.lower if kind == "html" else str
    splitting = {name(tag) for tag in rules.splitting_tags} | (_cells(tokens) if kind == "html" else set())
    inside = {name(tag) for tag in rules.non_splitting_tags}
    ignored, masks = ignored_names(kind, rules), MASKS.union(map(name, rules.ignore_tags))
    found = Structure(tokens, find_ends(tokens))
    blocks = BLOCKS if kind == "html" else _xml_blocks(found)
    for index, token in enumerate(tokens):
        block = (token.name if kind == "html" else index) in blocks
        named = bool(token.name) and token.name not in inside
        found.separate.append(token.kind in {Kind.CDATA, Kind.SYNTAX} or (named and (block or token.name in splitting)))
        if token.name in masks and (token.kind is Kind.EMPTY or found.ends.get(index) == index + 1):
            found.ignored[index] = found.ends.get(index, index)
    said = {index: is_translated(tokens[index], kind, ignored) for index in found.ends}
    _ignore(found, {index: translated for index, translated in said.items() if translated is not None})
    separate_parents(found)
    return found


def _cells(tokens: Sequence[Token]) -> set[str]:
    """Return names of custom elements that follow each other without text between, as cells of a table do."""
    names, (first, second) = set[str](), (Token(Kind.RAW, ""), Token(Kind.RAW, ""))
    for token in tokens if any("-" in token.name for token in tokens) else ():
        if token.kind is Kind.TEXT and not token.written.strip():
            continue
        if first.kind is not Kind.START and second.kind is Kind.END and token.kind is Kind.START:
            names |= {second.name, token.name} if "-" in second.name and "-" in token.name else set()
        first, second = second, token
    return names


def is_translated(token: Token, kind: MarkupKind, ignored: Container[str]) -> bool | None:
    """True if an element is translated by its name or attributes, False if it is not; None: as the one around it."""
    written = token.written.lower()
    if "translate" in written:
        for attribute, value in attributes(written):
            if attribute == "class" and kind == "html" and "notranslate" in value.split():
                return False
            if attribute == "translate" and value in {"no", "yes", ""}:
                return value != "no"
    return False if token.name in ignored else None


def _ignore(structure: Structure, translated: Mapping[int, bool]) -> None:
    """Find what is not translated: whole elements, and texts beside elements that are, which stay apart from them."""
    ends, index, divided, nearest = structure.ends, 0, set[int](), len(structure.tokens)
    states = [(nearest, True)]
    if all(translated.values()):
        return
    for start in sorted(ends, reverse=True):
        divided |= {start} if nearest < ends[start] else set()
        nearest = start if translated.get(start) else nearest
    while index < len(structure.tokens):
        while states[-1][0] < index:
            states.pop()
        token, state = structure.tokens[index], translated.get(index, states[-1][1])
        end = ends.get(index, index)
        if end > index and (state or index in divided):
            if state and not states[-1][1]:
                structure.separate[index] = structure.separate[end] = True
            states.append((end, state))
        elif end > index and not state:
            structure.ignored[index] = index = end
        elif not state and token.kind in _CONTENT:
            structure.ignored[index], structure.separate[index] = index, True
        index += 1


_CONTENT = frozenset({Kind.TEXT, Kind.CDATA, Kind.UNIT})


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


def separate_parents(structure: Structure) -> None:
    """Let elements around a token that separates sentences do so too."""
    separate, nearest = structure.separate, len(structure.tokens)  # the next token that separates them
    for index in range(nearest - 1, -1, -1):
        end = structure.ends.get(index, index)
        if index < end and nearest <= end:
            separate[index] = separate[end] = True
        nearest = index if separate[index] else nearest


def _xml_blocks(structure: Structure) -> set[int]:
    """Return the tags that have no text beside them, and neither have the elements around them."""
    tokens, ends, parents, stack = structure.tokens, structure.ends, list[int](), [-1]
    for index, token in enumerate(tokens):
        if token.kind is Kind.END and len(stack) > 1:
            stack.pop()
        parents.append(stack[-1])
        if token.kind is Kind.START:
            stack.append(index)
    texts = (one.kind is Kind.TEXT and bool(one.written.strip()) for one in tokens)
    mixed, blocks = set(compress(parents, texts)), set[int]()  # elements whose tags are inline, and others
    for index, parent in enumerate(parents):
        if parent in mixed:
            mixed.add(index)
        elif tokens[index].kind in {Kind.START, Kind.EMPTY}:
            blocks |= {index, ends.get(index, index)}
    return blocks
