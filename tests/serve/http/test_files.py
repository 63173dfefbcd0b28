"""Files over LibreTranslate's and DeepL's APIs: unmodified clients, forms, keys and bounds."""

import io
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import httpx
import pytest
from libretranslate_aio import AsyncLibreTranslate, LibreTranslate
from starlette.datastructures import Headers

from jumok_proto.errors import InvalidArgumentError, OverloadedError
from jumok_proto.v1.file_pb2 import FileSettings, TranslateFileRequest
from jumok_serve.http import documents
from jumok_serve.http.documents import Documents
from jumok_serve.http.multipart import Upload, parse_upload
from jumok_serve.http.stub_backend import FILE_PART, _sent
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.translator import Translator
from tests.support.office import document, members
from tests.support.servers.http_server import Served, call, serving_http
from tests.support.servers.tokens import token_file

TEXT = "a dog\n\ntwo young men\n"
WORD = document("docx", "<w:p><w:r><w:t>a dog</w:t></w:r></w:p>")


@pytest.fixture(scope="module")
def expected(translator: Translator) -> str:
    dog, men = (one.text for one in translator.translate(["a dog", "two young men"], split_sentences=True))
    return f"{dog}\n\n{men}\n"


def form(**fields: Any) -> dict[str, Any]:
    """Return a form of httpx; texts that are pairs are files."""
    return {
        "data": {name: value for name, value in fields.items() if isinstance(value, str)},
        "files": {name: value for name, value in fields.items() if not isinstance(value, str)},
    }


def post(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(url, **form(**fields), timeout=60)


def test_libretranslate_with_a_file(served: Served, expected: str) -> None:
    answer = post(f"{served.url}/translate_file", file=("a b.txt", TEXT.encode()), source="en", target="de")
    assert answer.status_code == 200
    assert answer.json()["problems"] == []
    url = answer.json()["translatedFileUrl"]
    assert url.startswith(f"{served.url}/download_file/")
    found = httpx.get(url)
    assert found.content.decode() == expected
    assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20b.txt"
    for other in (f"{served.url}/download_file/{'0' * 32}.a.txt", f"{served.url}/download_file/a"):
        assert httpx.get(other).status_code == 404
    settings = call(f"{served.url}/frontend/settings").content
    assert settings["filesTranslation"]
    assert {".docx", ".epub", ".txt", ".odt"} <= set(settings["supportedFilesFormat"])


def test_placeholders_of_files_are_kept(served: Served, tmp_path: Path) -> None:
    text, kept = "%1$s: a dog at https://example.org/a and {name}", ("%1$s", "https://example.org/a", "{name}")
    answer = post(f"{served.url}/translate_file", file=("a.txt", text.encode()), source="en", target="de")
    (tmp_path / "a.txt").write_text(text)
    deepl.DeepLClient("any", server_url=served.url).translate_document_from_filepath(
        tmp_path / "a.txt", tmp_path / "b.txt", target_lang="DE"
    )
    for found in (httpx.get(answer.json()["translatedFileUrl"]).text, (tmp_path / "b.txt").read_text()):
        assert [found.count(one) for one in kept] == [1, 1, 1]


async def test_libretranslate_aio(served: Served, translator: Translator, tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(WORD)
    with LibreTranslate(served.url) as client:
        url = client.translate_file(tmp_path / "a.docx", source="en", target="de").translated_file_url
    async with AsyncLibreTranslate(served.url) as other:
        second = await other.translate_file(tmp_path / "a.docx", source="auto", target="de")
    main = members(httpx.get(url).content)["word/document.xml"].decode()
    assert f"<w:t>{translator.translate('a dog', markup='xml').text}</w:t>" in main
    assert httpx.get(second.translated_file_url).content == httpx.get(url).content


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"file": ("a.pdf", b"%PDF-1.7"), "source": "en", "target": "de"}, "it is a PDF file: convert it"),
        ({"file": ("a.xyz", b"a"), "source": "en", "target": "de"}, "has no known ending"),
        ({"file": ("a.txt", b"a"), "source": "en", "target": "xx"}, "no target language 'xx'"),
        ({"file": ("a.txt", b"a"), "source": "en"}, "the field target is missing"),
        ({"source": "en", "target": "de", "other": ("a.txt", b"a")}, "the field file is missing"),
        ({"file": ("a.txt", b"\xff"), "source": "en", "target": "de"}, "byte 0xff is not UTF-8"),
    ],
)
def test_wrong_files_are_refused(served: Served, fields: dict[str, Any], words: str) -> None:
    answer = post(f"{served.url}/translate_file", **fields)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_a_file_may_be_larger_than_a_message(served: Served) -> None:
    large = (b"*" * 5_999 + b"\n") * 1_000
    answer = post(f"{served.url}/translate_file", file=("a.txt", large), source="en", target="de")
    assert httpx.get(answer.json()["translatedFileUrl"]).content == large
    refused = post(f"{served.url}/translate_file", file=("a.txt", large * 2), source="en", target="de")
    assert refused.status_code == 413


def test_deepl_with_a_document(served: Served, expected: str, tmp_path: Path) -> None:
    client = deepl.DeepLClient("any", server_url=served.url)
    source, out = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text(TEXT, encoding="utf-8")
    assert client.translate_document_from_filepath(source, out, target_lang="DE").done
    assert out.read_text(encoding="utf-8") == expected
    handle = client.translate_document_upload(b"a dog", filename="b.txt", source_lang="EN", target_lang="DE")
    assert client.translate_document_wait_until_done(handle).done
    with pytest.raises(deepl.DeepLException, match="there is no such document"):
        client.translate_document_get_status(deepl.DocumentHandle(handle.document_id, "0" * 32))
    with pytest.raises(deepl.DocumentTranslationException, match="is not UTF-8: convert the file"):
        client.translate_document(b"\xff", io.BytesIO(), target_lang="DE", filename="a.txt")
    with pytest.raises(deepl.DeepLException, match="files keep their format"):
        client.translate_document_upload(b"a", filename="b.docx", target_lang="DE", output_format="pdf")


def test_the_command_of_deepl(served: Served, translator: Translator, tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(WORD)
    arguments = [
        "--auth-key",
        "any",
        "--server-url",
        served.url,
        "document",
        "--to",
        "DE",
        str(tmp_path / "a.docx"),
        str(tmp_path / "out"),
    ]
    (tmp_path / "out").mkdir()
    subprocess.run([sys.executable, "-m", "deepl", *arguments], check=True, timeout=120)
    main = members((tmp_path / "out/a.docx").read_bytes())["word/document.xml"].decode()
    assert f"<w:t>{translator.translate('a dog', markup='xml').text}</w:t>" in main


@pytest.fixture(scope="module")
def keys(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    file, (first, second) = token_file(tmp_path_factory.mktemp("tokens"), "ann", "bob")
    with serving_http(translator, tokens=TokenFile(file)) as served:
        yield served.url, first, second


def test_keys(keys: tuple[str, str, str]) -> None:
    url, first, second = keys
    upload = {"file": ("a.txt", b"a dog"), "source": "en", "target": "de"}
    assert post(f"{url}/translate_file", **upload).status_code == 403
    answer = post(f"{url}/translate_file", **upload, api_key=first)
    with urllib.request.urlopen(answer.json()["translatedFileUrl"]) as response:  # the address is the key
        assert response.status == 200
    ann, bob = (deepl.DeepLClient(key, server_url=url) for key in (first, second))
    handle = ann.translate_document_upload(b"a dog", filename="a.txt", target_lang="DE")
    assert ann.translate_document_get_status(handle).ok
    with pytest.raises(deepl.DeepLException, match="there is no such document"):
        bob.translate_document_get_status(handle)


async def test_results_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_KEPT_BYTES", 200)
    kept = Documents()
    first = kept.open(Upload("../a/b.txt", bytes(60)), "ann")
    assert first.name == "b.txt"
    with pytest.raises(OverloadedError):
        kept.open(Upload("b.txt", bytes(60)), "ann")  # the first is being translated
    kept.add(first, bytes(30))
    kept.end(first)
    assert kept.find(first.id, "ann", first.key) is first
    assert kept.find(first.id, "bob", first.key) is kept.find(first.id, "ann", "") is None
    second = kept.open(Upload("b.txt", bytes(90)), "ann")  # in place of the first one
    assert kept.find(first.id, None, None) is None
    kept.open(Upload("b.txt", bytes(90)), "bob")
    with pytest.raises(OverloadedError):
        kept.open(Upload("b.txt", bytes(90)), "eve")
    kept.end(second, "failed")
    monkeypatch.setattr(documents, "KEPT_S", -1.0)
    assert kept.find(second.id, "ann", second.key) is None


BOUNDARY = "multipart/form-data; boundary="


def parsed(body: bytes, kind: str = f"{BOUNDARY}b") -> dict[str, Any]:
    return parse_upload(Headers({"content-type": kind}), b"", body, 100)


def field(head: str, content: bytes) -> bytes:
    return b"--b\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + content + b"\r\n--b--\r\n"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (field('name="a"', "é".encode()), {"a": "é"}),
        (field('name="a"; filename="x y.txt"', b"1\r\n\r\n2--b"), {"a": Upload("x y.txt", b"1\r\n\r\n2--b")}),
        (field('name=a; filename="x\\"y%22.txt"', b""), {"a": Upload('x"y".txt', b"")}),
        (field("name=a; filename=z; filename*=UTF-8''%C3%A9.txt", b"1"), {"a": Upload("é.txt", b"1")}),
    ],
)
def test_fields_of_a_form(body: bytes, wanted: dict[str, Any]) -> None:
    assert parsed(body) == wanted
    assert parsed(body.replace(b"--b", b"--c c"), f'{BOUNDARY}"c c"') == {
        name: value if isinstance(value, str) else Upload(value.name, value.content.replace(b"--b", b"--c c"))
        for name, value in wanted.items()
    }


@pytest.mark.parametrize(
    "body",
    [b"", b"--b", b"a", field('name="a"', b"1")[:-8], field('name="a"', b"\xff"), b"--b\r\n\r\n\r\n" * 200 + b"--b--"],
)
def test_forms_that_are_not_whole(body: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match=r"the (request|form) is no"):
        parsed(body)


def test_a_gateway_sends_a_file_in_parts() -> None:
    request = TranslateFileRequest(settings=FileSettings(name="a.txt"), file=bytes(FILE_PART + 1))
    sent: list[Any] = list(_sent(request))
    assert [len(one.file) for one in sent] == [0, FILE_PART, 1]
    assert sent[0].settings == request.settings
