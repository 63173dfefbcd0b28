"""Students translate as in the engines that they were made for: Bergamot's, in WebAssembly, and Firefox's."""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from jumok_serve import Translator
from tests.support.checkpoints.marian_folders import STUDENT
from tests.support.checkpoints.tokenizer_checkpoints import lines
from tests.support.hang import HANG_S

FXTRANSLATE = "fxtranslate==0.5.0"
"""Firefox's engine in Rust."""
TEXTS = list(dict.fromkeys(lines("en")))
PROGRAM = Path(__file__).with_name("bergamot.cjs")
PACKAGE = "@browsermt/bergamot-translator@0.4.9"
"""Marian itself, compiled to WebAssembly: an npm package that translates in node."""
INSTALL_S = 250


@pytest.fixture(scope="module")
def bergamot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Bergamot's worker, which lies apart from the package: that has other rules for modules."""
    folder = tmp_path_factory.mktemp("bergamot")
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
    command = ["npm", "install", "--prefix", str(folder), *quiet, PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm has not installed {PACKAGE} within {INSTALL_S} s")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install {PACKAGE} here: {done.stderr.strip()[-300:]}")
    return Path(shutil.copytree(folder / "node_modules/@browsermt/bergamot-translator/worker", folder / "worker"))


def theirs(worker: Path, student: Path, *, shortlist: bool) -> list[str]:
    """Translations of each text alone by Bergamot, so that a shortlist is that of the text."""
    asked = {
        "package": str(worker),
        "model": str(student / STUDENT),
        "vocabularies": [str(student / "vocab.ende.spm")],
        "shortlist": str(student / "lex.50.50.ende.s2t.bin") if shortlist else None,
        "config": {"ssplit-mode": "sentence"},
        "sentences": TEXTS,
    }
    command, given = ["node", str(PROGRAM)], json.dumps(asked)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(student: Path, precision: str, *, shortlist: bool) -> list[str]:
    with Translator(student / "bundle", precision=precision, shortlist=shortlist, threads=1) as translator:
        return [translation.text for translation in translator.translate(TEXTS, beam_size=1, max_length=60)]


def assert_equal(found: Sequence[str], expected: Sequence[str]) -> None:
    """All but one text may be equal: the engines round alike, but add up in other orders."""
    assert len({*expected}) > len(expected) // 2
    different = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
    assert len(different) <= 1, different


@pytest.mark.parametrize("shortlist", [False, True])
def test_a_student_translates_as_in_bergamot(student: Path, bergamot: Path, shortlist: bool) -> None:
    expected = theirs(bergamot, student, shortlist=shortlist)
    assert_equal(ours(student, "int8", shortlist=shortlist), expected)


@pytest.mark.parametrize("shortlist", [False, True])
def test_a_student_translates_as_in_firefox(
    student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortlist: bool
) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if subprocess.run([*install, "--target", tmp_path, FXTRANSLATE], check=False, timeout=HANG_S).returncode:
        pytest.skip(f"pip cannot install {FXTRANSLATE} here")
    monkeypatch.syspath_prepend(tmp_path)
    fxtranslate = importlib.import_module("fxtranslate")
    vocabulary = (student / "vocab.ende.spm").read_bytes()
    peer = fxtranslate.Translator(
        model=(student / STUDENT).read_bytes(),
        src_vocab=vocabulary,
        trg_vocab=vocabulary,
        shortlist=(student / "lex.50.50.ende.s2t.bin").read_bytes() if shortlist else None,
    )
    assert_equal(ours(student, "int8", shortlist=shortlist), [peer.translate(text) for text in TEXTS])


def test_native_graphs_translate_as_plain_ones(student: Path) -> None:
    native = ours(student, "int8", shortlist=True)
    assert sum(one != other for one, other in zip(native, ours(student, "fp32", shortlist=True), strict=True)) < 5
