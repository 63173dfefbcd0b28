"""`jumok serve ORG/NAME`: imported at the first start, served from the cache ever after."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jumok import Client
from jumok_export.importers.hub import import_lock
from jumok_serve.cache import HubName, cached_models
from tests.parity.checkpoints import make_checkpoint
from tests.parity.run import quiet
from tests.parity.shapes import SHAPES
from tests.support import command
from tests.support.checkpoints.hub import Hub, serve_hub
from tests.support.command import JUMOK
from tests.support.hang import HANG_S


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with an untrained checkpoint."""
    shape = next(shape for shape in SHAPES if shape.name == "marian-3-heads")
    with quiet():
        folder = make_checkpoint(replace(shape, steps=1), tmp_path_factory.mktemp("hub") / "tiny").folder
    with serve_hub({"org/tiny": folder}) as served:
        yield served


@pytest.fixture(autouse=True)
def cache(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, also in child processes, which use the hub."""
    monkeypatch.setenv("JUMOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name, value in hub.environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "cache"


def translated() -> tuple[str, str]:
    """A translation by a server of the named model, and the server's standard error."""
    with command.serve("org/tiny") as (process, address):
        with Client(address) as client:
            text = client.translate("the old dog sees a bird .").text
        process.send_signal(signal.SIGTERM)
        return text, process.communicate(timeout=HANG_S)[1]


def test_the_first_start_imports_and_later_ones_do_not(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, said = translated()
    assert f"importing org/tiny, once, into {cache}/bundles/org/tiny" in said
    assert f"downloading org/tiny, commit {hub.commit('org/tiny')}: " in said
    assert "is a Hugging Face checkpoint" in said
    assert f"wrote {cache}/bundles/org/tiny: tiny 1, fp32 " in said
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shown = command.run_here("inspect", "--all", cache / "bundles/org/tiny").stdout.decode()
    assert f"checkpoint    tiny, commit {hub.commit('org/tiny')[:12]}, saved by transformers " in shown
    again, said = translated()
    assert again == expected
    assert "importing" not in said
    assert hub.requests == []


def test_an_import_that_fails_ends_the_start(cache: Path) -> None:
    done = command.run("serve", "org/missing", "--port", "0")
    assert done.returncode == 1
    assert b"Error: org/missing is not at " in done.stderr
    assert done.stdout == b""
    assert not (cache / "bundles/org/missing").exists()


def test_without_the_extra_the_error_names_it() -> None:
    program = "import sys; sys.modules['torch'] = None; import runpy; runpy.run_module('jumok', run_name='__main__')"
    command_line = [sys.executable, "-c", program, "import", "org/tiny"]
    done = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'jumok[serve,import]'" in done.stderr


def waiting(*arguments: str) -> subprocess.Popen[str]:
    """A command that waits for the import of another process."""
    process = subprocess.Popen([*JUMOK, *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "waiting for another process that imports org/tiny" not in (line := process.stderr.readline()):
        assert line, "the process ended"
    return process


def test_an_import_under_way_is_waited_for(tiny_bundle: Path) -> None:
    name = HubName("org/tiny")
    with import_lock(name, pytest.fail):
        process = waiting("import", "org/tiny")
        shutil.copytree(tiny_bundle, name.bundle)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert f"org/tiny is in the cache, in {name.bundle}; --overwrite imports it again" in err


def test_a_server_that_is_stopped_ends_its_import() -> None:
    with import_lock(HubName("org/tiny"), pytest.fail):
        process = waiting("serve", "org/tiny", "--port", "0")
        process.send_signal(signal.SIGTERM)
        # The pipe ends when both processes have ended.
        _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_the_cache_is_listed_and_cleaned(tiny_bundle: Path) -> None:
    for name in (HubName("org/tiny"), HubName("org/tiny", "v1")):
        shutil.copytree(tiny_bundle, name.bundle)
    listed = command.run_here("cache", "list").stdout.decode().splitlines()
    assert [line.split("\t")[0] for line in listed] == ["org/tiny", "org/tiny@v1"]
    assert listed[0].endswith(f"\t{HubName('org/tiny').bundle}")
    done = command.run_here("cache", "remove", "org/tiny", "org/other")
    assert done.returncode == 2
    assert b"'org/other' is not in the cache; 'jumok cache list' has its models" in done.stderr
    assert command.run_here("cache", "remove", "org/tiny").returncode == 0
    assert list(cached_models()) == [HubName("org/tiny", "v1")]
    assert command.run_here("cache", "remove", "org/tiny@v1").returncode == 0
    empty = command.run_here("cache", "list")
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, b"", b"no model was imported by name yet\n")


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    done = command.run_here("import", "missing", "--out", tmp_path / "bundle")
    assert done.returncode == 2
    assert b"'missing' does not exist; a name of the Hugging Face Hub is ORG/NAME, such as Helsinki-NLP/" in done.stderr
    done = command.run_here("import", tmp_path)
    assert b"Missing option '--out': give the folder of the new bundle" in done.stderr
