"""Markdown: the examples of the CommonMark and GFM specifications keep their trees, by two parsers, if words change."""

import hashlib
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyromark import Options

from jumok_proto.errors import InvalidArgumentError
from tests.support.files import rewritten
from tests.support.hang import HANG_S
from tests.support.markdown_trees import GFM, second_tree, tree, with_all_words_changed, with_one_word_changed

COMMONMARK = "commonmark-spec@0.31.2"
CMARK_GFM = "pool/main/c/cmark-gfm/cmark-gfm_0.29.0.gfm.6.orig.tar.gz"
CMARK_GFM_SHA256 = "b17d86164c0822b5db3818780b44cb130ff30e9c6ec6a64f199b6d142684dba0"
REFUSED = {"|Tot.....[^_a_]|\n"}
"""Examples with a mark of a note that has marks of its own, and no note: such a text stays, and is reported."""
MODELS = pytest.mark.parametrize("model", [with_one_word_changed, with_all_words_changed])


def examples_of(text: str) -> list[str]:
    found = re.findall(r"^`{32} example[^\n]*\n(.*?)^\.\n", text, re.MULTILINE | re.DOTALL)
    return [example.replace("→", "\t") for example in found]


@pytest.fixture(scope="module")
def examples(made_once: Any) -> list[str]:
    """The examples of CommonMark, from npm: their licence is not ours."""

    def fill(folder: Path) -> None:
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed")
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), COMMONMARK]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
        if done.returncode != 0:
            pytest.skip(f"npm cannot fetch {COMMONMARK} here: {done.stderr.strip()[-300:]}")
        (archive,) = folder.glob("*.tgz")
        shutil.unpack_archive(archive, folder)

    return examples_of((made_once("commonmark-spec", fill) / "package/spec.txt").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def gfm_examples(made_once: Any) -> list[str]:
    """The examples of GFM and of its reference implementation, from the sources of Debian's package."""

    def fill(folder: Path) -> None:
        if shutil.which("apt-get") is None:
            pytest.skip("apt is not installed")
        command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
        mirrors = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S).stdout.split()
        for mirror in dict.fromkeys(mirrors):
            try:
                with urllib.request.urlopen(f"{mirror.rstrip('/')}/{CMARK_GFM}", timeout=HANG_S) as response:
                    data = response.read()
            except (OSError, ValueError):
                continue
            if hashlib.sha256(data).hexdigest() == CMARK_GFM_SHA256:
                (folder / "source.tar.gz").write_bytes(data)
                shutil.unpack_archive(folder / "source.tar.gz", folder, filter="data")
                return
        pytest.skip(f"no mirror of apt has {CMARK_GFM}")

    found = list[str]()
    for path in sorted(made_once("cmark-gfm", fill).glob("*/test/*.txt")):
        found += examples_of(path.read_bytes().decode(errors="replace"))
    return found


def test_identity(examples: list[str]) -> None:
    assert len(examples) == 652
    assert [rewritten(example, "markdown") for example in examples] == examples


@MODELS
def test_trees(examples: list[str], model: Callable[[str], str]) -> None:
    changed = 0
    for example in examples:
        written = rewritten(example, "markdown", model)
        changed += written != example
        assert tree(written, Options(0)) == tree(example, Options(0)), (example, written)
        assert second_tree(written, gfm=False) == second_tree(example, gfm=False), (example, written)
    assert changed > 450


def test_identity_of_gfm(gfm_examples: list[str]) -> None:
    assert len(gfm_examples) == 749
    assert [rewritten(example, "markdown") for example in gfm_examples] == gfm_examples


@MODELS
def test_trees_of_gfm(gfm_examples: list[str], model: Callable[[str], str]) -> None:
    changed = 0
    for example in gfm_examples:
        if example in REFUSED:
            with pytest.raises(InvalidArgumentError, match="its marks cannot be kept"):
                rewritten(example, "markdown", model)
            continue
        written = rewritten(example, "markdown", model)
        changed += written != example
        assert tree(written, GFM) == tree(example, GFM), (example, written)
        if "[^" not in example:  # the second parser has no notes
            assert second_tree(written) == second_tree(example), (example, written)
    assert changed > 500
