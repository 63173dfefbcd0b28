"""Downloads from a hub on this machine: verified, resumed, and refused with a remedy."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.checkpoints.hub import TOKEN, Hub, serve_hub
from tests.support.hang import HANG_S

DOWNLOAD = """
import sys
from jumok_export.importers.hub import HubError, download
from jumok_serve.cache import parse_hub_name

try:
    print(download(parse_hub_name(sys.argv[1]), lambda line: print(line, file=sys.stderr)))
except HubError as error:
    sys.exit(str(error))
"""
WEIGHTS = bytes(range(256)) * 300
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "vocab.json": b'{"a": 0}', "source.spm": b"pieces"}
OTHERS = {
    "pytorch_model.bin": b"the same weights",
    "tf_model.h5": b"TensorFlow",
    "README.md": b"#",
    "optimizer.bin": b"",
}
"""Files that an import does not need."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in (FILES | OTHERS).items():
        (folder / name).write_bytes(content)
    with serve_hub({"org/tiny": folder}) as served:
        yield served


Fetch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path) -> Fetch:
    """Download a model in a process of its own, with its variables."""

    def run(
        name: str = "org/tiny", *, most_bytes: int | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        def limit() -> None:
            if most_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

        return subprocess.run(
            [sys.executable, "-c", DOWNLOAD, name],
            env=os.environ | hub.environment(tmp_path / "home") | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
            preexec_fn=limit,
        )

    return run


def refused(done: subprocess.CompletedProcess[str], problem: str) -> None:
    assert done.returncode == 1
    assert problem in done.stderr


def test_only_needed_files_are_downloaded_of_one_commit(hub: Hub, fetch: Fetch) -> None:
    done = fetch()
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.name == hub.commit("org/tiny")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES
    assert f"downloading org/tiny, commit {folder.name}: 4 of 4 files, 0.1 MB" in done.stderr
    hub.requests.clear()
    again = fetch("hf:org/tiny@v1")
    assert Path(again.stdout.strip()) == folder
    assert ": 0 of 4 files, 0.0 MB" in again.stderr
    assert not [path for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path]


def test_weights_without_safetensors_are_downloaded(hub: Hub, fetch: Fetch) -> None:
    (hub.models["org/tiny"] / "model.safetensors").unlink()
    done = fetch()
    files = {file.name for file in Path(done.stdout.strip()).iterdir()}
    assert files == {*FILES, "pytorch_model.bin"} - {"model.safetensors"}


def test_a_dropped_connection_is_resumed(hub: Hub, fetch: Fetch) -> None:
    weights = bytes(range(256)) * (12 * 2**12)  # the library keeps whole parts of 10 MiB
    (hub.models["org/tiny"] / "model.safetensors").write_bytes(weights)
    (hub.models["org/tiny"] / "source.spm").unlink()
    hub.drop_after = 11 * 2**20
    done = fetch()
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == weights
    assert [one for method, path, one in hub.requests if method == "GET" and path.endswith(".safetensors")] == [
        None,
        f"bytes={10 * 2**20}-",
    ]


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.json"])
def test_damaged_content_is_refused_and_downloaded_again(name: str, hub: Hub, fetch: Fetch) -> None:
    hub.damaged = name
    refused(fetch(), f"{name} was damaged on its way, and is removed: run the command again")
    hub.damaged = None
    done = fetch()
    assert done.returncode == 0, done.stderr
    assert {file.name: file.read_bytes() for file in Path(done.stdout.strip()).iterdir()} == FILES


def test_unknown_and_gated_models_are_refused(hub: Hub, fetch: Fetch) -> None:
    refused(fetch("org/missing"), f"org/missing is not at {hub.endpoint}, or it is private: check the name, or log in")
    refused(fetch("org/tiny@v2"), "org/tiny has no revision 'v2': name a branch, a tag or a commit")
    hub.gated.add("org/tiny")
    refused(fetch(), f"org/tiny is gated: accept its terms at {hub.endpoint}/org/tiny, and log in")
    assert fetch(HF_TOKEN=TOKEN).returncode == 0


UNREACHABLE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ({"HF_ENDPOINT": UNREACHABLE}, f"{UNREACHABLE} cannot be reached"),
    ],
)
def test_offline_an_earlier_download_is_used(variables: dict[str, str], problem: str, hub: Hub, fetch: Fetch) -> None:
    refused(fetch(**variables), f"org/tiny was not downloaded before, and {problem}")
    folder = fetch().stdout
    hub.requests.clear()
    done = fetch(**variables)
    assert (done.returncode, done.stdout) == (0, folder)
    assert hub.requests == []
    assert problem in done.stderr


def test_a_model_that_needs_more_space_than_there_is_is_not_begun(hub: Hub, fetch: Fetch, tmp_path: Path) -> None:
    hub.sizes["model.safetensors"] = 10**17
    done = fetch()
    refused(done, "org/tiny takes 100000000000 MB, and ")
    assert f"are free in {tmp_path}/home/hub: free some, or set HF_HOME to another folder" in done.stderr
    assert not [path for _, path, _ in hub.requests if "/resolve/" in path]


def test_a_disk_that_fills_while_downloading_is_one_line(fetch: Fetch, tmp_path: Path) -> None:
    done = fetch(most_bytes=40_000)  # the system refuses to write more, as a full disk does
    refused(done, f"there is no space for org/tiny in {tmp_path}/home/hub (File too large): free some")
    assert fetch().returncode == 0
