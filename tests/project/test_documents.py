"""Commands and examples of all documents run, and every link and anchor resolves.

The fenced blocks of kind ``sh`` of a document run in order, and then those of kind ``python``, each as a program of its
own. They run in a folder that looks like a checkout: the committed model with a configuration that trains in no time, a
small corpus under Multi30k's file names, tiny checkpoints in ``checkpoints``, ``sentences.txt`` and ``.venv``.
Differences from a reader's terminal:

- a block that begins with ``jumok serve`` runs in the background until the document's end; one server of the session
  stands for those that serve the committed model with no other option;
- a block that a page repeats runs with that page only (`REPEATED`);
- ports 50051 and 8080 are free ports;
- the Hugging Face Hub is a server on this machine, which has a tiny checkpoint under a published one's name;
- ``make`` is a dry run: ``.ci/run`` runs the targets that newcomers run first;
- ``pip`` does nothing: `tests/project/test_packaging.py` installs the extras;
- ``docker`` and ``kubectl`` do nothing: `tests/project/test_deployment.py` tests their files.
"""

import gzip
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from jumok_proto.errors import JumokError
from tests.parity.texts import parallel_sentences
from tests.support.checkpoints.hub import Hub, serve_hub
from tests.support.hang import HANG_S
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"
MODEL = "models/multi30k-en-de-transformer"
RUN_ELSEWHERE = {
    "docs/own-model.md": "tests/export/bundles/test_own_model.py",
    "docs/attention.ko.md": "tests/project/test_attention_page.py",
    "docs/operations/ray.md": "tests/serve/ray/test_cluster.py",
}
"""Documents whose examples have a test of their own, which also checks the results."""
README = ROOT / "README.md"
PAGES = sorted(ROOT.glob("docs/**/*.md"))
REPEATED = {README: PAGES, ROOT / "docs/models.md": [ROOT / "docs/import.md"]}
"""Pages that repeat blocks of a document; no later block of the document may need what these leave behind."""
DOCUMENTS = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")), *PAGES]
SERVE = f"jumok serve {MODEL} --port 50051\n"
SHELL = """
make() { command make --dry-run --directory "$REPOSITORY" "$@"; }
pip() { case $1 in download | install) ;; *) return 1 ;; esac; }
docker() { case $1 in build | run | compose) ;; *) return 1 ;; esac; }
kubectl() {
    case "$1 $2" in
        "apply -f" | "delete -f") [ -e "$REPOSITORY/$3" ] ;;
        "create secret") eval "[ -f \\"\\${$#}\\" ]" ;;
        *) return 1 ;;
    esac
}
"""
ALONE = "exec({!r}, {{'__name__': '__main__'}})"
"""Runs a program with its own names; a process for each program would take longer."""
BLOCK_S = HANG_S
RECURRENT = """
[model]
family = "recurrent"
embedding = 16
width = 16
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    kind: str
    text: str


def blocks(document: Path) -> Iterator[Block]:
    """The blocks of a document, which may stand in lists."""
    text = document.read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        lines = (line.removeprefix(found[1]) for line in found[3].splitlines(keepends=True))
        yield Block(found[2], "".join(lines))


@dataclass(frozen=True)
class Reader:
    """A terminal in a folder, with a port for servers and a hub of models."""

    folder: Path
    port: int
    hub: Hub | None = None
    http_port: int = field(default_factory=free_port)

    @property
    def _variables(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        here = {"PATH": path, "JUMOK_SERVER": f"localhost:{self.port}", "REPOSITORY": str(ROOT)}
        hub = {} if self.hub is None else self.hub.environment(self.folder / "hub")
        return os.environ | here | hub

    def _here(self, text: str) -> str:
        """Replace the documents' ports."""
        return text.replace("50051", str(self.port)).replace("8080", str(self.http_port))

    def run(self, *command: str) -> None:
        """Run a command to its end; it must succeed."""
        done = subprocess.run(
            [self._here(argument) for argument in command],
            cwd=self.folder,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_S,
            check=False,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}"

    @contextmanager
    def serve(self, text: str) -> Iterator[None]:
        """Run a block that serves, and stop it with SIGTERM."""
        (command,) = self._here(text).replace("\\\n", " ").splitlines()
        with subprocess.Popen(
            ["sh", "-euc", f"exec {command}"],
            cwd=self.folder,
            env=self._variables,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline().startswith(f"serving on 127.0.0.1:{self.port}: ")
                yield
                server.send_signal(signal.SIGTERM)
                assert server.wait(HANG_S) == 0
            finally:
                server.kill()


@pytest.fixture(scope="session")
def checkpoints(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """Untrained checkpoints in each format."""

    def make(folder: Path) -> None:
        from ctranslate2.converters import TransformersConverter  # imports PyTorch, as the next four do

        from tests.parity.checkpoints import make_checkpoint
        from tests.parity.run import quiet
        from tests.parity.shapes import SHAPES
        from tests.support.checkpoints.marian_folders import write_student

        shapes = {shape.name: shape for shape in SHAPES}
        with quiet():
            for name, shape in (("opus-mt-en-de", "marian-3-heads"), ("nllb", "nllb"), ("t5", "mt5")):
                make_checkpoint(replace(shapes[shape], steps=1), folder / name)
            TransformersConverter(str(folder / "opus-mt-en-de")).convert(str(folder / "ct2-en-de"))
        for name in ("source.spm", "target.spm"):
            shutil.copy(folder / "opus-mt-en-de" / name, folder / "ct2-en-de")
        with zipfile.ZipFile(folder / "translate-en_de-1_9.argosmodel", "w") as package:
            package.writestr("translate-en_de-1_9/metadata.json", '{"from_code": "en", "to_code": "de"}')
            package.write(folder / "ct2-en-de/source.spm", "translate-en_de-1_9/sentencepiece.model")
            for file in (folder / "ct2-en-de").iterdir():
                package.write(file, f"translate-en_de-1_9/model/{file.name}")
        (folder / "ende").mkdir()
        write_student(folder / "ende")

    return made_once("checkpoints", make)


@pytest.fixture(scope="session")
def hub(checkpoints: Path) -> Iterator[Hub]:
    """A hub with one of the checkpoints."""
    with serve_hub({"Helsinki-NLP/opus-mt-en-de": checkpoints / "opus-mt-en-de"}) as served:
        yield served


@pytest.fixture(scope="session")
def server_port() -> Iterator[int]:
    """Port of a server that all documents share."""
    server = Reader(ROOT, free_port())
    with server.serve(SERVE):
        yield server.port


@pytest.fixture
def reader(checkpoints: Path, hub: Hub, tmp_path: Path) -> Reader:
    shutil.copytree(ROOT / MODEL, tmp_path / MODEL)
    for name in ("software-en-de", "software-en-ko", "software-ko-en"):
        (tmp_path / "models" / name).symlink_to(ROOT / "models" / name)
    shutil.copytree(checkpoints, tmp_path / "checkpoints")
    sentences = (f"{sentence.english}\n" for sentence in parallel_sentences(20, seed=1))
    (tmp_path / "sentences.txt").write_text("".join(sentences), encoding="utf-8")
    configuration = (DATA / "tiny.toml").read_text(encoding="utf-8")
    # Exporting a recurrent model takes a fraction of the time.
    configuration = re.sub(r"\[model\][^\[]*", f"{RECURRENT}\n", configuration)
    (tmp_path / MODEL / "config.toml").write_text(configuration, encoding="utf-8")
    (tmp_path / "corpus").mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            lines = (DATA / f"train.{language}").read_bytes()
            (tmp_path / f"corpus/{part}.{language}.gz").write_bytes(gzip.compress(lines))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(Path(sys.executable).parent)
    shutil.copy(ROOT / ".pre-commit-config.yaml", tmp_path)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return Reader(tmp_path, free_port(), hub)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_examples_run(document: Path, request: pytest.FixtureRequest) -> None:
    elsewhere = RUN_ELSEWHERE.get(str(document.relative_to(ROOT)))
    if elsewhere is not None:
        assert document.name in (ROOT / elsewhere).read_text(encoding="utf-8")
        return
    repeated = {block for page in REPEATED.get(document, ()) for block in blocks(page)}
    found = [block for block in blocks(document) if block.text == SERVE or block not in repeated]
    if not any(block.kind in {"sh", "python"} for block in found):
        return
    reader: Reader = request.getfixturevalue("reader")
    if Block("sh", SERVE) in found:
        reader = replace(reader, port=request.getfixturevalue("server_port"))
    programs = [block.text for block in found if block.kind == "python"]
    with ExitStack() as servers:
        for block in found:
            if block.kind != "sh" or block.text == SERVE:
                continue
            if block.text.startswith("jumok serve"):
                servers.enter_context(reader.serve(block.text))
            else:
                reader.run("sh", "-euc", SHELL + block.text)
        if programs:
            reader.run(sys.executable, "-W", "error", "-c", "\n".join(map(ALONE.format, programs)))


def without_blocks(document: Path) -> str:
    """A document's text without its fenced blocks."""
    text = document.read_text(encoding="utf-8")
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_anchors_resolve(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", without_blocks(document))
    broken = []
    for path, anchor in links:
        if path.startswith("https://"):
            continue
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}")
    assert broken == []


def test_files_that_the_architecture_names_exist() -> None:
    """A name may leave out the first folders."""
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    packages = ("proto", "clients/python", "serve", "export", "tests")
    paths = {f"/{path.relative_to(ROOT)}" for folder in packages for path in (ROOT / folder).rglob("*.py")}
    paths.add("/hatch_build.py")
    assert {"importers/recognition.py", "runtime/loader.py"} <= set(named)
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in paths)] == []


def test_troubleshooting_has_every_reason() -> None:
    def reasons(error: type[JumokError]) -> set[str]:
        return {error.reason}.union(*map(reasons, error.__subclasses__()))

    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    assert reasons(JumokError) - {""} == set(re.findall(r"^## ([A-Z_]+)$", page, re.MULTILINE))


def test_pictures_are_those_that_the_script_draws() -> None:
    script = runpy.run_path(str(ROOT / "docs/pictures/draw.py"))
    for name, draw in script["PICTURES"].items():
        assert (ROOT / f"docs/pictures/{name}.svg").read_text(encoding="utf-8") == draw().svg()


def test_blocks_say_what_they_are() -> None:
    """Blocks that do not run are plain text or data."""
    kinds = {block.kind for document in DOCUMENTS for block in blocks(document)}
    assert {"sh", "python"} <= kinds <= {"sh", "python", "text", "toml", "json"}


def test_extras_exist() -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        extras = set(tomllib.load(stream)["project"]["optional-dependencies"])
    named = re.findall(
        r"pip install (?:--editable )?'\.\[([\w,-]+)\]'",
        "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS),
    )
    assert named
    assert {extra for group in named for extra in group.split(",")} <= extras


def test_make_targets_run_in_ci() -> None:
    """Targets that newcomers run first; ``check`` is lint and types."""
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert set(re.findall(r"make ([\w-]+)", ci)) == {"lint", "types", "kernels-check", "demo", "test-all"}
    dry = subprocess.run(["make", "-C", ROOT, "--dry-run", "check"], capture_output=True, text=True, check=True)
    for command in ("ruff check", "ruff format --check", "mypy"):
        assert f"/{command}\n" in dry.stdout
