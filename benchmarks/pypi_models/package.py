"""A package with a trained model: its installation, its mapping, and its own output."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from torch import Tensor, nn

from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.tokenizers.tokenizer import Tokenizer

TEXTS = Path(__file__).with_name("texts.toml")

Answer = Callable[[str], str]
"""Returns the package's own output for a text."""


def below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take the weights whose names begin with a prefix, which is left out."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def fill(model: nn.Module, part: str, weights: Mapping[str, Tensor], prefix: str = "") -> None:
    """Load weights, or those below a prefix, into a part of a model; all of its parameters must be there."""
    model.get_submodule(part).load_state_dict(below(weights, prefix))


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """A package's model in this project's parts; the fields are arguments of `export_bundle`."""

    model: nn.Module
    tokenizer: Tokenizer
    special_tokens: SpecialTokens
    languages: Languages
    limits: Limits
    generation: GenerationDefaults | None = None


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of PyPI that ships a trained model.

    Attributes:
        requirement: name and version.
        needs: requirements of its code or its weights' format that this project does not have.
        kind: the model, for the table.
        mapped: maps the weights of the package in a folder onto this project's models.
        answer: loads the package from a folder, in a process of its own.
    """

    requirement: str
    needs: Sequence[str] = field(default=())
    kind: str
    mapped: Callable[[Path], Mapped]
    answer: Callable[[Path], Answer]

    @property
    def name(self) -> str:
        """The package's name."""
        return self.requirement.partition("==")[0]

    def texts(self, seed: int, number: int) -> list[str]:
        """Draw different texts, the same for a seed."""
        parts = tomllib.loads(TEXTS.read_text(encoding="utf-8"))[self.name]
        random, between, drawn = Random(seed), parts.get("between", ""), dict[str, None]()
        while len(drawn) < number:
            chosen = (random.choice(column.split()) for column in parts["columns"])
            drawn[between.join(part for part in chosen if part != "-")] = None
        return list(drawn)

    def install(self, folder: Path) -> Path:
        """Install the package without its dependencies into a folder of its own, once.

        Raises:
            subprocess.CalledProcessError: pip fails, for example because it reaches no registry.
        """
        target, wanted = folder / self.requirement, [self.requirement, *self.needs]
        done = target / ".installed"
        if not done.exists() or done.read_text(encoding="utf-8").split() != wanted:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*command, "--upgrade", "--target", str(target), *wanted], check=True)
            done.write_text("\n".join(wanted), encoding="utf-8")
        return target


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let Python find a package in a folder, after everything that is installed."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def answers(name: str, folder: Path, texts: Sequence[str]) -> list[str]:
    """Return the package's own outputs, from a process of its own.

    Raises:
        RuntimeError: the package fails.
    """
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.pypi_models.answers", name, str(folder)]
    alone = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=alone, input=json.dumps(texts), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} fails: {done.stderr[-2000:]}")
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found
