"""HTML and XML over HTTP: the translation has each tag once, and ignored elements as they are."""

import re

import deepl
import pytest

from tests.support.servers.http_server import Served, call

HTML = ["<p>a man in a <b>blue</b> shirt</p><p>a dog &amp; two men</p>", '<a href="x?a=1&amp;b=2">a dog</a>']
XML = 'a man <x id="1">{name} runs</x> in a <b>blue</b> shirt'


def tags(text: str) -> list[str]:
    return sorted(re.findall(r"<[^>]*>", text))


def test_libretranslate_keeps_html(served: Served) -> None:
    request = {"q": HTML, "source": "en", "target": "de", "format": "html"}
    translated = call(f"{served.url}/translate", request).content["translatedText"]
    assert [tags(one) for one in translated] == [tags(one) for one in HTML]
    assert translated != HTML
    (single,) = {call(f"{served.url}/translate", {**request, "q": text}).content["translatedText"] for text in HTML[:1]}
    assert single == translated[0]


def test_deepl_leaves_ignored_tags_alone(served: Served) -> None:
    client = deepl.DeepLClient("any", server_url=served.url)
    found = client.translate_text(XML, source_lang="EN", target_lang="DE", tag_handling="xml", ignore_tags=["x"])
    assert isinstance(found, deepl.TextResult)
    assert '<x id="1">{name} runs</x>' in found.text
    assert tags(found.text) == tags(XML)
    assert found.billed_characters == len(XML)


def test_wrong_markup_names_the_text(served: Served) -> None:
    client = deepl.DeepLClient("any", server_url=served.url)
    with pytest.raises(deepl.DeepLException, match=r"text\[1\]") as caught:
        client.translate_text(["<b>a</b>", "<b>a"], source_lang="EN", target_lang="DE", tag_handling="xml")
    assert caught.value.http_status_code == 400


def test_what_no_model_reads_is_copied(served: Served) -> None:
    request = {"q": ["***", "   "], "source": "en", "target": "de"}
    assert call(f"{served.url}/translate", request).content == {"translatedText": ["***", "   "]}
