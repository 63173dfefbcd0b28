"""Catalogues of localisers: only values change, as other parsers read them, and plural forms suit the language."""

import io
import json
import re
from collections.abc import Callable
from typing import Any

import javaproperties
import lxml.etree
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.text.files.document import Text, known_formats
from tests.support.files import made, read_file, rewritten, texts, written
from tests.support.refusals import refused

PARTS = st.sampled_from(
    [
        "a dog",
        "two dogs",
        "dog.",
        "%s",
        "%1$d",
        "{0}",
        "{{name}}",
        "&",
        "<b>dog</b>",
        "<br/>",
        "<1>dog</1>",
        "<i>",
        "it's",
        "#",
        ":",
        "=",
        "\\",
        '"',
        "'",
        "\n",
        "\n  dog",
        "\t",
        "é",
        "한국",
        "🙂",
        "https://a.b/c",
        "[",
        "]",
        "{",
        ",",
        "1",
        "@dog",
        "&amp;",
        "\xa0",
        "/",
        "''",
        "?",
        "- ",
        "!",
        ">",
        "yes",
        "%",
        "$t(k)",
        "\\n",
        "$USER$",
    ]
)
STRINGS = st.lists(PARTS, max_size=5).map(" ".join)
KEYS = st.sampled_from(["a", "b.c", "d e", "dog", "f_other", "f_one", "message", "@g", "h:i", "j=k", "ü", "version"])


def swapped(text: str) -> str:
    return text.replace("dog", "HUND")


def with_values(value: Any, change: Callable[[str], str]) -> Any:
    """The value with other strings, but not in keys."""
    if isinstance(value, dict):
        return {key: with_values(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [with_values(one, change) for one in value]
    return change(value) if isinstance(value, str) else value


def check(content: str, name: str, load: Callable[[str], Any]) -> None:
    """Check that nothing changes without a change, and that a change of texts is one of values."""
    assert rewritten(content, name) == content
    written = rewritten(content, name, swapped)
    assert load(written) == with_values(load(content), swapped), written


VALUES = st.recursive(
    STRINGS | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(KEYS, inside, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 2, "\t"]), st.sampled_from(["", "\n", "\r\n  "]))
@made
def test_values_of_json(value: Any, ascii_only: bool, indent: int | str | None, end: str) -> None:
    check(json.dumps(value, ensure_ascii=ascii_only, indent=indent) + end, "json", json.loads)


@given(st.dictionaries(KEYS, STRINGS, max_size=4), st.dictionaries(KEYS, VALUES, max_size=3), st.booleans())
@made
def test_messages_of_chrome_and_arb(messages: dict[str, str], other: dict[str, Any], ascii_only: bool) -> None:
    def chrome(change: Callable[[str], str]) -> dict[str, Any]:
        more = {"description": "a dog", "placeholders": other}
        return {key: {"message": change(message), **more} for key, message in messages.items()}

    def arb(change: Callable[[str], str]) -> dict[str, Any]:
        found = {key: one if key.startswith("@") else change(one) for key, one in messages.items()}
        return {"@@locale": "en", **found, "@dog": other}

    for name, of in (("chrome", chrome), ("arb", arb)):
        content = json.dumps(of(str), ensure_ascii=ascii_only, indent=1)
        assert rewritten(content, name) == content
        assert json.loads(rewritten(content, name, swapped)) == of(swapped)


@given(st.dictionaries(KEYS, STRINGS, max_size=6), st.sampled_from([" = ", "=", ":", " "]))
@made
def test_values_of_properties(values: dict[str, str], separator: str) -> None:
    content = javaproperties.dumps(values, separator=separator, timestamp=None, comments="a dog")

    def load(text: str) -> Any:  # a message format has each of its quotes twice
        return with_values(javaproperties.loads(text), lambda one: one.replace("''", "'"))

    check(content, "properties", load)


@given(VALUES, st.sampled_from([None, "'", '"', "|", ">"]), st.booleans(), st.integers(20, 200))
@made
def test_values_of_yaml(value: Any, style: str | None, flow: bool, width: int) -> None:
    content = yaml.dump({"x y": value}, default_style=style, default_flow_style=flow, allow_unicode=True, width=width)
    content = "# a dog\n" + content
    check(content, "yaml", lambda text: yaml.load(text, Loader=yaml.SafeLoader))


@pytest.mark.parametrize("space", [" ", "  ", "\t", " \t ", "\xa0", "\xa0 ", " \xa0", "\n  ", "\n \xa0", ""])
@pytest.mark.parametrize("header", ["|", "|-", "|+", ">", ">-", ">+"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n  \n", "\nd: a cat\n"])
def test_white_space_at_the_end_of_a_block_stays(space: str, header: str, end: str) -> None:
    content = f"a: {header}\n  A dog" + space.replace("\n", "\n  ") + end
    check(content, "yaml", lambda text: yaml.load(text, Loader=yaml.SafeLoader))
    check(content.replace("\n", "\r\n"), "yaml", lambda text: yaml.load(text, Loader=yaml.SafeLoader))


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


TRANSLATIONS = st.sampled_from(
    [
        "<translation type='unfinished'></translation>",
        '<translation type="unfinished" />',
        "<translation type='unfinished'><numerusform></numerusform>\n<numerusform/></translation>",
        "<translation>dog</translation>",
        "<translation type='unfinished'>dog</translation>",
        "<translation type='vanished'/>",
    ]
)


@given(st.lists(st.tuples(STRINGS, TRANSLATIONS), max_size=4))
@made
def test_made_translations_of_qt_are_those_of_their_sources(messages: list[tuple[str, str]]) -> None:
    around = "<?xml version='1.0'?>\n<!DOCTYPE TS>\n<TS><context><name>dog</name>\n{}</context></TS>\n"
    inside = "<message><location line='1'/><source>{}</source><comment>dog</comment>{}</message>\n"
    content = around.format("".join(inside.format(escaped(source), one) for source, one in messages))
    written = rewritten(content, "qt", swapped)
    before, after = (lxml.etree.fromstring(one.encode()) for one in (content, written))
    for old, new in zip(before.iter("message"), after.iter("message"), strict=True):
        source = " ".join(swapped(old.findtext("source", "")).split())
        for empty, filled in zip(old.find("translation").iter(), new.find("translation").iter(), strict=True):
            if old.find("translation").get("type") == "unfinished" and not len(empty) and not empty.text:
                assert " ".join((filled.text or "").split()) == source
                filled.text = None
    assert lxml.etree.tostring(after) == lxml.etree.tostring(before)
    done = rewritten(written, "qt", swapped)
    assert done == written or any(not source.strip() for source, _ in messages)


@pytest.mark.parametrize("name", ["android", "resx"])
@given(strings=st.lists(st.tuples(STRINGS, st.booleans()), max_size=4))
@made
def test_values_of_xml(name: str, strings: list[tuple[str, bool]]) -> None:
    root, opening, closing = {
        "android": ("resources", "<string name='a'>", "</string>"),
        "resx": ("root", "<data name='a'><value>", "</value><comment>dog</comment></data>"),
    }[name]
    values = [f"<![CDATA[{one}]]>" if literal else escaped(one) for one, literal in strings]
    content = (
        f"<?xml version='1.0'?>\n<{root}>\n" + "\n".join(opening + one + closing for one in values) + f"\n</{root}>"
    )

    def load(text: str) -> list[str]:
        found = lxml.etree.fromstring(text.encode()).iter("string", "value")
        return ["".join(one.itertext()).replace("\\", "").replace("\n", " ") for one in found]

    assert rewritten(content, name) == content
    written = rewritten(content, name, swapped)
    assert [" ".join(one.split()) for one in load(written)] == [
        " ".join(swapped(one).split()) for one in load(content)
    ], written
    assert written.count("<comment>dog") == content.count("<comment>dog")


@given(
    st.lists(st.tuples(KEYS, STRINGS), max_size=5),
    st.sampled_from(["\n", "\r\n\n"]),
    st.sampled_from(["", "/* dog */", "// dog\n"]),
)
@made
def test_values_of_strings_files(entries: list[tuple[str, str]], end: str, comment: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    def load(text: str) -> list[str]:
        found = re.findall(r'^"(?:[^"\\]|\\.)*" = "((?:[^"\\]|\\.)*)";', text, re.MULTILINE)
        return [re.sub(r"\\(.)", r"\1", one.replace("\\t", "\t")) for one in found]

    check(end.join(f"{comment}\n{quoted(key)} = {quoted(value)};" for key, value in entries) + end, "strings", load)


CASES = {
    "json": [
        ('{"a": "A dog", "b": ["x", "1", "", {"c": "A cat"}], "d": 1}', ["A dog", "x", "A cat"]),
        ('{"c": "#ff00aa", "u": "https://a.b/c?d", "i": "btn_save", "v": "1.0.2-beta", "f": "img/a.png"}', []),
        ('{"d": "%Y-%m-%d", "m": "a@b.de", "l": "12px", "p": "/usr/bin", "k": "com.example.app"}', []),
        ('{"a": "see $t(b.c) now"}', ["see $t(b.c) now"]),
        ('{"a": "1 < 2 & <Enter>"}', ['1 &lt; 2 &amp; <jmk-m x="&lt;Enter&gt;"/>']),
        ('{"a": "Hi <b>x</b> &amp; <br> y"}', ["Hi <b>x</b> &amp; <br> y"]),
        ('{"a": "<0>go</0> <1/>"}', ['<jmk-0 x="&lt;0&gt;">go</jmk-0 x="&lt;/0&gt;"> <jmk-1 x="&lt;1/&gt;"/>']),
        ('{"a": "One.\\n\\nTwo."}', ['One.<jmk-l x="\n\n"/>Two.']),
        ('{"a": "{n, plural,\\n one {a}\\n other {b}}"}', ["{n, plural,\n one {a}\n other {b}}"]),
        ('{"a": "\\ud83d", "a": "twice", "a": "more"}', ["twice", "more"]),
    ],
    "chrome": [
        (
            '{"a": {"message": "Hi $USER$", "description": "no"}}',
            ["Hi $USER$"],
        ),
        (
            '{"a": {"message": "Hi $1 for $$5"}}',
            [
                'Hi $1 for <jmk-h x="$$" translate="no">$$</jmk-h>5',
            ],
        ),
        ('{"a": {"message": "Hi", "placeholders": {"b": {"content": "No $1", "message": "No"}}}}', ["Hi"]),
    ],
    "arb": [('{"@@locale": "en", "a": "A dog", "@a": {"description": "No"}}', ["A dog"])],
    "android": [
        (
            r"<string>It\'s \"a\" dog\u2026 \@ &lt;b>x&lt;/b></string>",
            ['It\'s "a" dog… @ <jmk-b x="&amp;lt;b&gt;">x</jmk-b x="&amp;lt;/b&gt;">'],
        ),
        ('<string translatable="false">dog</string><string>@string/a</string><string>?attr/a</string><string/>', []),
        (
            '<string>Hi <x:g id="n" example="Bob">%1$s</x:g>!</string>',
            [
                'Hi <jmk-h x="&lt;x:g id=&quot;n&quot; example=&quot;Bob&quot;&gt;%1$s&lt;/x:g&gt;" translate="no">%1$s'
                "</jmk-h>!"
            ],
        ),
        (r'<string>" two  dogs "</string><string>\u0020a dog\n</string>', ["two  dogs", "a dog"]),
        ("<string-array><item>a dog</item><!-- b --><item>12</item></string-array><color>red</color>", ["a dog"]),
        ("<string><![CDATA[A <b>dog</b>]]></string>", ["A <b>dog</b>"]),
        (r"<string>One\nTwo \ud83d\ude42</string>", ['One<jmk-l x="\\n"/>Two \U0001f642']),
    ],
    "resx": [
        (
            "<data name='a'><value>A dog</value><comment>b</comment></data><data type='t'><value>No</value></data>",
            ["A dog"],
        ),
        ("<data mimetype='t'><value>No</value></data><data name='&gt;&gt;a.Name'><value>No</value></data>", []),
        ("<resheader><value>No</value></resheader><assembly/><metadata><value>No</value></metadata>", []),
    ],
    "qt": [
        ("<source>Open %1</source><translation type='unfinished'/>", ['Open <jmk-h x="%1" translate="no">%1</jmk-h>']),
        ("<source>a dog</source><translation>ein Hund</translation>", []),
        ("<source>a dog</source><translation type='unfinished'>ein Hund</translation>", []),
        ("<source>a dog</source><translation type='vanished'/>", []),
        ("<source>a dog</source><translation type='obsolete'></translation>", []),
        (
            "<source>two dogs</source><translation type='unfinished'><numerusform/><numerusform>"
            "</numerusform></translation>",
            ["two dogs", "two dogs"],
        ),
    ],
    "properties": [
        (
            "# a dog\n! a cat\na=A dog\nb : two\\\n   dogs\nc three\\tcats",
            ["A dog", "twodogs", 'three<jmk-l x="\t"/>cats'],
        ),
        (
            "a=It''s {0}\nb=It's\nc=a '{0}' {1}",
            ["It's {0}", "It's", 'a <jmk-h x="&#x27;{0}&#x27;" translate="no">&#x27;{0}&#x27;</jmk-h> {1}'],
        ),
        ("\\ a\\=b = c d\nempty=\nkey\n=e f", ["c d", "e f"]),
        ("a=\\u00fcber \\ud83d\\ude42 b\n\n  \r\nb=c", ["über \U0001f642 b", "c"]),
    ],
    "strings": [
        ('/* a dog */ "k" = "A \\"dog\\""; // b\nk2 = "c \\U00e9"; "only"; "x" = y;', ['A "dog"', "c é"]),
    ],
    "yaml": [
        ("en:\n  a: A dog # b\n  c: :sym\n  d: yes\n  e: 12\n  f: ~\n  g: 2020-01-01\n  h: !x y z", ["A dog"]),
        (
            "a: &x One\nb: *x\nc: [Two, {d: Three}]\n? [k, {m: n}]\n: Four\n? k: l\n: Five",
            ["One", "Two", "Three", "Four", "Five"],
        ),
        ("a: |\n  One.\n\n  Two.\nb: >-\n  Three\n  four.\n", ['One.<jmk-l x="\n\n"/>Two.', "Three four."]),
        ("--- One\n--- Two\n...\n", ["One", "Two"]),
    ],
}
AROUND = {
    "android": "<resources xmlns:x='u'>{}</resources>",
    "resx": "<root>{}</root>",
    "qt": "<TS><context><message>{}</message></context></TS>",
}


@pytest.mark.parametrize(
    ("name", "content", "found"), [(name, *case) for name, cases in CASES.items() for case in cases]
)
def test_texts(name: str, content: str, found: list[str]) -> None:
    content = AROUND.get(name, "{}").replace("{}", content) if name in AROUND else content
    assert [text.content for text in texts(content, name)] == found
    if name != "qt":
        assert rewritten(content, name) == content


@pytest.mark.parametrize(
    ("source", "translation", "written"),
    [
        ("Save &amp;as...", "Speichern als...", "Speichern &amp;als..."),
        ("&amp;File", "Datei", "&amp;Datei"),
        ("&amp;Open %n", 'Ouvrir <jmk-h x="%n" translate="no">%n</jmk-h>', "&amp;Ouvrir %n"),
        ("&amp;File...", "파일...", "파일(&amp;F)..."),
        ("AT&amp;T", "AT&amp;T ja", "AT&amp;T ja"),
        ("a &amp; b", "x &amp; y", "x &amp; y"),
        ("&amp;copy; &lt;b&gt;", "x &amp;copy; &lt;b&gt;", "x &amp;copy; &lt;b&gt;"),
    ],
)
def test_marks_of_accelerators_stand_before_a_letter(source: str, translation: str, written: str) -> None:
    for name, content in (
        ("qt", f"<message><source>{source}</source><translation type='unfinished'>*</translation></message>"),
        ("resx", "<data name='a'><value>*</value></data>"),
    ):
        around = AROUND[name].replace("<message>{}</message>", "{}").replace("{}", content)
        given = around.replace("*", "" if name == "qt" else source)
        assert rewritten(given, name, lambda _: translation) == around.replace("*", written)


def into(language: str, content: str, name: str, translate: Callable[[str], str] = str) -> str:
    pieces = known_formats()[name].into(language).pieces(content)
    return "".join(one if isinstance(one, str) else one.write(translate(one.content)) for one in pieces)


@pytest.mark.parametrize(
    ("name", "content", "language", "written"),
    [
        ("json", '{"a_one": "x", "a_other": "y"}', "ru", '{"a_one": "x", "a_other": "y", "a_few": "y", "a_many": "y"}'),
        ("json", '{\n "a_other": "y",\n "a_one": "x"\n}', "mt", '{\n "a_other": "y",\n "a_one": "x",\n "a_two": "y",'
         '\n "a_few": "y",\n "a_many": "y"\n}'),
        ("json", '{"a_one": "x", "a_other": "y"}', "kor_Hang", '{"a_one": "x", "a_other": "y"}'),
        ("json", '{"a_ordinal_one":"", "a_ordinal_other":"y"}', "ru", '{"a_ordinal_one":"", "a_ordinal_other":"y"}'),
        ("json", '{"a_other": "y"}', "ru", '{"a_other": "y"}'),
        ("json", '{"a_one": "x", "a_other": "y"}', "xx", '{"a_one": "x", "a_other": "y"}'),
        ("arb", '{"@@locale": "en_US", "a": "x"}', "deu_Latn", '{"@@locale": "de", "a": "x"}'),
        ("arb", '{"@@locale": "en", "a": "x"}', "pt-BR", '{"@@locale": "pt_BR", "a": "x"}'),
        ("yaml", "en:\n  a: x\n", "no", 'no:\n  a: x\n'.replace("no:", '"no":')),
        ("yaml", "en:\n  a: x\nb: y\n", "de", "en:\n  a: x\nb: y\n"),
        ("yaml", "'en': {p: {one: x, other: y}}", "pl", "'pl': {p: {one: x, other: y, few: y, many: y}}"),
        ("yaml", "p:\r\n  one: x\r\n  other: 'y'\r\nq: z", "sr",
         "p:\r\n  one: x\r\n  other: 'y'\r\n  few: 'y'\r\nq: z"),
        (
            "android",
            '<resources><plurals>\n <item quantity="one">x</item>\n <item quantity="other">y</item>\n</plurals>'
            "</resources>",
            "cs",
            '<resources><plurals>\n <item quantity="one">x</item>\n <item quantity="other">y</item>\n '
            '<item quantity="few">y</item>\n <item quantity="many">y</item>\n</plurals></resources>',
        ),
        (
            "android",
            '<resources><plurals>\n <item quantity="one">x</item>\n <item quantity="other">y</item>\n</plurals>'
            "</resources>",
            "ko",
            '<resources><plurals>\n <item quantity="other">y</item>\n</plurals></resources>',
        ),
    ],
)  # fmt: skip
def test_forms_and_names_of_a_language(name: str, content: str, language: str, written: str) -> None:
    assert into(language, content, name) == written
    assert into("", content, name) == content


def test_a_form_that_cannot_be_made_is_left_out() -> None:
    content = '{"a_one": "x", "a_other": "y"}'
    pieces = known_formats()["json"].into("ru").pieces(content)
    assert "".join(one if isinstance(one, str) else one.written for one in pieces) == content


def catalogue(strings: dict[str, Any]) -> str:
    return json.dumps({"sourceLanguage": "en", "strings": strings, "version": "1.0"}, indent=2, separators=(",", " : "))


def unit(value: str, state: str = "translated") -> dict[str, Any]:
    return {"stringUnit": {"state": state, "value": value}}


@pytest.mark.parametrize(
    ("entry", "language", "wanted"),
    [
        ({}, "de", unit("A HUND", "needs_review")),
        ({"comment": "c"}, "deu_Latn", unit("A HUND", "needs_review")),
        ({"localizations": {}}, "de", unit("A HUND", "needs_review")),
        ({"localizations": {"en": unit("Two dogs %#@x@")}}, "de", unit("Two HUNDs %#@x@", "needs_review")),
        ({"localizations": {"fr": unit("chien")}}, "de", unit("A HUND", "needs_review")),
        ({"localizations": {"de": unit("Hund")}}, "de", unit("Hund")),
        ({"localizations": {"de": unit("Hund", "needs_review")}}, "de", unit("Hund", "needs_review")),
        ({"localizations": {"de": unit("", "new")}}, "de", unit("A HUND", "needs_review")),
        ({"localizations": {"zh-Hans": unit("狗")}}, "zho_Hans", unit("狗")),
        ({"shouldTranslate": False}, "de", None),
        ({"extractionState": "stale"}, "de", None),
        ({}, "en", None),
        (
            {"localizations": {"en": {"variations": {"plural": {"one": unit("a dog"), "other": unit("%d")}}}}},
            "pl",
            {"variations": {"plural": {name: unit("a HUND", "needs_review") if name == "one" else unit("%d")
                                       for name in ("few", "many", "one", "other")}}},
        ),
        (
            {"localizations": {"en": {"variations": {"plural": {
                "one": unit("a dog"), "other": unit("b dog"), "zero": unit("no dog")}}}}},
            "ko",
            {"variations": {"plural": {
                "other": unit("b HUND", "needs_review"), "zero": unit("no HUND", "needs_review")}}},
        ),
        (
            {"localizations": {"en": {"variations": {"device": {"mac": unit("a dog"), "other": unit("b dog")}}}}},
            "de",
            {"variations": {"device": {
                "mac": unit("a HUND", "needs_review"), "other": unit("b HUND", "needs_review")}}},
        ),
        (
            {"localizations": {"en": {**unit("%#@n@ dog"), "substitutions": {"n": {"argNum": 1, "variations": {
                "plural": {"one": unit("%arg dog"), "other": unit("%arg dogs")}}}}}}},
            "de",
            {**unit("%#@n@ HUND", "needs_review"), "substitutions": {"n": {"argNum": 1, "variations": {
                "plural": {"one": unit("%arg HUND", "needs_review"), "other": unit("%arg HUNDs", "needs_review")}}}}},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compact", [False, True])
def test_string_catalogues(
    entry: dict[str, Any], language: str, wanted: dict[str, Any] | None, *, compact: bool
) -> None:
    key = {"deu_Latn": "de", "zho_Hans": "zh-Hans"}.get(language, language)
    strings = {"": {}, "1": {}, "A dog": entry, "btn_save": {}}
    content = catalogue(strings)
    content = json.dumps(json.loads(content)) if compact else content
    written = into(language, content, "xcstrings", swapped)
    expected = json.loads(content)
    if wanted is not None:
        expected["strings"]["A dog"].setdefault("localizations", {})[key] = wanted
    assert json.loads(written) == expected
    if not compact:  # as Xcode writes it
        order = expected["strings"]["A dog"]
        if "localizations" in order:
            order["localizations"] = dict(sorted(order["localizations"].items()))
        assert written == catalogue({**strings, "A dog": order}) or "new" in content or "zh" in key
    again = known_formats()["xcstrings"].into(language).pieces(written)
    assert not [one for one in again if isinstance(one, Text)]


UNITS = st.builds(unit, STRINGS, st.sampled_from(["translated", "new", "needs_review"]))
FORMS = st.builds(lambda one, other: {"variations": {"plural": {"one": one, "other": other}}}, UNITS, UNITS)
DEVICES = st.builds(lambda mac, other: {"variations": {"device": {"mac": mac, "other": other}}}, UNITS, FORMS | UNITS)
LANGUAGES = st.dictionaries(st.sampled_from(["en", "fr", "ko", "zh-Hans"]), UNITS | FORMS | DEVICES, max_size=3)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "comment": STRINGS,
        "extractionState": st.sampled_from(["manual", "stale"]),
        "localizations": LANGUAGES,
        "shouldTranslate": st.booleans(),
    },
)


@given(st.dictionaries(STRINGS, ENTRIES, max_size=3), st.sampled_from([None, 2]))
@made
def test_made_string_catalogues_get_a_language_and_nothing_else(entries: dict[str, Any], indent: int | None) -> None:
    content = json.dumps(json.loads(catalogue(entries)), indent=indent, ensure_ascii=False)
    assert into("en", content, "xcstrings", swapped) == content
    made_file = into("de", content, "xcstrings", swapped)
    assert into("de", made_file, "xcstrings", swapped) == made_file
    strings = json.loads(made_file)["strings"]
    for name, entry in strings.items():
        found = entry.get("localizations", {})
        if german := found.pop("de", None):
            source = found.get("en", unit(name))
            assert with_values(german, lambda one: "" if one in STATES else one) == with_values(
                source, lambda one: "" if one in STATES else swapped(one)
            )
        if not found and "localizations" not in entries[name]:
            entry.pop("localizations", None)
    assert list(strings.items()) == list(entries.items())


STATES = {"new", "translated", "needs_review"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("json", "", "line 1: it is no JSON: a value must stand here, got the end of the file"),
        ("json", '{"a":\n "b"', "line 2: it is no JSON: a comma or } must stand here, got the end"),
        ("json", '{"a": "b",}', "a key in quotation marks must stand here, got '}'"),
        ("json", "{'a': 1}", "a key in quotation marks or }"),
        ("json", '["a\nb"]', "no string is as '\"a"),
        ("json", "[01]", "no value is as '01"),
        ("json", "[NaN]", "no value is as 'NaN"),
        ("json", "[1] 2", "nothing more must stand here"),
        ("json", "{" * 10_000, "it is no JSON"),
        ("json", "<html>", "no value is as '<html>'"),
        ("xcstrings", "{}", "a string catalogue has sourceLanguage and strings"),
        (
            "xcstrings",
            catalogue({}),
            "line 1: a string catalogue has all languages in one file: give the target language",
        ),
        ("xcstrings", '{"sourceLanguage": "en", "strings": {"a": {}, "a": {}}}', "it has the key 'a' twice"),
        ("xcstrings", '{"a":' * 40 + "1", "more than 32 values within each other"),
        ("android", "<html/>", "the outermost element must be resources, got html"),
        ("android", "<resources>", "it is not well-formed XML"),
        ("android", '<!DOCTYPE r [<!ENTITY a "ha">]><resources/>', "declares the entity 'a'"),
        ("android", '<?xml version="1.0" encoding="latin1"?><resources/>', "the encoding latin1 is not UTF-8"),
        ("resx", '<?xml version="1.0" encoding="us-ascii"?><root/>', "the encoding us-ascii is not UTF-8"),
        ("qt", "export const a = 1;", "the outermost element must be TS, got none"),
        ("resx", "<a/>", "must be root, got a"),
        ("properties", "a=b\nc=\\u12", r"line 2: no escape is as '\\\\u12': write four digits"),
        ("strings", '"a" = "b"', 'line 1: an entry must be as "key" = "value";'),
        ("strings", '"a" = "b";\n{}', "line 2: an entry must be"),
        ("strings", '"a" = "b', "an entry must be"),
        ("strings", "/* a", "a comment has no end"),
        ("strings", "<?xml version='1.0'?><plist/>", "plutil -convert"),
        ("yaml", "a: b: c", "line 1: it is no YAML"),
        ("yaml", "a: 'b", "it is no YAML"),
        ("yaml", "a: \x01", "it is no YAML"),
        ("yaml", "[" * 500, "more than 200 values within each other"),
        ("yaml", "[" * 10_000, "line 1: it is no YAML: exceeded maximum nesting depth"),
        ("yaml", "\tx: y", "it is no YAML"),
    ],
    ids=lambda value: value[:20],
)
def test_a_bad_file_names_its_line(name: str, content: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message if "\\\\" in message else re.escape(message)):
        rewritten(content, name)


@pytest.mark.parametrize("name", CASES)
def test_files_of_another_kind_and_encoding(name: str) -> None:
    with refused("file", "line 1: it is a binary file"):
        read_file(b"\x89PNG\r\n\x1a\n\0\0", "", name)
    if name != "properties":
        with refused("file", "byte 0xe9 is not UTF-8"):
            read_file(b"\xe9", "", name)
    assert rewritten("", name) == "" if name in {"properties", "strings", "yaml"} else True


def test_properties_in_latin_1() -> None:
    document = read_file("a=Größe dog\n".encode("latin-1"), "a.properties")
    assert document.encoding == "iso-8859-1"
    found = written(document, lambda _: "ü 한")
    assert found == b"a=\xfc \\ud55c\n"
    assert javaproperties.load(io.BytesIO(found)) == {"a": "ü 한"}


@pytest.mark.parametrize(
    ("name", "content", "translation", "written"),
    [
        ("json", '["a dog"]', "ü \U0001f642", '["ü \U0001f642"]'),
        ("json", '["a dog\\u00e9"]', "ü \U0001f642", '["\\u00fc \\ud83d\\ude42"]'),
        ("json", '["a/b dog \\/"]', 'a/"\\', '["a\\/\\"\\\\"]'),
        ("properties", "a=dog", "ü 한 \U0001f642", "a=\\u00fc \\ud55c \\ud83d\\ude42"),
        ("properties", "a=d\xf6g", "ü 한", "a=ü \\ud55c"),
        ("properties", "a=한 dog", "ü 한", "a=ü 한"),
        ("properties", "a=It''s {0}", "l'a {0}", "a=l''a {0}"),
        ("properties", "a=b {0}\\n\\\n  c", 'B {0}<jmk-l x="\n"/>C', "a=B {0}\\n\\\n  C"),
        ("android", "<resources><string>a</string></resources>", "l'a \"b\"",
         r"<resources><string>l\'a \"b\"</string></resources>"),
        ("android", "<resources><string>a</string></resources>", "@a &amp; b",
         r"<resources><string>\@a &amp; b</string></resources>"),
        ("android", "<resources><string><![CDATA[a]]></string></resources>", "]]>",
         "<resources><string><![CDATA[]]]]><![CDATA[>]]></string></resources>"),
        ("strings", '"a" = "b";', 'ü "\n', '"a" = "ü \\"\\n";'),
        ("yaml", "a: b", "c: d", 'a: "c: d"'),
        ("yaml", "a: b # c", "yes", 'a: "yes" # c'),
        ("yaml", "a: 'b'", "it's", "a: 'it''s'"),
        ("yaml", "[b]", "a, b", '["a, b"]'),
        ("yaml", "a: |\n  b\nc: 1", 'x<jmk-l x="\n"/>y', "a: |\n  x\n  y\nc: 1"),
        ("yaml", "a: |\n  b\nc: 1", 'x<jmk-l x="\n  "/>y', "a: |\n  x\n    y\nc: 1"),
        ("yaml", "a: >\n  b\nc: 1", 'x<jmk-l x="\n  "/>y', 'a: "x\\n  y\\n"\nc: 1'),
        ("yaml", "a: |-\n  b\nc: 1", " x", 'a: " x"\nc: 1'),
        ("yaml", "a: >\n  b\n\nc: 1", 'x<jmk-l x="\n"/>y', "a: >\n  x\n\n  y\n\nc: 1"),
    ],
)  # fmt: skip
def test_characters_of_translations(name: str, content: str, translation: str, written: str) -> None:
    assert rewritten(content, name, lambda _: translation) == written
