"""Clients of translators' platforms from PyPI, unmodified: machinery of Weblate, and wagtail-localize.

They come into a folder of their own, as their licences and dependencies are not the project's.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jumok_serve.translator import Translator
from tests.support.files import THOROUGH
from tests.support.hang import HANG_S
from tests.support.servers.http_server import Served, serving_http

PROGRAMS = Path(__file__).parent / "python_clients"
SOFTWARE = Path(__file__).parents[3] / "models" / "software-en-de"
UNITS = [
    ("Delete %(count)d files from {name}?", "python-format,python-brace-format", ["%(count)d", "{name}"]),
    ("Open %s now.", "c-format", ["%s"]),
    ("Rename the file %s to %s.", "c-format", ["%s", "%s"]),
    ("See https://example.org/help/ for {0}.", "python-brace-format", ["https://example.org/help/", "{0}"]),
    ("The file <b>%s</b> was saved.", "c-format,xml-text", ["<b>", "%s", "</b>"]),
    ("%1$s of %2$s lines", "java-printf-format", ["%1$s", "%2$s"]),
    ("Press {{key}} to stop", "i18next-interpolation", ["{{key}}"]),
    ("100%% of %d pages", "c-format", ["%%", "%d"]),
    ("@:menu.file is open", "vue-format", ["@:menu.file"]),
    ("Mail <a href=\"mailto:a@b.org\">us</a> & wait", "safe-html", ['<a href="mailto:a@b.org">', "</a>"]),
    ("Choose ${item} or $1", "es-format", ["${item}", "$1"]),
]  # fmt: skip
"""Texts of Weblate's units with their flags, and what must come back, each once."""
FRAGMENTS = [
    ('Click <a id="a1">here</a> for <b>more</b> &amp; see {name}.', ['<a id="a1">', "</a>", "<b>", "</b>", "{name}"]),
    ("Save %s<br>now", ["%s", "<br>"]),
    ('Read <a id="a2"></a> on https://example.org/a_b.', ['<a id="a2">', "</a>", "https://example.org/a_b"]),
]

pytestmark = pytest.mark.skipif(not THOROUGH, reason="downloads 400 MB of clients: make thorough")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Translator(SOFTWARE, replicas=1) as translator, serving_http(translator) as served:
        yield served


@pytest.fixture(scope="module")
def clients(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    return made_once("platforms", install)


def install(folder: Path) -> None:
    """Install both clients with those of their requirements that need no compiler."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*pip, "--no-deps", "weblate==5.14.3", "wagtail-localize==1.14.5"], check=True, timeout=HANG_S)
    (metadata,) = folder.glob("weblate-*.dist-info/METADATA")
    required = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata.read_text(encoding="utf-8"), re.MULTILINE)
    unneeded = re.compile(r"(?i)borgbackup|pycairo|pygobject|standardwebhooks")
    wanted = [one for one in required if unneeded.match(one) is None]
    subprocess.run([*pip, "--only-binary", ":all:", *wanted, "wagtail"], check=True, timeout=HANG_S)


def run(clients: Path, program: str, *arguments: str, given: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *arguments],
        input=json.dumps(given),
        env={**os.environ, "PYTHONPATH": str(clients)},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def check(translation: str, wanted: list[str]) -> None:
    for placeholder, count in Counter(wanted).items():
        assert translation.count(placeholder) == count, translation


@pytest.mark.parametrize(("api", "path"), [("LibreTranslate", ""), ("DeepL", "/v2/")])
def test_weblate(clients: Path, served: Served, api: str, path: str) -> None:
    units = [(text, flags) for text, flags, _ in UNITS]
    found = run(clients, "weblate_units.py", api, f"{served.url}{path}", "key", "de", given=units)
    for translation, (_, _, wanted) in zip(found, UNITS, strict=True):
        check(translation, wanted)


def test_wagtail_localize(clients: Path, served: Served) -> None:
    found = run(clients, "wagtail_strings.py", served.url, "", "de", given=[text for text, _ in FRAGMENTS])
    for translation, (_, wanted) in zip(found, FRAGMENTS, strict=True):
        check(translation, wanted)
