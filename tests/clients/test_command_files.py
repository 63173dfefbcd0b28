"""``--input``, ``--output`` and ``--wait`` of the commands, against a fake server."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jumok._files import written
from jumok.testing import FakeServer
from jumok_proto.errors import InvalidArgumentError, UnavailableError
from tests.support.command import JUMOK, run
from tests.support.hang import HANG_S


def translate(text: str) -> str:
    if text == "bad":
        raise InvalidArgumentError("content: too long", field="content")
    return text.upper()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(translate) as fake:
        yield fake


def test_a_file_is_translated_into_a_file(server: FakeServer, tmp_path: Path) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("ein hund\r\n\nzwei\n", encoding="utf-8-sig")
    done = run("translate", "--server", server.address, "--input", source, "--output", target)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert target.read_text(encoding="utf-8") == "EIN HUND\n\nZWEI\n"
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.txt"]
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_file_can_be_translated_in_place_and_keeps_its_mode(server: FakeServer, tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("a\nbad\nb\n", encoding="utf-8")
    file.chmod(0o640)
    link.symlink_to(file)
    done = run("translate", "--server", server.address, "--input", link, "--output", link)
    assert done.returncode == 1
    assert done.stderr.decode() == f"Error: {link}, line 2: too long\n"
    assert file.read_text(encoding="utf-8") == "A\n\nB\n"
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640


def test_what_replaces_a_file_is_for_no_more_eyes_while_it_is_written(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.touch(0o600)
    with written(target):
        (part,) = tmp_path.glob(".out.txt.*")
        assert part.stat().st_mode & 0o777 == 0o600
    assert target.stat().st_mode & 0o777 == 0o600


def test_an_output_stays_as_it_was_if_the_server_is_lost(server: FakeServer, tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("before", encoding="utf-8")
    server.fail(UnavailableError("gone"), times=100)
    done = run("translate", "--server", server.address, "--output", target, given=b"a\n")
    assert done.returncode == 1
    assert target.read_text(encoding="utf-8") == "before"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_dashes_are_standard_input_and_output(server: FakeServer) -> None:
    done = run("translate", "--server", server.address, "--input", "-", "--output", "-", given=b"a\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"A\n", b"")
    to_device = run("translate", "--server", server.address, "--output", "/dev/stdout", "a")
    assert to_device.stdout == b"A\n"


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("/dev/full", "the output cannot be written: No space left on device; make room"),
        (
            "/no/such/folder/out",
            "--output /no/such/folder/out cannot be written: the folder /no/such/folder does not exist, create it",
        ),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(server: FakeServer, output: str, said: str) -> None:
    if output == "/dev/full" and not Path(output).exists():
        pytest.skip("only Linux has this device")
    done = run("translate", "--server", server.address, "--output", output, "a")
    assert done.returncode == 1
    assert done.stderr.decode() == f"Error: {said}, or choose another\n"


def test_pairs_of_a_file_are_scored(server: FakeServer, tmp_path: Path) -> None:
    source, target = tmp_path / "pairs.tsv", tmp_path / "scores"
    source.write_text("a\tA\nb\tB\n", encoding="utf-8")
    done = run("score", "--server", server.address, "--input", source, "--output", target)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(target.read_text(encoding="utf-8").splitlines()) == 2
    source.write_text("a\n", encoding="utf-8")
    done = run("score", "--server", server.address, "--input", source)
    assert done.stderr.decode().startswith(f"Error: {source}, line 1: must be a text and its translation")


def test_a_text_that_is_the_name_of_a_file_is_pointed_out(server: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("a\n", encoding="utf-8")
    done = run("translate", "--server", server.address, "a b", str(file), "x" * 5000)
    assert done.returncode == 0
    assert done.stderr.decode() == (f"Warning: text 2 is the name of a file; to translate its lines: --input {file}\n")
    assert done.stdout.decode().splitlines()[1] == str(file).upper()


def test_a_sentence_without_quotation_marks_is_pointed_out(server: FakeServer) -> None:
    done = run("translate", "--server", server.address, "A", "dog", "runs.")
    assert done.returncode == 0
    assert done.stderr == b"Warning: 3 words are 3 texts; a sentence needs quotation marks around it\n"
    for texts in (["dog"], ["A dog.", "cat"]):
        assert run("translate", "--server", server.address, *texts).stderr == b""


def test_lines_of_a_terminal_are_asked_for(server: FakeServer) -> None:
    outer, inner = os.openpty()
    with (
        os.fdopen(outer, "wb", buffering=0) as keyboard,
        subprocess.Popen(
            [*JUMOK, "translate", "--server", server.address],
            stdin=inner,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as command,
    ):
        os.close(inner)
        assert command.stderr is not None
        assert command.stderr.readline() == b"Reading lines from the terminal; Ctrl-D ends them.\n"
        keyboard.write(b"a dog\n\x04")
        out, err = command.communicate(timeout=HANG_S)
    assert (command.returncode, out, err) == (0, b"A DOG\n", b"")


def test_the_command_waits_for_a_server_that_is_starting() -> None:
    fake = FakeServer()  # has a port, and does not answer yet
    port = fake.port
    with subprocess.Popen(
        [*JUMOK, "translate", "--server", f"127.0.0.1:1,127.0.0.1:{port}", "--wait", "600", "a"],
        stdout=subprocess.PIPE,
    ) as waiting:
        assert waiting.stdout is not None
        with fake:
            assert waiting.stdout.read() == b"A\n"
    assert waiting.returncode == 0


def test_the_command_does_not_wait_for_ever() -> None:
    done = run("translate", "--server", "127.0.0.1:1,127.0.0.1:2", "--wait", "0.1", "a")
    assert done.returncode == 1
    assert done.stderr.decode() == "Error: no server answered for 0.1 s at 127.0.0.1:1 or 127.0.0.1:2\n"
