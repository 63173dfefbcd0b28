"""Marian itself, compiled to WebAssembly: an npm package that translates in node."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PROGRAM = Path(__file__).with_name("bergamot.cjs")
PACKAGE = "@browsermt/bergamot-translator@0.4.9"
INSTALL_S = 250


class Translated(NamedTuple):
    """Translations, and the seconds that they took."""

    texts: list[str]
    seconds: float


class NotInstallableError(Exception):
    """The package cannot be installed; the message says why."""


def install(folder: Path) -> Path:
    """Install the package once; returns the folder of its worker.

    The worker lies apart from the package, which has other rules for modules.

    Raises:
        NotInstallableError: node or npm is missing, or npm reaches no registry.
    """
    worker = folder / "worker"
    if worker.exists():
        return worker
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NotInstallableError("node and npm are not installed")
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
    command = ["npm", "install", "--prefix", str(folder), *quiet, PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    except subprocess.TimeoutExpired as error:
        raise NotInstallableError(f"npm has not installed {PACKAGE} within {INSTALL_S} s") from error
    if done.returncode != 0:
        raise NotInstallableError(f"npm cannot install {PACKAGE} here: {done.stderr.strip()[-300:]}")
    shutil.copytree(folder / "node_modules/@browsermt/bergamot-translator/worker", worker)
    return worker


def translate(
    worker: Path, model: Path, vocabulary: Path, texts: Sequence[str], *, shortlist: Path | None, timeout_s: float
) -> Translated:
    """Translate each text alone, so that a shortlist is that of the text.

    Raises:
        RuntimeError: the engine fails.
    """
    asked = {
        "package": str(worker),
        "model": str(model),
        "vocabularies": [str(vocabulary)],
        "shortlist": None if shortlist is None else str(shortlist),
        "config": {"ssplit-mode": "sentence"},
        "sentences": list(texts),
    }
    command, given = ["node", str(PROGRAM)], json.dumps(asked)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=timeout_s)
    if done.returncode != 0:
        raise RuntimeError(f"Bergamot's engine fails: {done.stderr[-2000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return Translated(answer["texts"], answer["seconds"])
