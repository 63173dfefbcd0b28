"""Clients from npm, unmodified: libretranslate and deepl-node."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jumok_serve import GlossaryStore
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.translator import Translator
from tests.support.hang import HANG_S
from tests.support.servers.http_server import serving_http
from tests.support.servers.tokens import token_file

PROGRAM = Path(__file__).parent / "npm"
TEXT = "a man in a blue shirt"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("http-clients")
    for file in PROGRAM.iterdir():
        shutil.copy(file, folder)
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
    installed = subprocess.run(
        ["npm", "install", *quiet], cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S
    )
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install the clients here: {installed.stderr.strip()[-300:]}")
    return folder


def run(program: Path, url: str, key: str) -> dict[str, Any]:
    done = subprocess.run(
        ["node", "client.js", url, key, TEXT],
        cwd=program,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_deepl_node(program: Path, translator: Translator, tmp_path: Path) -> None:
    file, (secret,) = token_file(tmp_path, "node")
    limits = ServiceLimits(requests_per_second=0.001, request_burst=40)
    glossaries = GlossaryStore(tmp_path / "glossaries")
    with serving_http(translator, tokens=TokenFile(file), limits=limits, glossaries=glossaries) as served:
        found = run(program, served.url, secret)
    expected = [one.text for one in translator.translate([TEXT, "a dog"])]
    assert [one["text"] for one in found["translated"]] == expected
    assert [one["billedCharacters"] for one in found["translated"]] == [len(TEXT), 5]
    assert [one["code"] for one in found["sources"]] == ["en"]
    assert [(one["code"], one["name"]) for one in found["targets"]] == [("de", "German")]
    assert found["usage"]["character"]["count"] == len(TEXT) + 5
    check_glossaries(found["glossaries"])
    assert found["badLanguage"]["kind"] == "DeepLError"
    assert "target_lang" in found["badLanguage"]["message"]
    assert found["wrongKey"]["kind"] == "AuthorizationError"
    assert found["tooOften"]["kind"] == "TooManyRequestsError"


def check_glossaries(found: dict[str, Any]) -> None:
    assert (found["made"]["sourceLang"], found["made"]["targetLang"], found["made"]["entryCount"]) == ("en", "de", 1)
    assert "Hemdchen" in found["used"]["text"]
    assert found["listed"] == [found["made"]]
    assert found["read"] == {"shirt": "Hemdchen"}
    assert [one["entryCount"] for one in found["changed"]["dictionaries"]] == [2]
    assert found["both"] == {"shirt": "Hemdchen", "man": "Kerl"}
    assert found["replaced"]["entryCount"] == 1
    assert found["missing"]["kind"] == "GlossaryNotFoundError"
    assert found["left"] == []


def test_libretranslate(program: Path, translator: Translator) -> None:
    limits = ServiceLimits(requests_per_second=0.001, request_burst=10)
    with serving_http(translator, limits=limits) as served:
        found = run(program, served.url, "any")
    assert found["libretranslate"] == translator.translate(TEXT, split_sentences=True).text
