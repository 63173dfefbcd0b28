"""Jobs: blocks, resumption, outputs, and their settings."""

import gzip
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jumok.commands._line_requests import Line, Outcome
from jumok.commands.corpus.rows import CorpusError
from jumok.commands.corpus.run import Progress
from tests.support import corpus_jobs
from tests.support.corpus_jobs import at_once, in_threads, run, translation
from tests.support.hang import HANG_S
from tests.support.memory import memory_of


def unfinished(out: Path) -> Path:
    return out.with_name(f"{out.name}.unfinished")


def ended_after(rows: int, lines: Iterable[Line]) -> Generator[tuple[Line, Outcome], None, None]:
    """A runner that fails after a number of rows."""
    for number, outcome in enumerate(at_once(lines)):
        if number == rows:
            raise ConnectionError("the server is gone")
        yield outcome


def begin(out: Path, source: Path, rows: int = 8, **settings: Any) -> None:
    """Run a job that fails after a number of rows."""
    with pytest.raises(ConnectionError):
        run(out, source, runner=partial(ended_after, rows), **settings)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.txt"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_text("".join(f"line {number}\n" for number in range(10)))
    return path


CAPITALS = "".join(f"LINE {number}\n" for number in range(10))


@pytest.mark.parametrize("rows", [1, 3, 9, 10, 11])
def test_blocks_of_any_size_make_one_file_in_order(source: Path, out: Path, tmp_path: Path, rows: int) -> None:
    assert run(out, source, block_rows=rows)
    assert out.read_text() == CAPITALS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "source.txt"]


def test_names_of_files_may_be_any_bytes(tmp_path: Path) -> None:
    source = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"))
    source.write_bytes(b"line 0\n\xff\nline 2\n")
    out = source.with_name(f"out-{source.name}")
    begin(out, source, 2, block_rows=1)
    assert run(out, source, runner=at_once, block_rows=1)
    assert out.read_text() == "LINE 0\n\nLINE 2\n"
    (bad,) = out.with_name(f"{out.name}.errors.jsonl").read_text().splitlines()
    assert json.loads(bad)["file"] == str(source)


def damage(name: str, content: bytes, _: Path, out: Path) -> None:
    (unfinished(out) / name).write_bytes(content)


DAMAGES = {
    "job.json": (b"", b"{", b"\xff", b"[]", b"{}", b'{"settings": 1, "publishing": false}'),
    "models.json": (b"[", b"[]", b'{"tiny": 1}', b"[" * 100_000),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _, out: out.write_text("mine"), r"out\.txt exists already"),
        (lambda source, _: source.write_text("other"), r"source\.txt has changed or is missing"),
        *(
            (partial(damage, name, content), rf"{name} is damaged: remove .*out.txt.unfinished and start anew")
            for name in DAMAGES
            for content in DAMAGES[name]
        ),
    ],
)
def test_a_job_whose_files_have_changed_does_not_go_on(
    source: Path, out: Path, change: Callable[[Path, Path], object], message: str
) -> None:
    begin(out, source)
    change(source, out)
    with pytest.raises(CorpusError, match=message):
        run(out, source)
    assert not out.exists() or out.read_text() == "mine"


def test_other_files_among_the_blocks_are_left_alone(source: Path, out: Path) -> None:
    begin(out, source)
    for name in ("a.rows", "1-2-3.rows", f"{'9' * 200}-0.rows"):
        (unfinished(out) / "blocks" / name).write_bytes(b"x")
    assert run(out, source)
    assert out.read_text() == CAPITALS


def test_blocks_after_an_unfinished_one_are_translated_again(source: Path, out: Path) -> None:
    """A cluster finishes blocks in any order, so a job that was killed may lack the first."""
    with pytest.raises(ConnectionError):
        run(out, source, runner=partial(ended_after, 9))
    first, *others = sorted((unfinished(out) / "blocks").glob("*.rows"))
    assert others
    first.unlink()
    assert run(out, source)
    assert out.read_text() == CAPITALS


def test_a_job_goes_on_from_its_finished_blocks(source: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin(out, source)
    assert not out.exists()
    seen: list[str] = []

    def runner(lines: Iterable[Line]) -> Generator[tuple[Line, Outcome], None, None]:
        for line, outcome in at_once(lines):
            seen.append(line.text)
            yield line, outcome

    capsys.readouterr()
    assert run(out, source, runner=runner)
    assert seen == [f"line {number}" for number in range(6, 10)]
    assert out.read_text() == CAPITALS
    first, *blocks, last = capsys.readouterr().err.splitlines()
    assert first == f"going on with {unfinished(out)}"
    assert [line.split(",")[:2] for line in blocks] == [["3 rows", " 0 bad"], ["4 rows", " 0 bad"]]
    assert blocks[-1].endswith("100%, about 0:00:00 left")
    assert last == f"{out}: 4 rows in this run; no bad rows"


def test_the_time_left_is_by_the_speed_of_this_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10.0
    monkeypatch.setattr("jumok.commands.corpus.run.time", SimpleNamespace(monotonic=lambda: now))
    progress = Progress(1000)
    progress.skip(500)
    for size, skipped, took_s in ((50, 0, 1), (50, 0, 1), (50, 200, 1), (0, 0, 3), (150, 0, 0)):
        now += took_s
        progress.skip(skipped)
        progress.show(1, 0, size)
    assert [line.split(", ", 3)[3] for line in capsys.readouterr().err.splitlines()] == [
        "55%, about 0:00:09 left",
        "60%, about 0:00:08 left",
        "85%, about 0:00:03 left",
        "85%, about 0:00:06 left",
        "100%, about 0:00:00 left",
    ]


def test_a_job_survives_sigkill_at_every_change_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "more").mkdir(parents=True)
    contents = {"a.txt": "a\n\nb\nc\nd\n", "more/empty.txt.gz": ""}
    for name, content in contents.items():
        data = content.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [sys.executable, corpus_jobs.__file__, tmp_path / "out/files", folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout)
    assert kills > 30
    for kill in range(kills + 1):
        out = tmp_path / f"out/{kill}-files"
        found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        assert found == set(contents)
        assert (out / "a.txt").read_text() == "A\n\nB\nC\nD\n"
        assert gzip.decompress((out / "more/empty.txt.gz").read_bytes()) == b""
        (error,) = (tmp_path / f"out/{kill}-files.errors.jsonl").read_text().splitlines()
        assert json.loads(error) == {"file": str(folder / "a.txt"), "row": 2, "reason": "has no content"}
    rest = list((tmp_path / "out").glob("*.unfinished"))
    assert len(rest) <= 1  # of the kill between the removals of its last file and itself
    assert not any(any(folder.iterdir()) for folder in rest)


def test_an_output_that_exists_is_refused(source: Path, out: Path, tmp_path: Path) -> None:
    out.write_text("mine")
    with pytest.raises(CorpusError, match=r"out\.txt exists already: remove it, or choose another --out"):
        run(out, source)
    assert out.read_text() == "mine"
    assert not unfinished(out).exists()
    with pytest.raises(CorpusError, match="exists already"):
        run(source, source)
    out.unlink()
    errors = tmp_path / "out.txt.errors.jsonl"
    errors.touch()
    with pytest.raises(CorpusError, match=r"out\.txt\.errors\.jsonl exists already"):
        run(out, source)


def test_a_folder_of_others_is_no_unfinished_output(source: Path, out: Path) -> None:
    unfinished(out).mkdir()
    (unfinished(out) / "thesis.tex").touch()
    with pytest.raises(CorpusError, match=r"out\.txt\.unfinished is no unfinished output: remove it"):
        run(out, source)


def test_other_settings_do_not_go_on_with_a_job(source: Path, out: Path) -> None:
    settings = {"beam_size": 4, "glossary": {"dog": ("Hund",)}}
    begin(out, source, settings=settings)
    with pytest.raises(CorpusError, match=r"was begun with beam_size 4, not 1; give the settings of its beginning"):
        run(out, source, settings=settings | {"beam_size": 1})
    with pytest.raises(CorpusError, match=r"block_rows 3, not 5, truncate None, not True"):
        run(out, source, settings=settings | {"truncate": True}, block_rows=5)
    assert run(out, source, settings=settings)


def test_a_job_that_failed_before_its_first_block_takes_other_settings(source: Path, out: Path) -> None:
    begin(out, source, 0, settings={"beam_size": 400})
    begin(out, source, settings={"beam_size": 4})
    with pytest.raises(CorpusError, match="was begun with beam_size 4, not 400"):
        run(out, source, settings={"beam_size": 400})
    assert run(out, source, settings={"beam_size": 4})
    assert out.read_text() == CAPITALS


def test_another_version_of_the_model_does_not_go_on_with_a_job(source: Path, out: Path) -> None:
    begin(out, source)

    def newer(lines: Iterable[Line]) -> Generator[tuple[Line, Outcome], None, None]:
        for line in lines:
            yield line, translation(line.text, version="2")

    with pytest.raises(CorpusError, match="model tiny has version 2, but version 1 translated earlier rows"):
        run(out, source, runner=newer)
    assert run(out, source)
    assert out.read_text() == CAPITALS


def test_two_processes_do_not_share_a_job(source: Path, out: Path) -> None:

    def runner(lines: Iterable[Line]) -> Generator[tuple[Line, Outcome], None, None]:
        with pytest.raises(CorpusError, match=r"another process works on .*out\.txt\.unfinished"):
            run(out, source)
        yield from at_once(lines)

    assert run(out, source, runner=runner)


def test_a_job_without_any_translation_fails(tmp_path: Path) -> None:
    source, out = tmp_path / "source.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"id": 1}\n')
    assert not run(out, source)
    assert out.read_text() == '{"id": 1, "translation": null}\n'


def test_an_exception_of_the_input_comes_after_finished_blocks(tmp_path: Path) -> None:
    source, out = tmp_path / "source.txt.gz", tmp_path / "out.txt"
    lines = "".join(f"{number * 7919}\n" for number in range(20_000))
    source.write_bytes(gzip.compress(lines.encode())[:-10])
    with pytest.raises(CorpusError, match=r"source\.txt\.gz is damaged or cut off"):
        run(out, source, block_rows=1000)
    assert len(list((unfinished(out) / "blocks").glob("*.rows"))) > 10


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    numbers = itertools.count()

    def peak(rows: int) -> int:
        source = tmp_path / f"{rows}.txt"
        source.write_text("".join(f"a sentence of row {row}\n" for row in range(rows)))

        def translate() -> None:
            assert run(tmp_path / f"{next(numbers)}.out", source, runner=in_threads, block_rows=200)

        return memory_of(translate)[1]

    assert peak(10_000) < 2 * peak(1_000)
