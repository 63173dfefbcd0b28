"""Text and JSONL, plain and compressed: good rows, and every kind of bad one."""

import gzip
import json
from collections.abc import Generator, Iterable
from pathlib import Path

import click
import pytest

from jumok.commands._line_requests import MAX_LINE_BYTES, Line, Outcome
from jumok.commands.corpus.rows import Columns, CorpusError
from tests.support.corpus_jobs import at_once, run, translation

SCORED = Columns(text="text", translation="translation", score="score", several=True)


def errors(out: Path) -> dict[int, str]:
    """The reasons of bad rows, by row."""
    path = out.with_name(f"{out.name}.errors.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {error["row"]: error["reason"] for error in found}


def test_lines_without_content_or_text_give_empty_lines(tmp_path: Path) -> None:
    source, out = tmp_path / "source.en", tmp_path / "out.de"
    long = b"x" * (MAX_LINE_BYTES + 1)
    source.write_bytes(b"\xef\xbb\xbfone\r\n\n \t\n\xff\n" + long + b"\nlast")
    assert run(out, source)
    assert out.read_bytes() == b"ONE\r\n\n\n\n\nLAST\n"
    assert errors(out) == {
        2: "has no content",
        3: "has no content",
        4: "byte 1: 0xff is not UTF-8 (invalid start byte); convert it",
        5: f"longer than {MAX_LINE_BYTES} bytes",
    }


def test_rows_of_json_keep_their_spelling(tmp_path: Path) -> None:
    source, out = tmp_path / "source.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"id": 1.10, "text": "a\\u00e9", "big": 1e999}  \n{ "text":"b" , "text": "c"}\n')
    assert run(out, source)
    assert out.read_text() == (
        '{"id": 1.10, "text": "a\\u00e9", "big": 1e999, "translation": "AÉ"}\n'
        '{ "text":"b" , "text": "c", "translation": "C"}\n'
    )


def test_each_bad_row_of_json_is_reported(tmp_path: Path) -> None:
    source, out = tmp_path / "source.jsonl", tmp_path / "out.jsonl"
    rows = {
        '{"text": null}': "the column 'text' is null",
        '{"text": 3}': "the column 'text' is a number, not text",
        '{"text": true}': "the column 'text' is a boolean, not text",
        '{"text": ["a"]}': "the column 'text' is a list, not text",
        '{"text": {"de": "a"}}': "the column 'text' is an object, not text",
        '{"text": " \\n"}': "has no content",
        '{"id": 7, "txt": "a"}': "has no column 'text'; it has: id, txt",
        "{}": "has no column 'text'; it has: none",
        "": "has no content",
        "[1]": "is not a JSON object",
        '"text"': "is not a JSON object",
        '{"text": "a"': "is not JSON: Expecting ',' delimiter: line 1 column 13 (char 12)",
    }
    source.write_text('{"text": "good"}\n' + "".join(f"{row}\n" for row in rows))
    assert run(out, source)
    assert errors(out) == dict(enumerate(rows.values(), start=2))
    good, *bad = [json.loads(line) for line in out.read_text().splitlines()]
    assert good == {"text": "good", "translation": "GOOD"}
    for row, written in zip(rows, bad, strict=True):
        kept = json.loads(row) if row.startswith("{") and row.endswith("}") else {}
        assert written == {**kept, "translation": None}


def test_nested_json_and_lone_surrogates_do_not_end_the_job(tmp_path: Path) -> None:
    source, out = tmp_path / "source.jsonl", tmp_path / "out.jsonl"
    source.write_text("[" * 100_000 + "\n" + '{"text": "\\ud800"}\n{"text": "a"}\n')
    assert run(out, source)
    assert list(errors(out)) == [1]
    assert out.read_text().splitlines()[-1] == '{"text": "a", "translation": "A"}'


def test_hypotheses_and_scores_become_lists(tmp_path: Path) -> None:
    source, out = tmp_path / "source.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a"}\n{"text": null}\n')

    assert run(out, source, columns=SCORED, runner=two_each)
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"text": "a", "translation": ["a", "b"], "score": [-1.0, -2.0]},
        {"text": None, "translation": None, "score": None},
    ]
    with pytest.raises(click.UsageError, match=r"need columns, and .* is text: use JSONL"):
        run(tmp_path / "out.txt", _touched(tmp_path / "source.txt"), columns=SCORED)


def test_a_column_is_never_overwritten(tmp_path: Path) -> None:
    source, out = tmp_path / "source.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a"}\n{"text": "b", "translation": "mine"}\n')
    with pytest.raises(CorpusError, match=r"line 2 has a column 'translation' already: choose another --out-column"):
        run(out, source)
    assert not out.exists()


@pytest.mark.parametrize(("name", "written"), [("a.txt.gz", "b.txt"), ("a.txt", "b.txt.gz"), ("a.gz", "b.gz")])
def test_compression_follows_content_and_name(tmp_path: Path, name: str, written: str) -> None:
    source, out = tmp_path / name, tmp_path / written
    members = [b"one\ntw", b"o\nthree\nfour\n"]  # as of files that were joined
    data = b"".join(map(gzip.compress, members) if name.endswith(".gz") else members)
    source.write_bytes(data)
    assert run(out, source)
    found = out.read_bytes()
    assert (gzip.decompress(found) if written.endswith(".gz") else found) == b"ONE\nTWO\nTHREE\nFOUR\n"


def test_files_and_folders_keep_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    for name in ("z.txt", "b/y.jsonl", "_SUCCESS", ".hidden"):
        (folder / name).write_text('{"text": "a"}\n')
    assert run(tmp_path / "out", folder)
    assert sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")) == [
        "b/y.jsonl",
        "z.txt",
    ]
    assert run(tmp_path / "two", folder / "z.txt", folder / "b/y.jsonl")
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["y.jsonl", "z.txt"]


def test_inputs_that_cannot_be_a_job_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(CorpusError, match="has no files"):
        run(tmp_path / "out", folder)
    text = _touched(folder / "a.txt")
    with pytest.raises(CorpusError, match="is in the folder"):
        run(folder / "out", folder)
    with pytest.raises(CorpusError, match=r"two files are named a\.txt"):
        run(tmp_path / "out", text, folder)
    with pytest.raises(CorpusError, match=r"names a file of jsonl, but .* is text: the format stays"):
        run(tmp_path / "out.jsonl", text)
    with pytest.raises(CorpusError, match=r"a\.csv has the format \.csv: convert it"):
        run(tmp_path / "out.txt", _touched(tmp_path / "a.csv"))
    assert run(tmp_path / "out.csv", tmp_path / "a.csv", format_name="text")
    with pytest.raises(CorpusError, match="is no regular file"):
        run(tmp_path / "out.txt", Path("/dev/null"))


def _touched(path: Path) -> Path:
    path.touch()
    return path


def two_each(lines: Iterable[Line]) -> Generator[tuple[Line, Outcome], None, None]:
    """A runner with two hypotheses for each text."""
    for line, outcome in at_once(lines):
        yield line, outcome if line.problem else translation("a", "b")
