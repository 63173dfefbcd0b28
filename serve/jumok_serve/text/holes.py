"""Holes of texts: placeholders, addresses and other parts that are not language, found by one table of rules."""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final, NamedTuple

from jumok_serve.text.messages import Hole, parse_message

__all__ = ["DEFAULT_KINDS", "KINDS", "MAX_HOLE", "Hole", "find_holes", "kinds_of_flag"]

MAX_HOLE: Final = 2048
"""Most characters of a hole but of ICU's arguments: those of a long address. No rule looks further."""
_PIECE: Final = 2**13
"""Characters at which holes may begin in one search, which holds Python's lock: some milliseconds at worst."""

HANGUL: Final = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Letters of scripts without spaces: Thai, Lao, Burmese, Khmer, kana, Han."""
_W: Final = rf"[^\W{UNSPACED}{HANGUL}]"
"""A letter, digit or `_` that may continue a placeholder: Korean, Japanese and Chinese add particles without a space."""
_L: Final = rf"[^\W\d_{UNSPACED}{HANGUL}]"
_NO_W: Final = rf"(?!{_W})"
_NOT_AFTER_W: Final = rf"(?<!{_W})"


class Rule(NamedTuple):
    """A rule of the table.

    Attributes:
        kind: several rules may have one kind.
        needs: each hole has one of these texts.
        pattern: a regular expression that reads at most `MAX_HOLE` characters.
        examples: texts that are one hole.
        counter_examples: texts without a hole of the kind.
        source: where the rule is stated.
    """

    kind: str
    needs: tuple[str, ...]
    pattern: str
    examples: tuple[str, ...]
    counter_examples: tuple[str, ...]
    source: str


_PRINTF: Final = (
    r"%(?:\([^()\n]{{1,100}}+\)|\d{{1,3}}+\$)?+[-+#0'I,{space}]{{0,5}}+(?:\d{{1,9}}+|\*(?:\d{{1,3}}+\$)?+)?+"
    r"(?:\.(?:\d{{0,9}}+|\*(?:\d{{1,3}}+\$)?+))?+(?:hh|h|ll|l|q|L|j|z|t)?+[{letters}]"
)
_BALANCED: Final = rf"[\w\-.~:/?#@!$&*+,;=%]"
_URL_END: Final = r"(?<![.,;:!?*&])"

RULES: Final = (
    Rule(
        "element",
        ("/>", "</", "<"),
        r"<(?:[A-Za-z][\w:.-]{0,60}+(?:\s++[\w:.-]{1,60}+(?:=(?:\"[^\"<>]{0,500}+\"|'[^'<>]{0,500}+'))?+){0,10}+|\d{1,3}+)\s{0,3}+/>",
        ('<x id="1"/>', "<0/>", "<br/>", "<br />"),
        ("a < b", "1 </ 2", "<"),
        "XLIFF 1.2, 2.3: inline elements; DeepL's tag_handling",
    ),
    Rule(
        "double_braces",
        ("{{", "{%"),
        r"\{\{\{[^{}\n]{1,200}+\}\}\}|\{\{[^{}\n]{1,200}+\}\}|\{%[^{}%\n]{1,200}+%\}",
        ("{{ name }}", "{{{raw}}}", "{{#if x}}", "{{/if}}", "{% url 'home' %}", "{{count, number}}"),
        ("{{}}", "{{ a"),
        "mustache(5); Handlebars, Jinja and Angular templates",
    ),
    Rule(
        "braces",
        ("{",),
        r"[$#%@]\{(?:[^{}\n]|\{[^{}\n]{0,100}+\}){0,200}+\}"
        r"|\{(?:[^{}\s]{0,100}+|\s?+[$-]?[\w.]{1,100}+\s?+|[\w.]{1,60}+,\s?+\w{1,20}+(?:,\s?+[^{}\n]{1,100}+)?+)\}",
        ("{}", "{0}", "{name}", "${x}", "#{x}", "%{name}", "{user.name!r:>10}", "{0,number}", "{d, date, short}"),
        ("{ not this one }", "{ a b", "{"),
        "Python's format strings; java.text.MessageFormat; C#; Ruby; template literals",
    ),
    Rule(
        "percent",
        ("%",),
        rf"%%|(?<!\d){_PRINTF.format(space='', letters='A-Za-z@')}{_NO_W}",
        ("%s", "%d", "%(count)d", "%1$s", "%.2f", "%-5s", "%ld", "%@", "%1$@", "%lld", "%%", "%n"),
        ("100% sure", "5 %", "100%sure", "5% a", "50% e", "50 % d'accord", "100%."),
        "ISO C 7.21.6.1; Python's printf-style formatting; PHP sprintf; java.util.Formatter",
    ),
    Rule(
        "url",
        ("://", "www."),
        rf"(?:(?<!{_L})[A-Za-z][A-Za-z0-9+.-]{{1,20}}+://|(?<!{_W})www\.)"
        rf"(?:[^\W{UNSPACED}{HANGUL}]|[-.~:/?#@!$&*+,;=%]|\([^\s()<>]{{0,200}}+\)|\[[^\s\[\]<>]{{0,100}}+\]|\{{[\w.]{{1,60}}+\}}){{1,1500}}{_URL_END}",
        (
            "https://example.org/a?b=c(d)",
            "http://example.org",
            "www.example.org",
            "https://en.wikipedia.org/wiki/A_(b)",
        ),
        ("http", "://"),
        "RFC 3986",
    ),
    Rule(
        "email",
        ("@",),
        rf"(?<![A-Za-z0-9_.+-])[A-Za-z0-9_.+-]{{1,64}}+@(?:[A-Za-z0-9-]{{1,63}}+\.){{1,8}}[A-Za-z][A-Za-z0-9-]{{1,62}}+",
        ("anna@example.org", "a.b+c@example.co.uk"),
        ("a@b", "@anna"),
        "RFC 5322, 3.4.1",
    ),
    Rule(
        "mention",
        ("@",),
        rf"(?<![\w@.])@{_W}{{1,64}}+(?:[-.]{_W}{{1,64}}+){{0,8}}+(?:[@/]{_W}{{1,64}}+(?:[-.]{_W}{{1,64}}+){{0,8}}+)?+",
        ("@anna", "@user@host", "@user@example.org", "@scope/pkg", "@a-b"),
        ("x@y", "@ home", "@"),
        "Mastodon, GitHub, npm",
    ),
)
"""The rules, in the order in which they are tried at each place."""

KINDS: Final = frozenset(rule.kind for rule in RULES) | {"icu"}
"""Kinds of holes; `icu` are plural and select arguments, see `messages`."""
DEFAULT_KINDS: Final = KINDS


def find_holes(text: str, kinds: Collection[str] = DEFAULT_KINDS) -> list[Hole]:
    """Return the holes of a text, in their order; they share no character."""
    holes, position = list[Hole](), 0
    rules = tuple(rule for rule in RULES if rule.kind in kinds and any(part in text for part in rule.needs))
    pattern = _pattern(rules) if rules else None
    message = parse_message(text) if "icu" in kinds else None
    arguments = [hole for hole in message.branches[0].holes if hole.kind == "icu"] if message else []
    for argument in (*arguments, Hole(len(text), len(text), "")):
        while pattern and position < argument.first:
            after = min(position + _PIECE, argument.first)
            found = pattern.search(text, position, min(after + MAX_HOLE, argument.first))
            if found is not None and found.start() < after:
                kind = rules[int(found.lastgroup.removeprefix("_")) if found.lastgroup else 0].kind
                holes.append(Hole(*found.span(), kind))
                position = found.end()
            else:
                position = after
        holes += [argument] if argument.kind else []
        position = argument.after
    return holes


@lru_cache(maxsize=256)
def _pattern(rules: tuple[Rule, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<_{number}>{rule.pattern})" for number, rule in enumerate(rules)))


def kinds_of_flag(flag: str) -> frozenset[str]:
    """Return the kinds of a catalogue's entry with a flag such as `c-format`; none for flags that say nothing."""
    return DEFAULT_KINDS if flag.endswith("-format") else frozenset()
