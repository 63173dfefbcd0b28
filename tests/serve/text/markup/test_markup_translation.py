"""Documents with markup through a translator, a server and the command's options."""

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import CancelledError

import lxml.html
import pytest

import jumok
from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupRules
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.tasks.word_alignment import token_places
from jumok_serve.translator import Translator
from tests.support.servers.in_process_server import serving

PAGE = (
    '<!DOCTYPE html><html><head><title>A dog</title><style>p > b {}</style></head>\n<body class="x">\n'
    "<p>A <b>brown</b> dog <i>runs in the <u>street</u></i>. Two women<br/>talk &amp; read.</p>\n"
    '<ul><li>1. A man <img src="a>b" alt=\'"\'> sleeps.<li><a href="?a&amp;b">The cat</a></ul>\n'
    "<!-- a <b>note</b> --><pre>  not\n translated </pre><p>***</p></body></html>\n"
)
TAG = re.compile(r"<!--.*?-->|<[^>\"']*(?:\"[^\"]*\"|'[^']*'|[^>\"'])*>")


def tags(text: str) -> list[str]:
    return sorted(TAG.findall(text))


def test_a_page_keeps_every_tag_once(translator: Translator) -> None:
    found = translator.translate(PAGE, markup="html", beam_size=2)
    assert tags(found.text) == tags(PAGE)
    before, after = lxml.html.document_fromstring(PAGE), lxml.html.document_fromstring(found.text)
    structure = ("html", "body", "p", "ul", "li", "pre", "title", "style")
    assert [one.tag for one in after.iter(*structure)] == [one.tag for one in before.iter(*structure)]
    for kept in ("<style>p > b {}</style>", "<pre>  not\n translated </pre>", "<!-- a <b>note</b> -->", "<p>***</p>"):
        assert kept in found.text
    assert "<li>1. " in found.text
    assert found.source_token_count > 20
    assert found.output_token_count == len(found.hypotheses[0].tokens) > 7


def test_the_model_reads_plain_text(translator: Translator) -> None:
    plain = translator.translate("A brown dog runs in the street. Two women talk.", beam_size=2)
    marked = translator.translate(
        "<p>A <b>brown</b> dog runs\n in <a href='x'>the <i>street</i>. Two</a> women talk.</p>",
        markup="html",
        beam_size=2,
    )
    assert marked.hypotheses[0].token_ids == plain.hypotheses[0].token_ids
    assert TAG.sub("", marked.text) == plain.text
    assert marked.score == pytest.approx(plain.score, abs=1e-4)


def test_a_document_counts_once_and_each_of_its_sentences(translator: Translator) -> None:
    before = translator.counters()
    translator.translate(["<p>A bird sings. The cat sleeps.</p><p>It rains.</p>", "<br>"], markup="html")
    after = translator.counters()
    assert (after.texts - before.texts, after.finished - before.finished) == (1, 3)


@pytest.mark.parametrize("text", ["", " \n", "<p></p>", "<br> <!-- x -->", "<img src=x>\n", "<p>&nbsp;</p>"])
def test_documents_without_text_are_unchanged(text: str, translator: Translator) -> None:
    found = translator.translate(text, markup="html")
    assert (found.text, found.output_token_count) == (text, 0)


def test_ignored_content_is_unchanged(translator: Translator) -> None:
    text = 'A dog <code>runs &lt; x</code> in <span translate="no">the Street</span> and <x>a red <b>house</b></x>.'
    found = translator.translate(text, markup="html", markup_rules=MarkupRules(ignore_tags=("x",))).text
    for kept in ("<code>runs &lt; x</code>", '<span translate="no">the Street</span>', "<x>a red <b>house</b></x>"):
        assert found.count(kept) == 1
    assert tags(found) == tags(text)


def test_xml_keeps_its_form(translator: Translator) -> None:
    text = (
        '<?xml version="1.0"?>\n<r a="1">\n  <p>A <b>dog</b> &own; runs.</p>\n'
        "  <q><![CDATA[A <cat> sleeps]]></q>\n</r>\n"
    )
    found = translator.translate(text, markup="xml").text
    assert re.fullmatch(
        r'<\?xml version="1.0"\?>\n<r a="1">\n  <p>.*<b>.*</b>.*</p>\n  <q><!\[CDATA\[.*\]\]></q>\n</r>\n', found
    )
    assert found.count("&own;") == 1


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"texts": ["a", "<a></b>"], "markup": "xml"}, "contents[1]"),
        ({"texts": ["a", "<a>\0</a>"]}, "contents[1]"),
        ({"texts": ["a", f"<p>A</p><p>{'a ' * 400}</p>"], "split_sentences": False}, "contents[1]"),
        *(
            (asked | {"split_sentences": split}, field)
            for asked, field in (
                ({"attention": True}, "attention"),
                ({"num_hypotheses": 2, "beam_size": 2}, "options.num_hypotheses"),
            )
            for split in (True, False)
        ),
        ({"target_prefix": ["Ein"]}, "target_prefixes"),
        ({"markup": "rtf"}, "markup"),
    ],
)
def test_refusals_name_the_field(settings: dict[str, object], field: str, translator: Translator) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        translator.translate(**{"texts": ["<b>a</b>"], "markup": "html", **settings})  # type: ignore[call-overload]
    assert refused.value.field == field
    assert "with markup" in str(refused.value) or field not in {"attention", "options.num_hypotheses"}


def test_words_are_aligned_no_further_after_the_work_was_cancelled(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = translator.submit(
        ["A <b>brown</b> dog runs. The <b>cat</b> sleeps. Two <b>women</b> talk."] * 3,
        TranslationParameters(markup="html", split_sentences=True),
    )
    spelled = []

    def places(tokens: Sequence[str], text: str) -> list[tuple[int, int]]:
        spelled.append(text)
        pending.cancel()
        return token_places(tokens, text)

    monkeypatch.setattr("jumok_serve.text.translation.token_places", places)
    with pytest.raises(CancelledError):
        pending.collect()
    assert spelled[0] == "A brown dog runs."
    assert len(spelled) == 2  # both sides of one sentence


def test_every_call_of_a_server_translates_documents(translator: Translator) -> None:
    wanted = translator.translate(PAGE, markup="html", beam_size=2).text

    async def asynchronous(address: str) -> list[str]:
        async with jumok.AsyncClient(address) as client:
            several = await asyncio.gather(*(client.translate(PAGE, markup="html", beam_size=2) for _ in range(8)))
            return [one.text for one in several]

    with serving(translator) as address, jumok.Client(address) as client:
        assert client.translate(PAGE, markup="html", beam_size=2).text == wanted
        assert asyncio.run(asynchronous(address)) == [wanted] * 8
        results = list(client.translate_iter([PAGE, "<b>\0</b>", PAGE], markup="html", beam_size=2))
        assert [result.error is None for result in results] == [True, False, True]
        assert results[2].translation.text == wanted
        (xml,) = client.translate_iter(["<a>"], markup="xml")
        assert isinstance(xml.error, jumok.InvalidArgumentError)
        assert xml.error.field == "content"
        assert client.translate("a <x>b</x>", markup="xml", markup_rules=MarkupRules(splitting_tags=("x",))).text
        with pytest.raises(jumok.InvalidArgumentError, match="markup"):
            client.translate_stream("<b>a</b>", markup="html")
        with pytest.raises(jumok.InvalidArgumentError, match="must be 'html', 'xml' or None"):
            client.translate("a", markup="rtf")  # type: ignore[call-overload]
