"""The state of a job on disk, from which it goes on after any end.

Beside the output ``OUT`` stands the folder ``OUT.unfinished`` until the job is finished:

- ``job.json``: settings and files of the job, and if it is being published: all files are finished
- ``models.json``: versions of the models that translated
- ``blocks/FILE-BLOCK.rows``: finished blocks, and ``.errors`` with their bad rows
- ``files/NAME``: finished files, each of all its blocks

Each of them appears as a whole, by a rename. A block is finished if its ``.rows`` exists.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jumok.commands.corpus.inputs import Source
from jumok.commands.corpus.rows import CorpusError

_BLOCK = re.compile(r"(\d{6,9})-(\d{8,12})")


class Job:
    """An output in the making.

    Args:
        out: the output, a file or a folder, which does not exist before ``publish``.
        sources: files of the job.
        is_file: True if the output is one file.

    Attributes:
        out: the output.
        sources: files of the job.
        folder: the job's folder.
        errors: the file of bad rows, which ``publish`` makes if there are any.
    """

    def __init__(self, out: Path, sources: Sequence[Source], *, is_file: bool) -> None:
        self.out = out
        self.sources = sources
        self._is_file = is_file
        self.folder = out.with_name(f"{out.name}.unfinished")
        self.errors = out.with_name(f"{out.name}.errors.jsonl")
        self._blocks = self.folder / "blocks"
        self._files = self.folder / "files"
        self._begun = self.folder / "job.json"
        self._publishing = False
        self._models: dict[str, str] = {}
        self._models_written = 0

    @contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Begin or continue the job, for this process alone.

        Args:
            settings: all that the output depends on beside the sources, as JSON.

        Raises:
            CorpusError: the output exists, another process has the job, or it has rows of other settings.
        """
        files = [(str(source.path.resolve()), source.size, source.changed_ns) for source in self.sources]
        settings = {**settings, "files": files}
        if not self._begun.exists():
            self._check_new()
        self._blocks.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CorpusError(f"another process works on {self.folder}: wait for its end") from error
            begun = self._read(self._begun, settings=dict, publishing=bool) if self._begun.exists() else None
            if begun is not None and (begun["publishing"] or self._has_rows()):
                self._compare(begun["settings"], json.loads(json.dumps(settings)))
                self._publishing = begun["publishing"]
            else:  # a job that failed before its first block may go on with mended settings
                _write_json(self._begun, {"settings": settings, "publishing": False})
            if self.out.exists() and not self.is_published:
                raise self._exists(self.out)
            models = self.folder / "models.json"
            if models.exists():
                self._models = self._read(models)
                if not all(isinstance(version, str) for version in self._models.values()):
                    raise self._damaged(models)
                self._models_written = len(self._models)
            yield
        finally:
            os.close(lock)

    def _read(self, path: Path, **kinds: type) -> dict[str, Any]:
        """Read an object with values of these kinds."""
        try:
            found = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in kinds.items()):
            raise self._damaged(path)
        return found

    def _damaged(self, path: Path) -> CorpusError:
        return CorpusError(f"{path} is damaged: remove {self.folder} and start anew, or choose another --out")

    def _has_rows(self) -> bool:
        """True if a block or a file is finished."""
        return any(self._blocks.glob("*.rows")) or self._files.exists()

    def _check_new(self) -> None:
        for path in (self.out, self.errors):
            if path.exists():
                raise self._exists(path)
        found = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        if self.folder.exists() and not set(found) <= {"blocks", "job.json.part"}:
            raise CorpusError(f"{self.folder} is no unfinished output: remove it, or choose another --out")

    def _exists(self, path: Path) -> CorpusError:
        return CorpusError(f"{path} exists already: remove it, or choose another --out")

    def _compare(self, begun: dict[str, Any], settings: dict[str, Any]) -> None:
        """Refuse other settings than those of the beginning."""
        if begun == settings:
            return
        ways = f"give the settings of its beginning, remove {self.folder}, or choose another --out"
        before, now = (each.pop("files", None) for each in (begun, settings))
        if before != now:
            changed = [file[0] for file in before or () if file not in (now or ())]
            files = f"its file {changed[0]} has changed or is missing" if changed else "it has fewer files"
            raise CorpusError(f"the job in {self.folder} is another: {files}; {ways}")
        names = sorted(name for name in {*begun, *settings} if begun.get(name) != settings.get(name))
        differences = ", ".join(f"{name} {begun.get(name)!r}, not {settings.get(name)!r}" for name in names)
        raise CorpusError(f"the job in {self.folder} was begun with {differences}; {ways}")

    # --- blocks ---

    @property
    def _whole(self) -> Path:
        """The finished file or files, to be published."""
        return self._joined(0) if self._is_file else self._files

    def _joined(self, file: int) -> Path:
        return self._files / self.sources[file].name

    @property
    def is_published(self) -> bool:
        """True if the output is in its place."""
        return self._publishing and not self._whole.exists()

    @property
    def translated_any(self) -> bool:
        """True if any row was translated."""
        return bool(self._models)

    def is_joined(self, file: int) -> bool:
        """True if a file is finished."""
        return self._publishing or self._joined(file).exists()

    @property
    def joined_size(self) -> int:
        """Bytes of the files that are finished."""
        return sum(source.size for file, source in enumerate(self.sources) if self.is_joined(file))

    def unfinished_files(self) -> dict[int, int]:
        """Return the number of finished blocks of each unfinished file, up to its first unfinished block."""
        finished = self.finished_blocks()
        return {file: finished.get(file, 0) for file in range(len(self.sources)) if not self.is_joined(file)}

    def finished_blocks(self) -> dict[int, int]:
        """Return the number of finished blocks of each file that has any, up to its first unfinished one."""
        counts: dict[int, int] = {}
        for found in map(_BLOCK.fullmatch, sorted(path.stem for path in self._blocks.glob("*.rows"))):
            if found is not None and int(found[2]) == counts.get(int(found[1]), 0):
                counts[int(found[1])] = int(found[2]) + 1
        return counts

    def check_model(self, name: str, version: str) -> None:
        """Note the model of a translation.

        Raises:
            CorpusError: another version of the model translated earlier rows.
        """
        before = self._models.setdefault(name, version)
        if before != version:
            raise CorpusError(
                f"model {name} has version {version}, but version {before} translated earlier rows: use that version, "
                f"or remove {self.folder} and start anew"
            )

    def add_block(
        self, file: int, number: int, errors: Sequence[Mapping[str, Any]], write: Callable[[Path], None]
    ) -> None:
        """Finish a block.

        Args:
            file: index of its file.
            number: its number in the file.
            errors: a JSON object for each bad row.
            write: writes the rows of the block to a path.
        """
        if len(self._models) > self._models_written:
            _write_json(self.folder / "models.json", self._models)
            self._models_written = len(self._models)
        rows = self._block(file, number)
        with _appearing(rows.with_suffix(".errors")) as path:
            lines = (json.dumps(error, ensure_ascii=False) for error in errors)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="backslashreplace")
        with _appearing(rows) as path:
            write(path)

    def _block(self, file: int, number: int) -> Path:
        return self._blocks / f"{file:06}-{number:08}.rows"

    def join(self, file: int, count: int) -> None:
        """Finish a file, from its number of blocks."""
        source, path = self.sources[file], self._joined(file)
        blocks = [self._block(file, number) for number in range(count)]
        path.parent.mkdir(parents=True, exist_ok=True)
        with _appearing(path, self.folder / "joined") as part:
            source.format.join(source.path, blocks, part)
        for block in blocks:
            block.unlink()

    # --- the end ---

    def publish(self) -> int:
        """Put the output and the errors in place, remove the job, and return the number of bad rows.

        All files are finished.
        """
        if not self.is_published:
            self._publish_errors()
            settings = json.loads(self._begun.read_bytes())["settings"]
            _write_json(self._begun, {"settings": settings, "publishing": True})
            self._publishing = True
            os.replace(self._whole, self.out)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path != self._begun:
                path.unlink()
        self._begun.unlink()  # the last: without it the folder would be a stranger's
        self.folder.rmdir()
        if not self.errors.exists():
            return 0
        with self.errors.open("rb") as lines:
            return sum(1 for _ in lines)

    def _publish_errors(self) -> None:
        """Join the errors of all blocks, in order."""
        self.errors.unlink(missing_ok=True)
        found = sorted(path for path in self._blocks.glob("*.errors") if path.stat().st_size)
        if found:
            with _appearing(self.errors, self.folder / "errors") as part, part.open("wb") as joined:
                for path in found:
                    joined.write(path.read_bytes())


@contextmanager
def _appearing(path: Path, part: Path | None = None) -> Iterator[Path]:
    """Yield a path to write, which becomes the other one when the block ends and the disk has the file."""
    part = part or path.with_name(f"{path.name}.part")
    yield part
    with part.open("rb+") as written:
        os.fsync(written.fileno())
    os.replace(part, path)


def _write_json(path: Path, value: object) -> None:
    with _appearing(path) as part:
        # Names of files may be any bytes.
        part.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8", errors="surrogatepass")
