"""README files of 200 npm packages: links, pictures, code and all other structure stay if words change."""

import hashlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.files import rewritten
from tests.support.markdown_trees import second_tree, tree, with_all_words_changed, with_one_word_changed

LIST = Path(__file__).with_name("npm_readmes.txt")
"""Packages with their versions, and the SHA-256 of each README file."""
FETCH_S = 300


def readme(archive: Path) -> bytes:
    with tarfile.open(archive) as packed:
        for member in packed:
            if member.isfile() and re.fullmatch(r"[^/]+/readme\.(?:md|markdown)", member.name, re.IGNORECASE):
                file = packed.extractfile(member)
                assert file is not None
                return file.read()
    return b""


def fetch(packages: Sequence[str], folder: Path) -> Iterator[bytes]:
    command = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)
    if done.returncode != 0:
        pytest.skip(f"npm cannot fetch {packages[0]} and others here: {done.stderr.strip()[-300:]}")
    for archive in folder.glob("*.tgz"):
        yield readme(archive)
        archive.unlink()


@pytest.fixture(scope="module")
def readmes(made_once: Any) -> list[str]:
    hashes = {line.split()[1] for line in LIST.read_text(encoding="utf-8").splitlines()}
    packages = [line.split()[0] for line in LIST.read_text(encoding="utf-8").splitlines()]

    def fill(folder: Path) -> None:
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed")
        for first in range(0, len(packages), 20):
            for content in fetch(packages[first : first + 20], folder):
                (folder / hashlib.sha256(content).hexdigest()).write_bytes(content)

    folder = made_once("npm-readmes", fill)
    assert {path.name for path in folder.iterdir()} == hashes
    return [path.read_bytes().decode("utf-8-sig") for path in sorted(folder.iterdir())]


def test_identity(readmes: list[str]) -> None:
    assert len(readmes) == 200
    assert all(rewritten(content, "markdown") == content for content in readmes)


@pytest.mark.parametrize("model", [with_one_word_changed, with_all_words_changed])
def test_trees(readmes: list[str], model: Any) -> None:
    for content in readmes:
        written = rewritten(content, "markdown", model)
        assert written != content
        assert tree(written) == tree(content)
        assert second_tree(written) == second_tree(content)
