"""PO of source packages without their translations: other words are put in, and gettext finds no error."""

import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import polib
import pytest

from tests.serve.text.files.test_po import checked, swapped
from tests.support.files import THOROUGH, rewritten

SOURCES = Path(os.environ.get("JUMOK_PO_SOURCES", ""))
MAX_SIZE = 8_000_000
NAMES = re.compile(r"(?:^|/)(?:de|fr|ko|sl)(?:\.po|/[^/]*\.po|/LC_MESSAGES/[^/]*\.po)$")

pytestmark = pytest.mark.skipif(
    not (THOROUGH and os.environ.get("JUMOK_PO_SOURCES")),
    reason="thorough tests only; JUMOK_PO_SOURCES must be a folder of archives, as apt-get source makes them",
)


def catalogues() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each PO file of the archives."""
    for path in sorted(SOURCES.glob("*.tar.*")):
        if path.suffix not in {".asc", ".sig"}:
            with tarfile.open(path) as archive:
                for member in archive:
                    found = archive.extractfile(member) if NAMES.search(member.name) else None
                    if found is not None and member.size < MAX_SIZE:
                        yield f"{path.name}: {member.name}", found.read()


def test_catalogues_of_packages(tmp_path: Path) -> None:
    packages, files, messages = set[str](), 0, 0
    for name, data in catalogues():
        path = tmp_path / "a.po"
        path.write_bytes(data)
        convert = ["msgconv", "--to-code=UTF-8", "-o", str(path), str(path)]
        if subprocess.run(convert, capture_output=True, check=False).returncode:
            continue  # no PO
        content = path.read_text(encoding="utf-8")
        catalogue = polib.pofile(content)
        if checked(content, tmp_path) or "nplurals=" not in catalogue.metadata.get("Plural-Forms", ""):
            continue  # gettext refuses plural forms without a rule
        for entry in [*catalogue]:
            entry.msgstr, entry.msgstr_plural = "", dict.fromkeys(entry.msgstr_plural, "")
            entry.flags = [flag for flag in entry.flags if flag != "fuzzy"]
            if entry.obsolete:
                catalogue.remove(entry)
        written = rewritten(str(catalogue), "po", swapped)
        assert checked(written, tmp_path) == "", name
        made = polib.pofile(written)
        assert made.percent_translated() == 100 or not made, name
        packages.add(name.partition("_")[0])
        files, messages = files + 1, messages + len(made)
    print(f"{len(packages)} packages, {files} files, {messages} messages")
    assert files
