"""Parquet: columns of all types are kept, and bad ones are named."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jumok.commands.corpus.rows import Columns, CorpusError
from tests.clients.corpus.test_jobs import ended_after
from tests.clients.corpus.test_line_formats import SCORED, errors, two_each
from tests.support.corpus_jobs import run

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")


def table(rows: int) -> Any:
    """A table with nested columns and metadata; each fifth text is null."""
    return pa.table(
        {
            "id": pa.array(range(rows), pa.uint32()),
            "text": [None if row % 5 == 4 else f"row {row}" for row in range(rows)],
            "meta": [{"tags": ["a", None], "at": row / 2} for row in range(rows)],
            "words": [["a", None]] * rows,
            "marks": pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int8())),
            "kind": pa.array(["x"] * rows, pa.string()).dictionary_encode(),
        }
    ).replace_schema_metadata({"origin": "crawl"})


@pytest.mark.parametrize(("rows", "group"), [(0, 1), (1, 1), (50, 7), (3000, 1100)])
def test_rows_keep_their_columns(tmp_path: Path, rows: int, group: int) -> None:
    source, out = tmp_path / "source.parquet", tmp_path / "out.parquet"
    before = table(rows)
    pq.write_table(before, source, row_group_size=group)
    assert run(out, source, block_rows=max(rows // 3, 1))
    after = pq.read_table(out)
    assert after.column_names == [*before.column_names, "translation"]
    assert after.select(before.column_names).to_pylist() == before.to_pylist()
    assert [after.schema.field(name).type for name in before.column_names] == before.schema.types
    assert after.schema.metadata[b"origin"] == b"crawl"
    assert after["translation"].to_pylist() == [text and text.upper() for text in before["text"].to_pylist()]
    if rows > 4:
        assert set(errors(out).values()) == {"the column 'text' is null"}
        assert list(errors(out)) == list(range(5, rows + 1, 5))


@pytest.mark.parametrize("fails_after", [1, 8, 20, 49])
def test_a_job_goes_on_inside_of_a_row_group(tmp_path: Path, fails_after: int) -> None:
    source, out = tmp_path / "source.parquet", tmp_path / "out.parquet"
    pq.write_table(table(50), source, row_group_size=9)
    with pytest.raises(ConnectionError):
        run(out, source, runner=partial(ended_after, fails_after), block_rows=4)
    assert run(out, source, block_rows=4)
    after = pq.read_table(out)
    assert after["id"].to_pylist() == list(range(50))
    assert after["translation"].to_pylist() == [text and text.upper() for text in table(50)["text"].to_pylist()]


def test_hypotheses_and_scores_become_lists(tmp_path: Path) -> None:
    source, out = tmp_path / "source.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"text": ["a", None]}), source)
    assert run(out, source, columns=SCORED, runner=two_each)
    after = pq.read_table(out)
    assert after.schema.field("translation").type == pa.list_(pa.string())
    assert after["translation"].to_pylist() == [["a", "b"], None]
    assert after["score"].to_pylist() == [[-1.0, -2.0], None]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("none", "has no column 'none'; it has: id, text, meta, words, marks, kind"),
        ("id", "the column 'id' of .* is uint32, not text"),
        ("meta", "the column 'meta' of .* is struct<.*>, not text"),
        ("words", "the column 'words' of .* is list<.*>, not text"),
        ("marks", "the column 'marks' of .* is map<.*>, not text"),
    ],
)
def test_columns_that_hold_no_text_are_refused(tmp_path: Path, column: str, message: str) -> None:
    source, out = tmp_path / "source.parquet", tmp_path / "out.parquet"
    pq.write_table(table(3), source)
    columns = Columns(text=column, translation="translation", score=None, several=False)
    with pytest.raises(CorpusError, match=message):
        run(out, source, columns=columns)
    taken = Columns(text="text", translation="kind", score=None, several=False)
    with pytest.raises(CorpusError, match="has a column 'kind' already: choose another --out-column"):
        run(out, source, columns=taken)
    assert [path.name for path in tmp_path.iterdir()] == ["source.parquet"]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "source.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), source)
    with pytest.raises(CorpusError, match=r"source\.parquet has several columns 'text': rename the others"):
        run(tmp_path / "out.parquet", source)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_all_kinds_of_text_are_read(tmp_path: Path, kind: Any) -> None:
    source, out = tmp_path / "source.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"text": pa.array(["a", None, " "]).cast(kind)}), source)
    assert run(out, source)
    assert pq.read_table(out)["translation"].to_pylist() == ["A", None, None]
    assert errors(out) == {2: "the column 'text' is null", 3: "has no content"}


def test_bytes_that_are_no_text_are_reported(tmp_path: Path) -> None:
    source, out = tmp_path / "source.parquet", tmp_path / "out.parquet"
    offsets = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in (0, 1, 2)))
    broken = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a\xff"))
    pq.write_table(pa.table({"text": broken}), source)
    assert run(out, source)
    assert pq.read_table(out)["translation"].to_pylist() == ["A", None]
    assert errors(out) == {2: "the column 'text' is not UTF-8: invalid start byte"}


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1 and no more", b"PAR1" + b"\xff" * 1000 + b"\x84\x03\0\0PAR1", b"PAR1" + b"x" * 100 + b"Z\0\0\0PARE"],
)
def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "source.parquet"
    source.write_bytes(content)
    with pytest.raises(CorpusError, match=r"source\.parquet is no Parquet file, or is damaged"):
        run(tmp_path / "out.parquet", source)


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    from jumok.commands.corpus.parquet import ParquetFormat

    read = ParquetFormat(Columns(text="text", translation="translation", score=None, several=False))
    source = tmp_path / "source.parquet"
    with pytest.raises(CorpusError, match=r"source\.parquet cannot be read: No such file or directory$"):
        read.check(source)
    source.touch(mode=0)
    if os.geteuid():  # root may read all files
        with pytest.raises(CorpusError, match=r"source\.parquet cannot be read: Permission denied$"):
            read.check(source)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path) -> None:
    source = tmp_path / "source.parquet"
    source.touch()
    arguments = ["translate-corpus", str(source), "--out", str(tmp_path / "out.parquet"), "--bundle", "b"]
    program = (
        f"import sys; sys.modules['pyarrow'] = None; from jumok.commands._main import run; sys.exit(run({arguments}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: this needs pyarrow, which is not installed; install it with: pip install 'jumok[corpus]'\n"
    )
