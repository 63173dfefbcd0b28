"""Holes of texts: placeholders, addresses and other parts that are not language, found by one table of rules."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import Final, NamedTuple

from jumok_serve.tasks.stand_ins import Hole
from jumok_serve.text.messages import gaps, parse_message

__all__ = ["DEFAULT_KINDS", "KINDS", "Hole", "find_holes", "kinds_of_flag", "without"]

MAX_HOLE: Final = 2048
"""Most characters of a hole but of ICU's arguments: those of a long address. No rule looks further."""
_PIECE: Final = 2**12
"""Characters at which holes may begin in one search, which holds Python's lock: some milliseconds at worst."""

BIDI: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Marks of the direction of writing."""
HANGUL: Final = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Letters of scripts without spaces: Thai, Lao, Burmese, Khmer, kana, Han."""
_CONVERSION: Final = (
    r"(?:\d{1,3}+\$)?[-+#0'I,]{0,5}+(?:\d{1,9}+|\*(?:\d{1,3}+\$)?)?"
    r"(?:\.(?:\d{1,9}+|\*(?:\d{1,3}+\$)?)?)?(?:hh|h|ll|l|q|L|j|z|t)?"
)
_NAMES: Final = {
    # Letters, digits and `_` that may continue a hole: Korean, Japanese and Chinese add particles without a space.
    "W": rf"[^\W{UNSPACED}{HANGUL}]",
    "L": rf"[^\W\d_{UNSPACED}{HANGUL}]",
    "ENDING": "avi|bak|bat|bib|bmp|bz2|cc|cfg|class|cmd|conf|cpp|css|csv|dll|docx?|dtd|epub|exe|flac|gif|gz|hpp|html?"
    "|ini|iso|jar|java|jpe?g|jsonl?|js|jsx|kt|lock|log|md|mkv|mov|mp[34]|msi|odb|od[gpst]|og[gv]|otf|ot[gpst]|pdf|php"
    "|png|po|pot|pptx?|properties|ps1|py|rar|rb|rdf|rs|rst|rtf|scss|sh|sql|srt|svg|tar|tex|tgz|tiff?|toml|ts|tsv|tsx"
    "|ttf|txt|vtt|wasm|wav|webp|woff2?|xcu|xhtml|xlf|xliff|xlsx?|xml|xsd|xslt?|ya?ml|zip",
    "DATE": r"(?:\d{1,2}\.\d{1,2}\.(?:\d\d){1,2}|(?:1[89]|20)\d\d\.\d{1,2}\.\d{1,2})",
    "DOMAIN": "app|ch|cn|com|de|dev|edu|eu|fr|gov|info|io|jp|kr|net|nl|org|pl|ru|uk",
    "UNIT": "[KMGTP]i?B|[KMGTP]?bit/s|[kMG]?Hz|px|rem|fps|mAh|kWh?|[kcm]m|[kmµ]g|[mnµ]s|km/h|°[CF]",
    "FIXED": "[\u00a0\u202f]|&(?:nbsp|#160);",  # spaces at which no line is broken
    "GLUED": "em|pt|dpi|ppi|[mnµ]s|p|[mk]?[VWA]|dB|[ckmn]m",
    "MASK": r"\d{1,6}+|[A-Z](?:_?[A-Z\d]){0,40}",
    "TAG": "a|abbr|b|bdi|big|br|code|del|div|em|font|h[1-6]|hr|i|img|input|ins|kbd|li|mark|ol|p|q|s|samp|small|span"
    "|strong|sub|sup|tt|u|ul|var|wbr",
    "LINK": r"\]\((?:[^()\n]|\([^()\n]{0,100}+\)){1,500}\)",
    "BB": "b|center|code|color|i|img|list|quote|s|size|u|url",
    # ISO C's conversion up to its letter; without a space among the flags, and with one and with an argument's name.
    "CONVERSION": _CONVERSION,
    "STRICT": r"(?:\([^()\n]{1,100}+\))?" + _CONVERSION.replace("0'I,", "0'I, "),
    "SIZED": r"(?=[-+#0'I,]{0,5}+[\d.*])⟨CONVERSION⟩",
    "SUFFIX": "[kKMGT]?i?B|[mnµ]?s|m|min|h|x|px|st|nd|rd|th",
    "ATTRIBUTES": r"(?:\s{1,9}+[\w:.-]{1,60}+"
    r"(?:\s?=\s?(?:\"[^\"<>]{0,500}+\"|'[^'<>]{0,500}+'|[\w.:-]{1,60}+))?){0,10}",
    "LABEL": r"(?:[A-Za-z0-9-]{1,63}+|[⟨CJK⟩]{1,63}+)",
    "CJK": HANGUL + UNSPACED,
    "B": BIDI,
    "PARTICLE": "에(?:서[는도]?|[는도게])|으로|로부터|까지|부터|를|을|입니다|이며|라[는고]",
    # Letters of Korean, Japanese and Chinese between signs are a part of an address if no particle begins there.
    "PART": r"(?<=[/=_#-])(?!⟨PARTICLE⟩|[에의로와과도은는이가만](?![⟨CJK⟩])|[\u3041-\u309f])[⟨CJK⟩]{1,60}?"
    r"(?=(?:⟨PARTICLE⟩)?(?:[\s⟨B⟩/?#&_(),.;:!\"'<>%=-]|\Z))",
    "URL": r"(?:⟨W⟩|⟨PART⟩|[-.~:/?#@!$*+,;=%]|&(?!(?:[lg]t|quot|apos|nbsp|#\d{1,5});)"
    r"|\([^\s()<>]{0,200}+\)|\[[^\s\[\]<>]{0,100}+\]|\{[\w.]{1,60}+\}){1,1500}"
    r"(?<![.,;:!?*&])",
    "FILE": r"(?:Program Files(?: \(x86\))?|⟨W⟩|[+@%~-]|\.{1,3}(?=⟨W⟩|[/\\])"
    r"|[⟨CJK⟩](?=[⟨CJK⟩]{0,40}+(?:[/\\]|\.⟨W⟩))){1,120}",
}


class Rule(NamedTuple):
    """A rule of the table, which says before it where the syntax is stated.

    Attributes:
        kind: several rules may have one kind.
        needs: a regular expression; the rule counts in texts in which it is found.
        pattern: a regular expression that reads at most `MAX_HOLE` characters. `⟨W⟩` is an expression of `_NAMES`.
    """

    kind: str
    needs: str
    pattern: str


_BY_FLAG: Final = (
    # POSIX fprintf; Python's printf-style formatting; PHP sprintf; java.util.Formatter; NSString
    Rule(
        "printf",
        "%",
        r"%%|%⟨STRICT⟩<PRI\w{1,20}+>|%#@\w{1,60}+@|%<\w{1,60}+>⟨CONVERSION⟩[A-Za-z]"
        r"|%⟨STRICT⟩(?:[tT][A-Za-z]|[A-Za-z@])",
    ),
    # GCC's diagnostics
    Rule("gcc", "%", r"%[<>'%]|%[-+q#lw]{0,5}+[A-Za-z]"),
    # Delphi
    Rule("pascal", "%", r"%(?:\d{1,3}+:)?-?+\d{0,9}+(?:\.\d{1,9}+)?[A-Za-z]|%%"),
    # QString::arg, QObject::tr
    Rule("qt", "%", r"%%|%L?(?:\d{1,2}|n)"),
    # Boost.Format
    Rule("boost", "%", r"%\d{1,3}%|%\|[^|\s]{1,60}+\|"),
    # SRFI 28, Common Lisp format
    Rule("tilde", "~", r"~[\d,'@:]{0,20}+[A-Za-z%~&^*?]"),
)
"""Rules of grammars that only a flag of an entry can turn on."""

RULES: Final = (
    *_BY_FLAG,
    # XLIFF 1.2 and 2.1, inline elements; HTML, void elements
    Rule(
        "element",
        "<",
        r"<(?:[A-Za-z][\w:.-]{0,60}+⟨ATTRIBUTES⟩|\d{1,3}+)\s?/>|<([A-Za-z][\w:.-]{0,60}+|\d{1,3}+)⟨ATTRIBUTES⟩></\1>"
        r"|<[A-Za-z][\w:.-]{0,60}+(?=\s{1,9}+[\w:-]{1,60}+=[\"'])⟨ATTRIBUTES⟩>|<%[^%\n]{1,200}+%>"
        r"|(?:<(?i:alt|cmd|control|ctrl|meta|primary|shift|super)>\+?){1,4}(?:[A-Z0-9]⟨W⟩{0,11}|[a-z](?!⟨W⟩))?"
        r"|<!--(?:[^-]|-(?!->)){0,1000}-->|<(?i:br|hr|img|input|wbr)\b⟨ATTRIBUTES⟩>",
    ),
    # HTML; react-i18next, Trans
    Rule(
        "element",
        "</",
        r"</?(?:(?i:⟨TAG⟩)|[a-z]{1,20}+[-:]?\w{0,20}+|\d{1,3}+)⟨ATTRIBUTES⟩>",
    ),
    # BBCode; CommonMark, links and code spans; Foundation, automatic grammar agreement
    Rule(
        "element",
        r"\[/|\]\(|`",
        r"[!^]?\[(?=[^\[\]\n]{1,200}+⟨LINK⟩)|(?<=[^\[\s])⟨LINK⟩|\[/?(?i:⟨BB⟩)(?:=[^\[\]\s]{1,500}+)?\]"
        r"|(?<!`)`(?=\S)[^`'\n]{1,200}+`(?!`)",
    ),
    # Weblate's machinery; what callers of translation services write
    Rule(
        "mask",
        r"[X\d_A-Z]\]|_|XX|⟧|>>|##|@@|\?>",
        r"\[X\d{1,6}+X\]|⟦\d{1,6}+⟧|(?<!\w)__?[A-Z]{1,20}+_?\d{1,6}+__?(?!⟨W⟩)|(?<!⟨W⟩)XX[A-Z]{0,10}?\d{1,6}+XX(?!⟨W⟩)"
        r"|\[\[(?:⟨MASK⟩)\]\]|<<(?:⟨MASK⟩|[a-z]⟨W⟩{0,40}+)>>|##(?:⟨MASK⟩)##|@@(?:⟨MASK⟩)@@|(?<!\w)__(?:⟨MASK⟩)__(?!⟨W⟩)"
        r"|\[(?:[A-Z]{1,20}+(?:_[A-Z\d]{1,20}+){1,4}|[A-Z]{1,10}+\d{1,6}+)\]|(?<![\w$%])[A-Z]{2,20}+_\d{1,6}+(?!⟨W⟩)"
        r"|<\?[^<>?\n]{1,500}+\?>",
    ),
    # mustache(5); Handlebars, Jinja, Django and Angular templates; i18next
    Rule(
        "double_braces",
        r"\{[{%#]",
        r"\{\{\{[^{}\n]{1,200}+\}\}\}|\{\{[^{}\n]{1,200}+\}\}|\{%[^{}%\n]{1,200}+%\}"
        r"|\{#\s[^{}#\n]{1,200}+#\}",
    ),
    # i18next, nesting; Vue I18n, linked messages
    Rule(
        "reference",
        r"\$t\(|@[.:]",
        r"\$t\([^()\n]{1,200}+\)|(?<!⟨W⟩)@(?:\.[a-z]{1,20}+)?:(?:\([\w.-]{1,100}+\)|\{[^{}\s]{1,100}+\}|⟨W⟩{1,60}+(?:[.-]⟨W⟩{1,60}+){0,8})",
    ),
    # RFC 1034, names
    Rule(
        "url",
        r"\.(?:⟨DOMAIN⟩)(?!⟨W⟩)|localhost:",
        r"(?<![\w.@/-])(?:[a-z0-9-]{1,63}+\.){1,5}(?<![.-]\.)(?:⟨DOMAIN⟩)(?!⟨W⟩|-)(?!\.⟨W⟩)(?::\d{1,5}+)?(?:/⟨URL⟩|/)?"
        r"|(?<![\w.@/-])localhost:\d{1,5}+(?:/⟨URL⟩|/)?",
    ),
    # POSIX, pathnames; Windows, naming files
    Rule(
        "path",
        r"[/\\]",
        r"(?:(?<![\w./:$%}<-])(?:~|\.\.?)|(?<![\w$])\$(?:\{?[A-Za-z_]⟨W⟩{0,60}+\}?|\([^()\s]{1,60}+\))(?=/)|(?<!\w)%⟨W⟩{2,60}+%|(?<![\w{])[{<]⟨W⟩{1,60}+[}>])"
        r"(?:[/\\]⟨FILE⟩){1,40}[/\\]?"
        r"|(?<![\w./:~<%})-])(?:(?:/⟨FILE⟩){2,40}/?|/(?:bin|boot|dev|etc|home|lib|mnt|opt|proc|root|run|srv|sys"
        r"|tmp|usr|var)(?!⟨W⟩)/?)"
        r"|(?<!\w)[A-Za-z]:[\\/](?:⟨FILE⟩(?:[\\/]⟨FILE⟩){0,40}[\\/]?)?"
        r"|(?<!\\)\\\\⟨FILE⟩(?:\\⟨FILE⟩){1,40}",
    ),
    # common endings of files
    Rule(
        "path",
        r"\.(?:⟨ENDING⟩)(?!⟨W⟩)",
        r"(?:(?<![%\d])%(?:\d\$|\(\w{1,60}+\))?[s@]/|(?<![\w./@\\-]))(?:(?:⟨W⟩|[.*-]){1,60}/){0,9}(?:⟨W⟩|[*-])(?:(?:⟨W⟩|[*-]){0,60}\.){1,5}(?:⟨ENDING⟩)(?!⟨W⟩)",
    ),
    # GNU, argument syntax
    Rule(
        "option",
        r"--|(?<![^\W_])-[A-Za-z](?!⟨W⟩)",
        r"(?:(?<=[\w,:] )|(?<=[`'\"(\[|⟨B⟩]))-[A-Za-z](?!⟨W⟩|-)|(?m:^|(?<=\s\s))-(?:[a-z](?!⟨W⟩|-)|[A-Z](?=,? --|$))"
        r"|(?<![\w-])--[a-z][a-z0-9]{0,30}+(?:-[a-z0-9]{1,30}+){0,8}(?:=(?:[a-z0-9./~:]{1,200}(?<![.:])|[A-Z][A-Z0-9_]{0,60}+))?(?![A-Za-z0-9_])",
    ),
    # Python's str.format; java.text.MessageFormat; C#; Ruby; shell; JavaScript's template literals; Fluent
    Rule(
        "braces",
        r"\{",
        r"[$#%@]\{(?:[^{}\n]|\{[^{}\n]{0,100}+\}){1,300}\}"
        r"|\{\s?(?:[A-Z]{2,20}+\([^(){}\n]{1,100}+\)|\"[^\"{}\n]{0,60}+\")\s?\}|\{(?!=)(?:[^{}\s]{0,100}+(?:\{[^{}\s]{0,50}+\}[^{}\s]{0,50}+){0,3}|\s?+[$-]?⟨W⟩[\w.-]{0,100}+\s?+"
        r"|[@#/:][a-z]{1,20}+\s[^{}\n]{1,100}+|[\w.]{0,60}+:(?!\s)[^{}\n]{1,100}+|[\w.]{1,60}+,\s?+\w{1,20}+(?:,\s?+(?:[^{}\n]|\{[^{}\n]{0,100}+\}){1,300})?)\}",
    ),
    # POSIX fprintf; Python's printf-style formatting; PHP sprintf; java.util.Formatter; strftime; Drupal; Windows
    Rule(
        "percent",
        "%",
        r"%%⟨W⟩{1,60}+%%(?!⟨W⟩)|%%|(?:(?<=\})|(?<=%[1-9dfsu@])|(?<=\$[dfsu@]))%(?![\w{(])|(?<!\w)0[xX](?=%)|%(?:\d{1,3}+\$)?#@\w{1,60}+@|%\([^()\n]{1,100}+\)⟨CONVERSION⟩[A-Za-z]|%<\w{1,60}+>⟨CONVERSION⟩[A-Za-z]"
        r"|%[-+#0]{0,5}+\d{0,9}+<PRI\w{1,20}+>|(?:(?<!\d)|(?<=\b0))%(?:⟨CONVERSION⟩[A-Za-z@](?!⟨W⟩)|⟨SIZED⟩[A-Za-z@]|(?:hh?|ll?|z)?[dsuiX](?=⟨SUFFIX⟩(?!⟨W⟩)|[A-Z][a-z]))"
        r"|(?<!\d)(?<!\d[ \u00a0\u202f])%(?!L\d)[A-Za-z]⟨W⟩{1,60}+(?:%(?!⟨W⟩))?",
    ),
    # QString::arg; LibreOffice
    Rule("variable", r"%L?[12](?!\d)", r"(?<!\d)(?<!\d )%L?[1-9](?!\d|⟨W⟩|\$)"),
    # MediaWiki, Chrome, Perl
    Rule(
        "variable",
        r"(?<!\w)\$[12](?!⟨W⟩|[.,]\d)",
        r"(?<![\w$])\$[0-9](?!⟨W⟩|[.,]?\d)(?!\s?(?:[mb]illion|[km]\b))",
    ),
    # shell, PHP, Perl; LibreOffice; Chrome, i18n
    Rule(
        "variable",
        r"\$",
        r"(?<![\w$])\$(?:[A-Z]{1,3}\$\d{1,7}+|\([^()\s]{1,60}+\)|\[\w{1,60}+\]|[A-Za-z_](?:⟨W⟩|@(?=[\w@]{1,60}\$)){0,60}\$?)",
    ),
    # Laravel, localization; shortcodes of emoji
    Rule(
        "variable",
        r":|\[\d{1,9},",
        r"(?<![^\s(\"'\[>/|#⟨B⟩]):(?:(?:[A-Za-z][a-z0-9_]{1,40}+|[A-Z][A-Z0-9_]{2,40}+):?|\+1:|-1:)(?!⟨W⟩|:)"
        r"|\[\d{1,9},\s?(?:\d{1,9}|\*|Inf)[\[\]]",
    ),
    # HTML, character references; XML 1.0, 4.1; Unicode, 23.2, marks of direction
    Rule(
        "entity",
        "[&⟨B⟩]",
        r"&lt;/?(?i:⟨TAG⟩)&gt;|&(?:#\d{1,7}+|#[xX][0-9A-Fa-f]{1,6}+|[A-Za-z][\w.-]{1,31}+);|[⟨B⟩]",
    ),
    # RFC 3986
    Rule(
        "url",
        r"://|www\.|(?:mailto|tel|data|magnet|urn|doi):",
        r"(?:(?<!⟨L⟩)[A-Za-z][A-Za-z0-9+.-]{1,20}+://(?:⟨LABEL⟩\.){0,8}|(?<![\w.])(?:www\.(?=\w)|(?:mailto|tel|data|magnet|urn|doi):(?=\w|[+?])))⟨URL⟩",
    ),
    # RFC 5322, 3.4.1
    Rule(
        "email",
        "@",
        r"(?:(?<![A-Za-z0-9_.+-])[A-Za-z0-9_+-](?:[A-Za-z0-9_.+-]|[%'](?=\w)){0,63}|(?<![\w.+-])[⟨CJK⟩]{1,64}+)@(?:⟨LABEL⟩\.){1,8}(?:[A-Za-z][A-Za-z0-9-]{0,61}[A-Za-z0-9]|[⟨CJK⟩]{2,9})(?::[\w./~-]{1,200}\.git(?!⟨W⟩))?",
    ),
    # Mastodon, GitHub, npm
    Rule(
        "mention",
        "@",
        r"(?<![\w@.{])@(?=[\d_]{0,20}⟨L⟩)⟨W⟩{1,64}+(?:[-.]⟨W⟩{1,64}+){0,8}(?:[@/]⟨W⟩{1,64}+(?:[-.]⟨W⟩{1,64}+){0,8}(?:@\d⟨W⟩{0,9}(?:[-.]⟨W⟩{1,20}+){0,8})?)?",
    ),
    # what services take for hashtags; CSS colours
    Rule(
        "hashtag",
        "#",
        r"(?<![\w&/#@?=.])#(?!(?:DIV|NAME|NULL|NUM|REF|VALUE)[!?/])(?:[0-9A-Fa-f]{6}(?:[0-9A-Fa-f]{2})?|(?=\d{0,2}[A-Fa-f])[0-9A-Fa-f]{3}|(?!\d{1,4}+(?:st|nd|rd|th)\b)\d{0,4}+[A-Za-z_]⟨W⟩{1,99}+|[⟨CJK⟩]\w{1,99}+)(?!⟨W⟩)",
    ),
    # Semantic Versioning; PEP 440; RFC 9562, UUIDs
    Rule(
        "version",
        r"\d\.\d|v\d|-[0-9A-Fa-f]{12}",
        r"(?<!\w)[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?!⟨W⟩)|"
        r"(?<![\w.,])(?:[vV](?:\d{1,9}+\.){0,4}\d{1,9}+|(?!⟨DATE⟩(?!\.?\d))(?!\d{1,3}(?:\.\d{3}){2,9}(?!\.?\d))(?:\d{1,9}+\.){2,4}\d{1,9}+)"
        r"(?:[-+](?:⟨W⟩|[.+-]){0,30}⟨W⟩|(?:a|b|rc)\d{1,3}|/\d{1,3})?(?!⟨W⟩|[.,]\d)",
    ),
    # IEC 80000-13; CSS
    Rule(
        "unit",
        r"[\d}dfsug@](?:(?: |⟨FIXED⟩)?(?:⟨UNIT⟩)|(?:⟨GLUED⟩))|\d(?:⟨FIXED⟩|[x\u00d7]\d)",
        r"(?<![\w.,])(?:\d{1,9}+(?:[ \u00a0]?(?:⟨UNIT⟩)|(?:\.\d{1,3}+)?(?:⟨UNIT⟩|⟨GLUED⟩))|\d{3,5}+[x\u00d7]\d{3,5}+"
        r"|\d{1,9}+(?:[.,]\d{1,9}+|(?:⟨FIXED⟩)\d{3}(?!\d)){0,5}(?:⟨FIXED⟩)(?:[%€$£¥₩°]|(?:⟨UNIT⟩|⟨GLUED⟩)(?!⟨W⟩))"
        r"|\d{1,3}(?:(?:⟨FIXED⟩)\d{3}(?!\d)){1,5})(?!⟨W⟩)"
        r"|(?:(?<=\})|(?<=[%$][dfsug@])|(?<=\.\df))(?: |⟨FIXED⟩)?(?:⟨UNIT⟩)(?!⟨W⟩)",
    ),
    # C, JSON, LaTeX
    Rule(
        "escape",
        r"\\",
        r"\\(?:[nrt](?![a-z])|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[\"\\]|[A-Za-z]{1,30}+)",
    ),
)
"""The rules, in the order in which they are tried at each place."""

KINDS: Final = frozenset(rule.kind for rule in RULES) | {"icu"}
"""Kinds of holes; `icu` are plural and select arguments, see `messages`."""
DEFAULT_KINDS: Final = KINDS - {rule.kind for rule in _BY_FLAG}

_FLAGS: Final = {
    "": "c++ c-sharp csharp es i18next icu-message java perl-brace python-brace rust sh vue",
    "boost": "boost",
    "gcc": "gcc-internal gfc-internal",
    "pascal": "object-pascal",
    "qt": "kde kde-kuit qt qt-plural smalltalk ycp",
    "tilde": "lisp scheme",
}
"""Flags of a catalogue by kind, without `-format`: those that default kinds suit, and others than those of printf."""
_ANY: Final = re.compile(rf"[%{{<\[⟦$@/\\&#_~`{BIDI}]|XX|--|[.:][\w+-]|\d[ \u00a0\u202f\w]|[vV]\d|(?<!\w)-[A-Za-z]")
"""Found in every text with a hole; most texts are done after this search."""


def find_holes(text: str, kinds: Collection[str] = DEFAULT_KINDS) -> list[Hole]:
    """Return the holes of a text, in their order; they share no character.

    The first to begin counts, and of those of one place the first of the table.
    """
    message = parse_message(text) if "icu" in kinds else None
    arguments = [hole for hole in message.branches[0].holes if hole.kind == "icu"] if message else []
    return _around(arguments, text, kinds, 0, len(text))


def _around(known: Sequence[Hole], text: str, kinds: Collection[str], position: int, after: int) -> list[Hole]:
    """Return holes that are known in a part of a text, and those that rules find between them."""
    rules = list[Rule]()
    if _next(_ANY, text, position, after):
        rules += (rule for rule in RULES if rule.kind in kinds and _next(compiled(rule.needs), text, position, after))
    holes = list[Hole]()
    for hole in known:
        holes += (*_find(text, rules, position, hole.first), hole)
        position = hole.after
    holes += _find(text, rules, position, after)
    return holes


def _find(text: str, rules: Sequence[Rule], position: int, after: int) -> Iterator[Hole]:
    """Yield the holes of rules in a part of a text."""
    left = [(position, number, position) for number in range(len(rules))]  # the next hole of each rule
    while left:
        first, number, end = heappop(left)
        rule = rules[number]
        if position <= first < end:
            yield Hole(first, end, rule.kind)
            position = end
        if found := _next(compiled(rule.pattern), text, position, after):
            heappush(left, (found.start(), number, found.end()))


def _next(pattern: re.Pattern[str], text: str, position: int, after: int) -> re.Match[str] | None:
    """Return the next match; looks at a piece of a text at a time, as a search holds Python's lock."""
    while position < after:
        last = position + _PIECE
        found = pattern.search(text, position, min(last + MAX_HOLE, after))
        if found is not None and found.start() < last:
            return found
        position = last
    return None


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile an expression of the table."""
    while "⟨" in pattern:
        pattern = re.sub("⟨([A-Z]+)⟩", lambda name: _NAMES[name[1]], pattern)
    return re.compile(pattern)


def without(text: str, places: Iterable[tuple[int, int]]) -> str:
    """Return a text with spaces in place of some parts, which are in their order."""
    return " ".join(text[first:after] for first, after in gaps(places, 0, len(text)))


def kinds_of_flag(flag: str) -> frozenset[str]:
    """Return the kinds of holes in a catalogue's entry with a flag; none if the flag says nothing about them.

    With `c-format` and others the grammar of the language decides, and with `no-c-format` no percent sign begins a
    hole. The kinds of an entry are those of all its flags, or the default ones.
    """
    name, is_format, rest = flag.strip().partition("-format")
    if not is_format or rest:
        return frozenset()
    if name.startswith("no-"):
        return DEFAULT_KINDS - {"percent"}
    kind = next((kind for kind, names in _FLAGS.items() if name in names.split()), "printf")
    if not kind:
        return DEFAULT_KINDS
    return DEFAULT_KINDS - {"percent"} | ({kind, "printf"} if kind in {"boost", "gcc"} else {kind})
