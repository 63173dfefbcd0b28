"""Files of the playground: policy, caching, and a server without the page."""

import re
import urllib.error
import urllib.request
from email.message import Message
from itertools import chain

import pytest

from jumok_proto.file_formats import FILE_FORMATS
from jumok_serve.http.playground.page import ENDINGS, FILES
from jumok_serve.translator import Translator
from tests.support.hang import HANG_S
from tests.support.servers.http_server import Served, serving_http


def fetch(url: str, **headers: str) -> tuple[int, "Message[str, str]", bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=HANG_S) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_all_files_are_served_under_a_strict_policy(served: Served) -> None:
    for path in FILES.iterdir():
        url = f"{served.url}/" if path.name == "index.html" else f"{served.url}/playground/{path.name}"
        status, headers, content = fetch(url)
        assert (status, content) == (200, path.read_bytes().replace(b"{endings}", ENDINGS.encode()))
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == policy["trusted-types"] == policy["frame-ancestors"] == "'none'"
        assert {policy[f"{kind}-src"] for kind in ("connect", "img", "script", "style")} == {"'self'"}
        assert headers["X-Content-Type-Options"] == "nosniff"
        again, _, nothing = fetch(url, **{"If-None-Match": headers["ETag"]})
        assert (again, nothing) == (304, b"")


def test_the_page_has_nothing_inline_or_from_elsewhere() -> None:
    page = (FILES / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=|<style", page) == []
    for path in FILES.iterdir():
        found = re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"']*", path.read_text(encoding="utf-8"))
        assert [one for one in found if one != "http://www.w3.org/2000/svg"] == []
    assert not [
        path for path in FILES.glob("*.js") if re.search(r"innerHTML|outerHTML|eval\(", path.read_text("utf-8"))
    ]


def test_scripts_export_what_others_import() -> None:
    scripts = {path.name: path.read_text(encoding="utf-8") for path in FILES.glob("*.js")}
    imports = [
        (name.strip(), source)
        for script in scripts.values()
        for names, source in re.findall(r"import \{([^}]*)\} from '\./([^']*)'", script)
        for name in names.split(",")
    ]
    assert len(imports) > len(scripts)
    for name, source in imports:
        exported = rf"^export (async function|function|const|let|class) {re.escape(name)}(?!\w)"
        assert re.search(exported, scripts[source], re.MULTILINE), (name, source)


def test_the_page_takes_files_of_all_formats(served: Served) -> None:
    page = fetch(f"{served.url}/")[2].decode()
    (accepted,) = re.findall(r'accept="([^"]*)"', page)
    endings = list(dict.fromkeys(f".{name.split('.')[-1]}" for name in chain.from_iterable(FILE_FORMATS.values())))
    assert accepted.split(", ") == [*endings, "text/plain"]
    assert f"</span> {', '.join(endings)}</p>" in page


@pytest.mark.parametrize("path", ["/", "/playground/main.js"])
def test_the_page_can_be_left_out(translator: Translator, path: str) -> None:
    with serving_http(translator, front={"playground": False}) as served:
        assert fetch(served.url + path)[0] == 404


@pytest.mark.parametrize(
    "path", ["/playground/", "/playground/../settings.py", "/playground/%2e%2e/page.py", "/playground/x"]
)
def test_other_files_are_not_served(served: Served, path: str) -> None:
    assert fetch(served.url + path)[0] == 404
