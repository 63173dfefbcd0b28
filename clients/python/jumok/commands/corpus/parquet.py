"""Parquet files, with pyarrow."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from jumok.commands._line_requests import Line
from jumok.commands.corpus.rows import Block, Columns, CorpusError, Row, as_line

BATCH_ROWS = 1024
"""Rows that are decoded at once."""


@dataclass(frozen=True)
class ParquetFormat:
    """Rows of a table; the other columns keep their values and types.

    Attributes:
        columns: names of columns.
    """

    columns: Columns

    def check(self, path: Path) -> None:
        """Check the columns of a file."""
        with self._opened(path) as file:
            schema = file.schema_arrow
            name = self.columns.text
            if name not in schema.names:
                raise CorpusError(f"{path} has no column {name!r}; it has: {', '.join(schema.names) or 'none'}")
            if schema.names.count(name) > 1:
                raise CorpusError(f"{path} has several columns {name!r}: rename the others")
            kind = schema.field(name).type
            if not _is_text(kind):
                raise CorpusError(f"the column {name!r} of {path} is {kind}, not text: name another --column")
            self.columns.check_free(schema.names, str(path))

    def read(self, path: Path, skip: int) -> Iterator[Row]:
        """Read rows; records are batches, and the number of the row in its batch."""
        size = path.stat().st_size
        with self._opened(path) as file:
            groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            first, row = 0, 0
            while first < len(groups) and row + groups[first] <= skip:
                row += groups[first]
                first += 1
            batches = file.iter_batches(BATCH_ROWS, row_groups=range(first, len(groups)))
            total = max(file.metadata.num_rows, 1)
            while (batch := self._next(batches, path)) is not None:
                for number, line in enumerate(self._lines(batch, path, row)):
                    row += 1
                    if row > skip:
                        yield Row(line, (batch, number), size * row // total)

    def _lines(self, batch: pa.RecordBatch, path: Path, before: int) -> Iterator[Line]:
        name = self.columns.text
        for row, value in enumerate(batch.column(name), start=before + 1):
            where = f"{path}, row {row}"
            try:
                text = value.as_py()
            except UnicodeDecodeError as error:
                yield Line("", where, 0, f"the column {name!r} is not UTF-8: {error.reason}")
            else:
                yield as_line(text, where, name)

    def write(self, path: Path, block: Block) -> None:
        """Write a block as a Parquet file."""
        slices: list[pa.RecordBatch] = []
        for _, run in groupby(block, key=lambda done: id(done.row.record[0])):
            records = [done.row.record for done in run]
            slices.append(records[0][0].slice(records[0][1], len(records)))
        values = [self.columns.values(done.result) for done in block]
        pq.write_table(self._with_columns(pa.Table.from_batches(slices), values), path)

    def join(self, source: Path, blocks: Sequence[Path], out: Path) -> None:
        """Join blocks; each becomes a row group."""
        if not blocks:
            with self._opened(source) as file:
                pq.write_table(self._with_columns(file.schema_arrow.empty_table(), []), out)
            return
        with pq.ParquetWriter(out, pq.read_schema(blocks[0])) as writer:
            for block in blocks:
                with pq.ParquetFile(block) as file:
                    writer.write_table(file.read())

    def _with_columns(self, table: pa.Table, values: Sequence[dict[str, object]]) -> pa.Table:
        """Add the columns to a table; they come last."""
        for name, kind in zip(self.columns.added, (pa.string(), pa.float64()), strict=False):
            added = pa.array([row[name] for row in values], pa.list_(kind) if self.columns.several else kind)
            table = table.append_column(name, added)
        return table

    @staticmethod
    def _opened(path: Path) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(path)
        except (PermissionError, FileNotFoundError) as error:
            raise CorpusError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{path} is no Parquet file, or is damaged: {str(error).strip()}") from error

    @staticmethod
    def _next(batches: Iterator[pa.RecordBatch], path: Path) -> pa.RecordBatch | None:
        try:
            return next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{path} is damaged: {str(error).strip()}; write it again, and start anew") from error


def _is_text(kind: pa.DataType) -> bool:
    """True for types whose values are text or null."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(check(kind) for check in checks)
