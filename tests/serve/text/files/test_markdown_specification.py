"""Markdown: the examples of the CommonMark specification keep their trees, by two parsers, if words change."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyromark import Options

from tests.support.files import rewritten
from tests.support.hang import HANG_S
from tests.support.markdown_trees import second_tree, tree, with_all_words_changed, with_one_word_changed

PACKAGE = "commonmark-spec@0.31.2"


@pytest.fixture(scope="module")
def examples(made_once: Any) -> list[str]:
    """The examples, from npm: their licence is not ours."""

    def fill(folder: Path) -> None:
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed")
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
        if done.returncode != 0:
            pytest.skip(f"npm cannot fetch {PACKAGE} here: {done.stderr.strip()[-300:]}")
        (archive,) = folder.glob("*.tgz")
        shutil.unpack_archive(archive, folder)

    text = (made_once("commonmark-spec", fill) / "package/spec.txt").read_text(encoding="utf-8")
    found = re.findall(r"^`{32} example\n(.*?)^\.\n", text, re.MULTILINE | re.DOTALL)
    return [example.replace("→", "\t") for example in found]


def test_identity(examples: list[str]) -> None:
    assert len(examples) == 652
    assert [rewritten(example, "markdown") for example in examples] == examples


@pytest.mark.parametrize("model", [with_one_word_changed, with_all_words_changed])
def test_trees(examples: list[str], model: Any) -> None:
    changed = 0
    for example in examples:
        written = rewritten(example, "markdown", model)
        changed += written != example
        assert tree(written, Options(0)) == tree(example, Options(0)), (example, written)
        assert second_tree(written, gfm=False) == second_tree(example, gfm=False), (example, written)
    assert changed > 450
