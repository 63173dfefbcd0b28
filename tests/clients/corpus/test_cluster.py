"""Jobs on a Ray cluster give the output of jobs without it, whatever dies meanwhile."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.serve.engine.test_invariance import sentences
from tests.support import corpus_jobs
from tests.support.command import run as command
from tests.support.hang import HANG_S
from tests.support.ports import free_port
from tests.support.ray_cluster import ray_cluster

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Ray's own

from jumok.commands.corpus.rows import CorpusError  # noqa: E402
from tests.support import ray_jobs  # noqa: E402


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ray_cluster() as cluster:
        yield cluster.address


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Files of several blocks, with bad rows."""
    text, rows = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("".join(f"line {number}\n" for number in range(20)) + "\n")
    objects = [{"id": number, "text": f"row {number}" if number % 4 else None} for number in range(13)]
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in objects))
    return [text, rows]


def contents(out: Path) -> dict[str, str]:
    """All files of an output, and its errors."""
    errors = out.with_name(f"{out.name}.errors.jsonl")
    return {path.name.replace(out.name, "out"): path.read_text() for path in [*sorted(out.iterdir()), errors]}


def test_an_actor_that_is_killed_loses_and_doubles_nothing(address: str, inputs: list[Path], tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    assert corpus_jobs.run(here, *inputs)
    assert ray_jobs.run(address, there, *inputs, open_runner=partial(ray_jobs.dying, tmp_path / "mark"))
    assert (tmp_path / "mark").exists()
    assert contents(there) == contents(here)
    assert not there.with_name("there.unfinished").exists()
    with pytest.raises(CorpusError, match="exists already"):
        ray_jobs.run(address, there, *inputs)


@pytest.mark.parametrize("with_ray", [True, False])
def test_a_job_that_is_killed_goes_on(address: str, inputs: list[Path], tmp_path: Path, with_ray: bool) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    assert corpus_jobs.run(here, *inputs)
    program: list[str | Path] = [sys.executable, "-m", ray_jobs.__name__, address, there, "3", *inputs]
    killed = subprocess.run(program, capture_output=True, check=False, timeout=HANG_S)
    assert killed.returncode == -9, killed.stderr
    assert len([*(tmp_path / "there.unfinished/blocks").glob("*.rows")]) == 3
    assert ray_jobs.run(address, there, *inputs) if with_ray else corpus_jobs.run(there, *inputs)
    assert contents(there) == contents(here)


def test_a_cluster_that_cannot_translate_says_why(address: str, inputs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="has no room for an actor of 1000 cores: lower --ray-cpus"):
        ray_jobs.run(address, tmp_path / "large", *inputs, cpus=1000)
    with pytest.raises(CorpusError, match="no such bundle on this machine"):
        ray_jobs.run(address, tmp_path / "failing", *inputs, open_runner=ray_jobs.failing)
    damaged = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"text": ["a man", "a dog"] * 400}), damaged)
    damaged.write_bytes(b"PAR1" + bytes(30) + damaged.read_bytes()[34:])
    with pytest.raises(
        CorpusError, match=rf"^a task on the cluster failed: {damaged} is damaged: .+; write it again, and start anew$"
    ):
        ray_jobs.run(address, tmp_path / "out.parquet", damaged)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_without_a_cluster_is_named_at_once(inputs: list[Path], tmp_path: Path, scheme: str) -> None:
    """Ray itself tries for many minutes."""
    with pytest.raises(CorpusError, match=r"--ray here is no address: give .+, auto or local; Ray says: .+"):
        ray_jobs.run("here", tmp_path / "out", *inputs)
    address = f"{scheme}127.0.0.1:{free_port()}"
    with pytest.raises(CorpusError, match=f"no Ray cluster answers at {address}: start one, or give --ray local"):
        ray_jobs.run(address, tmp_path / "out", *inputs)


def test_a_job_that_fails_in_the_middle_says_why(address: str, inputs: list[Path], tmp_path: Path) -> None:
    """Threads of Ray Data still work then."""
    program: list[str | Path] = [sys.executable, "-m", ray_jobs.__name__, address, tmp_path / "out", "unequal", *inputs]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert re.search(r"CorpusError: model tiny has version [12], but version [12] translated earlier rows", last), last


def test_the_command_translates_with_a_bundle(address: str, tiny_bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "texts.txt"
    source.write_text("".join(f"{text}\n" for text in sentences()))
    options = ("--bundle", tiny_bundle, "--beam-size", "1", "--max-length", "12", "--truncate", "--block-rows", "30")
    for name, cluster in (("here", ()), ("there", ("--ray", address, "--ray-actors", "2"))):
        done = command("translate-corpus", source, "--out", tmp_path / name, "--format", "text", *options, *cluster)
        assert done.returncode == 0, done.stderr
        assert b"100%, about 0:00:00 left" in done.stderr
    assert (tmp_path / "there").read_text() == (tmp_path / "here").read_text()


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("a" * 64, "never ran.* RAY_AUTH_MODE is 'token' in this process: .* set RAY_AUTH_MODE=disabled"),
        ("", "this process has no token for the Ray cluster at 127.0.0.1:.* no authentication token was found"),
    ],
)
def test_a_program_with_tokens_says_what_a_cluster_without_them_needs(
    address: str, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, message: str
) -> None:
    for name, value in (("RAY_AUTH_MODE", "token"), ("RAY_AUTH_TOKEN", token), ("HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    source = tmp_path / "texts.txt"
    source.write_text("a man\n")
    done = command(
        "translate-corpus", source, "--out", tmp_path / "out", "--bundle", tiny_bundle, "--ray", address, "--truncate"
    )
    assert done.returncode == 1
    last = done.stderr.decode().splitlines()[-1]
    assert re.match(f"Error: .*{message}", last), done.stderr
