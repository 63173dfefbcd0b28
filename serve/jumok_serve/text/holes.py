"""Holes of texts: placeholders, addresses and other parts that are not language, found by one table of rules."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import chain
from typing import Final, NamedTuple

from jumok_serve.tasks.stand_ins import Hole
from jumok_serve.text.messages import Branch, Message, parse_message

__all__ = ["DEFAULT_KINDS", "KINDS", "Hole", "branch_holes", "find_holes", "kinds_of_flag", "without"]

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
    "UNIT": "[KMGTP]i?B|[KMGTP]?bit/s|[kMG]?Hz|px|rem|fps|mAh|kWh?",
    "GLUED": "em|pt|dpi|ppi|[mnµ]s|p|[mk]?[VWA]|dB|[ckmn]m",
    "TAG": "a|abbr|b|bdi|big|br|code|del|div|em|font|h[1-6]|hr|i|img|input|ins|kbd|li|mark|ol|p|q|s|samp|small|span"
    "|strong|sub|sup|tt|u|ul|var|wbr",
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
        examples: texts that are one hole, separated by two spaces.
        counter_examples: texts without a hole of the kind, separated by two spaces.
    """

    kind: str
    needs: str
    pattern: str
    examples: str
    counter_examples: str


_BY_FLAG: Final = (
    # POSIX fprintf; Python's printf-style formatting; PHP sprintf; java.util.Formatter; NSString
    Rule(
        "printf",
        "%",
        r"%%|%⟨STRICT⟩<PRI\w{1,20}+>|%#@\w{1,60}+@|%<\w{1,60}+>⟨CONVERSION⟩[A-Za-z]"
        r"|%⟨STRICT⟩(?:[tT][A-Za-z]|[A-Za-z@])",
        "%s  % d  %5.2f  %(count)d  %1$s  %1$tY  %<PRIuMAX>  %*d  %-*.*f  %@  %%  %n",
        "5 %  100%.",
    ),
    # GCC's diagnostics
    Rule("gcc", "%", r"%[<>'%]|%[-+q#lw]{0,5}+[A-Za-z]", "%qs  %<  %>  %+D  %qD  %%", "5 %"),
    # Delphi
    Rule("pascal", "%", r"%(?:\d{1,3}+:)?-?+\d{0,9}+(?:\.\d{1,9}+)?[A-Za-z]|%%", "%0:s  %s  %.2f  %%", "5 %"),
    # QString::arg, QObject::tr
    Rule("qt", "%", r"%%|%L?(?:\d{1,2}|n)", "%1  %L1  %n  %Ln  %12", "5 %  % n"),
    # Boost.Format
    Rule("boost", "%", r"%\d{1,3}%|%\|[^|\s]{1,60}+\|", "%1%  %|1$+5|", "5%"),
    # SRFI 28, Common Lisp format
    Rule("tilde", "~", r"~[\d,'@:]{0,20}+[A-Za-z%~&^*?]", "~a  ~s  ~10,2f  ~%  ~~  ~:d", "~ 5"),
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
        """<x id="1"/>  <0/>  <br/>  <br />  <g id='a' b="c"/>  <br>  <img src="a.png" alt="a">"""
        """  <x id="0"></x>  <x id="1">  <%= name %>  <!-- a -->  <Ctrl>+<Shift>S  <alt>F4""",
        "a < b  1 </ 2  <  <b>  <file>  <x",
    ),
    # HTML; react-i18next, Trans
    Rule(
        "element",
        "</",
        r"</?(?:(?i:⟨TAG⟩)|[a-z]{1,20}+[-:]?\w{0,20}+|\d{1,3}+)⟨ATTRIBUTES⟩>",
        "</b>  </0>  </link>",
        "a </ b  <b>",
    ),
    # BBCode
    Rule("element", r"\[/", r"\[/?(?i:⟨BB⟩)(?:=[^\[\]\s]{1,500}+)?\]", "[/b]  [/url]", "a[b]  [b]"),
    # Weblate's machinery; what callers of translation services write
    Rule(
        "mask",
        r"X\]|_|XX|⟧",
        r"\[X\d{1,6}+X\]|⟦\d{1,6}+⟧|(?<!\w)__?[A-Z]{1,20}+_?\d{1,6}+__?(?!⟨W⟩)|(?<!⟨W⟩)XX\d{1,6}+XX(?!⟨W⟩)",
        "[X0X]  [X12X]  ⟦1⟧  __PH_0__  XX0XX",
        "[X]  __init__  XXL",
    ),
    # mustache(5); Handlebars, Jinja, Django and Angular templates; i18next
    Rule(
        "double_braces",
        r"\{[{%#]",
        r"\{\{\{[^{}\n]{1,200}+\}\}\}|\{\{[^{}\n]{1,200}+\}\}|\{%[^{}%\n]{1,200}+%\}"
        r"|\{#\s[^{}#\n]{1,200}+#\}",
        "{{ name }}  {{{raw}}}  {{#if x}}  {{/if}}  {% url 'home' %}  {# note #}  {{count, number}}  {{ a|b:\"c\" }}",
        "{{}}  {{ a  {a}",
    ),
    # i18next, nesting; Vue I18n, linked messages
    Rule(
        "reference",
        r"\$t\(|@[.:]",
        r"\$t\([^()\n]{1,200}+\)|(?<!⟨W⟩)@(?:\.[a-z]{1,20}+)?:(?:\([\w.-]{1,100}+\)|\{[^{}\s]{1,100}+\}|⟨W⟩{1,60}+(?:[.-]⟨W⟩{1,60}+){0,8})",
        "$t(key)  $t(common:key, {\"count\": 1})  @:message.hello  @.lower:message.hello  @:(message.hello)  @:{'a.b'}",
        "t(key)  a@:b  @ :",
    ),
    # RFC 1034, names
    Rule(
        "url",
        r"\.(?:⟨DOMAIN⟩)(?!⟨W⟩)",
        r"(?<![\w.@/-])(?:[a-z0-9-]{1,63}+\.){1,5}(?<![.-]\.)(?:⟨DOMAIN⟩)(?!⟨W⟩|-)(?!\.⟨W⟩)(?::\d{1,5}+)?(?:/⟨URL⟩|/)?",
        "example.org  docs.example.com/a/b  a.co.uk  example.org/  example.org:8080",
        "a.b  e.g.  end.Der  Node.js  x@example.org",
    ),
    # POSIX, pathnames; Windows, naming files
    Rule(
        "path",
        r"[/\\]",
        r"(?:(?<![\w./:$%}<-])(?:~|\.\.?)|(?<![\w$])\$\{?[A-Za-z_]⟨W⟩{0,60}+\}?(?=/)|(?<!\w)%⟨W⟩{2,60}+%|(?<![\w{])[{<]⟨W⟩{1,60}+[}>])"
        r"(?:[/\\]⟨FILE⟩){1,40}[/\\]?"
        r"|(?<![\w./:~<%})-])(?:(?:/⟨FILE⟩){2,40}/?|/(?:bin|boot|dev|etc|home|lib|mnt|opt|proc|root|run|srv|sys"
        r"|tmp|usr|var)(?!⟨W⟩)/?)"
        r"|(?<!\w)[A-Za-z]:[\\/](?:⟨FILE⟩(?:[\\/]⟨FILE⟩){0,40}[\\/]?)?"
        r"|(?<!\\)\\\\⟨FILE⟩(?:\\⟨FILE⟩){1,40}",
        r"/etc/hosts  ~/x  ./a/b.py  ../a  C:\Users  C:\Users\a.txt  C:/x  /usr/share/"
        r"  /tmp  \\server\share  $HOME/.config"
        r"  %APPDATA%\LibreOffice\4"
        r"  C:\Program Files (x86)\a.exe  {installation}/program  <User>/Scripts  C:\Users\이름\a.txt",
        "and/or  1/2  km/h  he/she  TCP/IP  /  a / b  /s  24/7  a: /b",
    ),
    # common endings of files
    Rule(
        "path",
        r"\.(?:⟨ENDING⟩)(?!⟨W⟩)",
        r"(?:(?<![%\d])%(?:\d\$|\(\w{1,60}+\))?[s@]/|(?<![\w./@\\-]))(?:(?:⟨W⟩|[.*-]){1,60}/){0,9}(?:⟨W⟩|[*-])(?:(?:⟨W⟩|[*-]){0,60}\.){1,5}(?:⟨ENDING⟩)(?!⟨W⟩)",
        "b.py  README.md  *.docx  docs/index.html  config.toml  archive.tar.gz  %s/a.py  %1$s/b/a.csv  %(dir)s/a.txt",
        "end.The  e.g. this  a.b  %s/month",
    ),
    # GNU, argument syntax
    Rule(
        "option",
        r"--|(?<![^\W_])-[A-Za-z](?!⟨W⟩)",
        r"(?:(?<=[\w,:] )|(?<=[`'\"(\[|⟨B⟩]))-[A-Za-z](?!⟨W⟩|-)|(?m:^|(?<=\s\s))-(?:[a-z](?!⟨W⟩|-)|[A-Z](?=,? --|$))"
        r"|(?<![\w-])--[a-z][a-z0-9]{0,30}+(?:-[a-z0-9]{1,30}+){0,8}(?:=(?:[a-z0-9./~:]{1,200}(?<![.:])|[A-Z][A-Z0-9_]{0,60}+))?(?![A-Za-z0-9_])",
        "--long-option  --verbose  --output=a/b.txt  --output=FILE  -v",
        "a--b  -- a  ---  --A  -I see  Yes. -I see  -in  a-b  x - y  -in",
    ),
    # Python's str.format; java.text.MessageFormat; C#; Ruby; shell; JavaScript's template literals; Fluent
    Rule(
        "braces",
        r"\{",
        r"[$#%@]\{(?:[^{}\n]|\{[^{}\n]{0,100}+\}){1,300}\}"
        r"|\{(?!=)(?:[^{}\s]{0,100}+(?:\{[^{}\s]{0,50}+\}[^{}\s]{0,50}+){0,3}|\s?+[$-]?⟨W⟩[\w.-]{0,100}+\s?+"
        r"|[@#/:][a-z]{1,20}+\s[^{}\n]{1,100}+|[\w.]{0,60}+:(?!\s)[^{}\n]{1,100}+|[\w.]{1,60}+,\s?+\w{1,20}+(?:,\s?+(?:[^{}\n]|\{[^{}\n]{0,100}+\}){1,300})?)\}",
        "{}  {0}  {name}  { name }  ${x}  #{x}  %{name}  ${a ? b : c}  {user.name!r:>10}  {:{width}}  {0,number}"
        "  {d, date, short}  {0:yyyy MM}  { $user }  { -brand }  {0,choice,0#no|1#{1} one}  {@html x}  {#if a > b}",
        "{ not this one }  { a b  {  }  {=SUM(A1)}",
    ),
    # POSIX fprintf; Python's printf-style formatting; PHP sprintf; java.util.Formatter; strftime; Drupal; Windows
    Rule(
        "percent",
        "%",
        r"%%⟨W⟩{1,60}+%%(?!⟨W⟩)|%%|%(?:\d{1,3}+\$)?#@\w{1,60}+@|%\([^()\n]{1,100}+\)⟨CONVERSION⟩[A-Za-z]|%<\w{1,60}+>⟨CONVERSION⟩[A-Za-z]"
        r"|%[-+#0]{0,5}+\d{0,9}+<PRI\w{1,20}+>|(?:(?<!\d)|(?<=\b0))%(?:⟨CONVERSION⟩[A-Za-z@](?!⟨W⟩)|⟨SIZED⟩[A-Za-z@]|(?:hh?|ll?|z)?[dsuiX](?=⟨SUFFIX⟩(?!⟨W⟩)|[A-Z][a-z]))"
        r"|(?<!\d)(?<!\d[ \u00a0\u202f])%(?!L\d)[A-Za-z]⟨W⟩{1,60}+(?:%(?!⟨W⟩))?",
        "%s  %d  %(count)d  %1$s  %1$*2$d  %#@files@  %1$#@files@  %%name%%"
        "  %.2f  %-5s  %ld  %@  %1$@  %lld  %%  %n  %*d  %<n>d  %<PRIu64>  %PRODUCTNAME  %name%  %days",
        "100% sure  5 %  100%sure  5% a  50% e  50 % d'accord  100%.  5%-10%  5 %ige  5 %, a  %  % a  %-encoded",
    ),
    # QString::arg; LibreOffice
    Rule("variable", r"%L?[12](?!\d)", r"(?<!\d)(?<!\d )%L?[1-9](?!\d|⟨W⟩|\$)", "%1  %L1", "%10  5%1  5 %1"),
    # MediaWiki, Chrome, Perl
    Rule(
        "variable",
        r"(?<!\w)\$[12](?!⟨W⟩|[.,]\d)",
        r"(?<![\w$])\$[0-9](?!⟨W⟩|[.,]?\d)(?!\s?(?:[mb]illion|[km]\b))",
        "$1",
        "$10  $1.50  $1,000  $1 million  US$1",
    ),
    # shell, PHP, Perl; LibreOffice; Chrome, i18n
    Rule(
        "variable",
        r"\$",
        r"(?<![\w$])\$(?:[A-Z]{1,3}\$\d{1,7}+|\([^()\s]{1,60}+\)|\[\w{1,60}+\]|[A-Za-z_](?:⟨W⟩|@(?=[\w@]{1,60}\$)){0,60}\$?)",
        "$HOME  $name  $NAME$  $NAME@1$  $(ARG1)  $[officename]  $A$1",
        "$5  US$  $ 5  a$b  $",
    ),
    # Laravel, localization; shortcodes of emoji
    Rule(
        "variable",
        ":",
        r"(?<![^\s(\"'\[>/|#⟨B⟩]):(?:[a-z][a-z0-9_]{1,40}+:?|\+1:|-1:)(?!⟨W⟩|:)",
        ":count  :smile:  :+1:",
        "a:b  a: b  ::a  12:30  a :  :p  http://a",
    ),
    # HTML, character references; XML 1.0, 4.1; Unicode, 23.2, marks of direction
    Rule(
        "entity",
        "[&⟨B⟩]",
        r"&(?:#\d{1,7}+|#[xX][0-9A-Fa-f]{1,6}+|[A-Za-z][\w.-]{1,31}+);|[⟨B⟩]",
        "&amp;  &#39;  &#x27;  &nbsp;  &brandShortName;  \u200e  \u202b  \u2069",
        "a & b;  R&D  &;  &#;  \u200d",
    ),
    # RFC 3986
    Rule(
        "url",
        r"://|www\.|(?:mailto|tel|data|magnet|urn|doi):",
        r"(?:(?<!⟨L⟩)[A-Za-z][A-Za-z0-9+.-]{1,20}+://(?:⟨LABEL⟩\.){0,8}|(?<![\w.])(?:www\.(?=\w)|(?:mailto|tel|data|magnet|urn|doi):(?=\w|[+?])))⟨URL⟩",
        "https://example.org/a?b=c(d)  http://example.org  www.example.org  https://en.wikipedia.org/wiki/A_(b)"
        "  ftp://a/b  mailto:a@b.org  http://[::1]:80/  https://한국.kr/a  https://x.org/{id}/y"
        "  https://ja.wikipedia.org/wiki/日本の歴史/年表?q=한국어  https://zh.wikipedia.org/wiki/北京  tel:+49-30-1",
        "http  ://  www.  hotel: 5  data: a",
    ),
    # RFC 5322, 3.4.1
    Rule(
        "email",
        "@",
        r"(?:(?<![A-Za-z0-9_.+-])[A-Za-z0-9_+-](?:[A-Za-z0-9_.+-]|[%'](?=\w)){0,63}|(?<![\w.+-])[⟨CJK⟩]{1,64}+)@(?:⟨LABEL⟩\.){1,8}(?:[A-Za-z][A-Za-z0-9-]{0,61}[A-Za-z0-9]|[⟨CJK⟩]{2,9})",
        "anna@example.org  a.b+c@example.co.uk  o'brien@example.org  info@사이트.한국  홍길동@example.org",
        "a@b  @anna  a@b.  @a.de",
    ),
    # Mastodon, GitHub, npm
    Rule(
        "mention",
        "@",
        r"(?<![\w@.{])@(?=[\d_]{0,20}⟨L⟩)⟨W⟩{1,64}+(?:[-.]⟨W⟩{1,64}+){0,8}(?:[@/]⟨W⟩{1,64}+(?:[-.]⟨W⟩{1,64}+){0,8})?",
        "@anna  @user@host  @user@example.org  @scope/pkg  @a-b",
        "x@y  @ home  @  @_  @0.00",
    ),
    # what services take for hashtags; CSS colours
    Rule(
        "hashtag",
        "#",
        r"(?<![\w&/#@?=.])#(?!(?:DIV|NAME|NULL|NUM|REF|VALUE)[!?/])(?:[0-9A-Fa-f]{6}(?:[0-9A-Fa-f]{2})?|(?=\d{0,2}[A-Fa-f])[0-9A-Fa-f]{3}|(?!\d{1,4}+(?:st|nd|rd|th)\b)\d{0,4}+[A-Za-z_]⟨W⟩{1,99}+|[⟨CJK⟩]\w{1,99}+)(?!⟨W⟩)",
        "#hashtag  #jumok_2026  #fff  #1a2b3c  #한국어  #100DaysOfCode",
        "#1 hit  #1st  #2nd  #VALUE!  #DIV/0!  #을  C# and F#  # a  a#b  ##  #12",
    ),
    # Semantic Versioning; PEP 440
    Rule(
        "version",
        r"\d\.\d|v\d",
        r"(?<![\w.,])(?:[vV](?:\d{1,9}+\.){0,4}\d{1,9}+|(?!⟨DATE⟩(?!\.?\d))(?!\d{1,3}(?:\.\d{3}){2,9}(?!\.?\d))(?:\d{1,9}+\.){2,4}\d{1,9}+)"
        r"(?:[-+](?:⟨W⟩|[.+-]){0,30}⟨W⟩|(?:a|b|rc)\d{1,3}|/\d{1,3})?(?!⟨W⟩|[.,]\d)",
        "v1.2.3  1.2.3  1.2.3-rc1  1.2.3rc1  v2  192.168.0.1  10.0.0.0/8  1.0.0+build.5",
        "1.5  30.11.2026  2026.11.30  1.234.567  1.2.26  v  3.14",
    ),
    # IEC 80000-13; CSS
    Rule(
        "unit",
        r"\d(?:[ \u00a0]?(?:⟨UNIT⟩)|(?:⟨GLUED⟩))",
        r"(?<![\w.,])\d{1,9}+(?:[ \u00a0]?(?:⟨UNIT⟩)|(?:\.\d{1,3}+)?(?:⟨UNIT⟩|⟨GLUED⟩))(?!⟨W⟩)",
        "10px  16 GB  5GHz  44.1kHz  1.5em  720p",
        "1.5 GB  5 apples  10 Gb  12 pt",
    ),
    # C, JSON, LaTeX
    Rule(
        "escape",
        r"\\",
        r"\\(?:[nrt](?![a-z])|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[\"\\]|[A-Za-z]{1,30}+)",
        r"\n  \t  \u00e9  \textbf  \"",
        r"\  \ n  \1",
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
_ANY: Final = re.compile(rf"[%{{<\[⟦$@/\\&#_~{BIDI}]|XX|--|[.:][\w+-]|\d[ \u00a0\w]|[vV]\d|(?<!\w)-[A-Za-z]")
"""Found in every text with a hole; most texts are done after this search."""


def find_holes(text: str, kinds: Collection[str] = DEFAULT_KINDS) -> list[Hole]:
    """Return the holes of a text, in their order; they share no character.

    The first to begin counts, and of those of one place the first of the table.
    """
    message = parse_message(text) if "icu" in kinds else None
    arguments = [hole for hole in message.branches[0].holes if hole.kind == "icu"] if message else []
    return _around(arguments, text, kinds, 0, len(text))


def branch_holes(message: Message, branch: Branch, kinds: Collection[str] = DEFAULT_KINDS) -> list[Hole]:
    """Return the holes of a branch at places in its message: its own, and those that the rules find between them."""
    return _around(branch.holes, message.text, kinds, branch.first, branch.after)


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
    edges = [0, *chain.from_iterable(places), len(text)]
    return " ".join(text[first:after] for first, after in zip(edges[::2], edges[1::2], strict=True))


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
