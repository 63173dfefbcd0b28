"""Open bundles whose files match the manifest and stay the same; write bundles atomically."""

import hashlib
import os
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from jumok_proto.errors import BundleNotLoadedError
from jumok_serve.bundle.shortlist import Shortlist
from jumok_serve.errors import BundleError
from jumok_serve.files import RegularFile, UnusableFileError, identity_of, parse_json, read_file
from jumok_serve.manifest.manifest import (
    READABLE_FORMAT_VERSIONS,
    FileEntry,
    Manifest,
    ManifestDraft,
    PrecisionVariant,
)
from jumok_serve.manifest.parts import MANIFEST_FILE, RelativePath
from jumok_serve.tokenizers import load_tokenizer
from jumok_serve.tokenizers.tokenizer import Tokenizer

# Documents beside the manifest, which may be edited; the runtime reads none of them.
COMPANIONS = frozenset({"README.md", "LICENSE", "LICENSE.txt", "NOTICE", "config.toml"})
_UNLISTED = COMPANIONS | {MANIFEST_FILE}

MAX_MANIFEST_BYTES = 16 * 2**20
MAX_PROBLEMS = 100
"""Problems that are listed."""

_FILES: TypeAdapter[dict[str, FileEntry]] = TypeAdapter(dict[RelativePath, FileEntry])

_DESCRIPTORS = Path("/proc/self/fd")


class PinnedFolder:
    """A folder that stays the same if it is moved, or if its name leads to another one.

    Args:
        folder: the folder.

    Attributes:
        path: path of the same folder, whatever its name.

    Raises:
        OSError: the folder cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self._name = folder.name
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, descriptor)
        pinned = _DESCRIPTORS / str(descriptor)
        self.path = pinned if pinned.exists() else folder
        self._checked: dict[str, tuple[FileEntry, tuple[int, ...]]] = {}

    def check(self, file: str, entry: FileEntry) -> None:
        """Compare a file with its entry in the manifest, and remember it.

        Raises:
            UnusableFileError: the file differs, or is no regular file of this folder.
        """
        path = self.path / file
        try:
            if not path.exists():
                raise UnusableFileError("missing")
            if not path.resolve().is_relative_to(self.path.resolve()):
                raise UnusableFileError("a link that leads outside of the bundle")
            with RegularFile(path) as opened:
                if opened.size != entry.size:
                    raise UnusableFileError(f"{opened.size} bytes, the manifest says {entry.size}")
                sha256 = opened.sha256()
        except (OSError, RuntimeError) as exc:  # RuntimeError: links in a circle
            raise UnusableFileError(f"cannot be read: {exc.strerror if isinstance(exc, OSError) else exc}") from exc
        if sha256 != entry.sha256:
            raise UnusableFileError(f"damaged: SHA-256 is {sha256}, the manifest says {entry.sha256}")
        self._checked[file] = entry, opened.identity

    def mapped(self, file: str) -> "MappedFile":
        """Watch over a checked file that is mapped into memory.

        Raises:
            OSError: the file cannot be opened.
        """
        entry, (_, _, size, modified, _) = self._checked[file]
        return MappedFile(self.path / file, f"bundle {self._name}", entry.sha256, (size, modified))

    def changed(self, files: Iterable[str]) -> list[str]:
        """List files that changed since they were checked."""
        return [f"{file}: changed while the bundle was in use" for file in files if not self._is_unchanged(file)]

    def _is_unchanged(self, file: str) -> bool:
        entry, identity = self._checked[file]
        try:
            if identity_of(os.stat(self.path / file)) == identity:
                return True
            self.check(file, entry)  # a link or new permissions change the numbers and not the content
        except (OSError, UnusableFileError):
            return False
        return True


class MappedFile:
    """A file whose content others see as they overwrite it in place; other files of its name change nothing.

    Args:
        of: the thing that it belongs to, for errors.
        sha256: hash of its content.
        state: its size and the time of its last change, in ns, when it had this content.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, of: str, sha256: str, state: tuple[int, int]) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._descriptor)
        self._path, self._of, self._sha256, self._state = path, of, sha256, state
        self._lock = threading.Lock()
        self._overwritten = False

    def check(self) -> None:
        """Refuse results that may come from other content.

        Raises:
            BundleNotLoadedError: the file was overwritten; it stays refused.
        """
        state = os.fstat(self._descriptor)
        if self._overwritten or (state.st_size, state.st_mtime_ns) != self._state:
            self._check_content((state.st_size, state.st_mtime_ns))

    def _check_content(self, state: tuple[int, int]) -> None:
        with self._lock:
            if not self._overwritten and state != self._state:
                with open(self._descriptor, "rb", closefd=False, buffering=0) as stream:
                    stream.seek(0)
                    self._overwritten = hashlib.file_digest(stream, "sha256").hexdigest() != self._sha256
                self._state = state
            if self._overwritten:
                raise BundleNotLoadedError(
                    f"{self._of} is not as it was opened, load it again: {self._path.name} was overwritten in place"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A checked bundle with its tokenizer loaded.

    Attributes:
        manifest: the manifest; all files match it.
        pinned: the folder as it was opened.
    """

    path: Path
    manifest: Manifest
    tokenizer: Tokenizer
    pinned: PinnedFolder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Bundle":
        """Check the bundle at ``path`` and open it.

        The checks are: the manifest's schema, sizes and SHA-256 of all files, no unlisted file, and a tokenizer that
        loads and has the stated sizes. The tensors of a graph are checked when a session loads it; see
        `jumok_serve.runtime.graph_checks.contract.check_graph`.

        Raises:
            BundleError: lists every problem.
        """
        folder = Path(path)
        manifest, files, problems = _parse_manifest(folder)
        damaged: dict[str, str] = {}
        pinned = PinnedFolder(folder)
        for file, entry in files.items():
            try:
                pinned.check(file, entry)
            except UnusableFileError as exc:
                damaged[file] = f"{file}: {exc}"
        problems += damaged.values()
        if files:
            unlisted = [file for file in _walk(folder) if file not in files and file not in _UNLISTED]
            problems += [f"{file}: not listed in {MANIFEST_FILE}; remove it" for file in unlisted]
        tokenizer = None
        if manifest is not None and not damaged.keys() & set(manifest.tokenizer.files):
            try:
                tokenizer = load_tokenizer(manifest.tokenizer, pinned.path)
            except (ValueError, OSError) as exc:
                problems.append(str(exc))
        if problems or manifest is None or tokenizer is None:
            raise BundleError(folder, problems[:MAX_PROBLEMS])
        return cls(path=folder, manifest=manifest, tokenizer=tokenizer, pinned=pinned)

    def variant(self, precision: str) -> PrecisionVariant:
        """Return the graphs and weights of a precision.

        Raises:
            BundleError: the bundle does not have the precision.
        """
        try:
            return self.manifest.precisions[precision]
        except KeyError:
            known = ", ".join(self.manifest.precisions)
            raise BundleError(self.path, [f"has no precision {precision!r}; it has {known}"]) from None

    def shortlist(self) -> Shortlist:
        """Load the shortlist; ``BundleError`` if the bundle has none."""
        described, tokenizer = self.manifest.shortlist, self.manifest.tokenizer
        if described is None:
            raise BundleError(
                self.path,
                [
                    "has no shortlist: export or import the model again with --shortlist-source and --shortlist-target "
                    "or --lexical-table, or leave out --shortlist"
                ],
            )
        try:
            return Shortlist.load(
                self.pinned.path / described.file,
                sources=tokenizer.source_vocab_size,
                vocabulary=tokenizer.target_vocab_size,
            )
        except (ValueError, OSError) as exc:
            raise BundleError(self.path, [f"{described.file} is not a shortlist of this model: {exc}"]) from exc


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a bundle without checking its files; ``BundleError`` lists every problem."""
    folder = Path(path)
    manifest, _, problems = _parse_manifest(folder)
    if manifest is None:
        raise BundleError(folder, problems)
    return manifest


def write_bundle(
    out: str | os.PathLike[str], build: Callable[[Path], ManifestDraft], *, overwrite: bool = False
) -> Bundle:
    """Write a bundle to ``out`` and return it opened.

    The files are written to a sibling of ``out``, which is checked, flushed to disk and then renamed. If anything
    fails, the sibling is removed and ``out`` is unchanged.

    Args:
        build: function that writes the model's files to an empty folder and returns the manifest without ``files``.

    Raises:
        BundleError: ``out`` exists (with ``overwrite``: and is not a bundle), or ``build`` made an invalid bundle.
    """
    target = Path(os.path.abspath(out))
    check_target(target, overwrite=overwrite)
    draft = _sibling(target, "partial")
    try:
        draft.mkdir(parents=True)
    except OSError as exc:
        problem = f"cannot be written: {exc.strerror}; choose a folder below one that you may write to"
        raise BundleError(target, [problem]) from exc
    try:
        parts = build(draft)
        try:
            bundle = _complete(draft, parts)
        except BundleError as exc:  # it names the draft, which is about to be removed
            raise BundleError(target, exc.problems) from exc
        _flush(draft)
        check_target(target, overwrite=overwrite)
        _move_into_place(draft, target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return replace(bundle, path=Path(out))


def manifest_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read the bytes of a bundle's manifest; BundleError if there is none."""
    folder = Path(path)
    if not folder.exists():
        raise BundleError(folder, ["no such folder"])
    if not folder.is_dir():
        raise BundleError(folder, ["not a folder; a bundle is the folder that holds manifest.json"])
    try:
        return read_file(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES)
    except UnusableFileError as exc:
        raise BundleError(folder, [f"{MANIFEST_FILE} {exc}"]) from exc
    except FileNotFoundError:
        raise BundleError(folder, [f"{MANIFEST_FILE} is missing; {_way_to_bundle(folder)}"]) from None
    except OSError as exc:
        raise BundleError(folder, [f"{MANIFEST_FILE} cannot be read: {exc.strerror}"]) from exc


def _way_to_bundle(folder: Path) -> str:
    """Say how to get a bundle from a folder that is none, by the files in it."""
    names = sorted(path.name for path in islice(folder.iterdir(), MAX_PROBLEMS))
    bundles = [name for name in names if (folder / name / MANIFEST_FILE).is_file()]
    if bundles:
        return f"the folder holds bundles: name one of them, such as {folder / bundles[0]}"
    for file, command in (("config.json", "import"), ("best.ckpt", "export")):
        if file in names:
            return f"the folder has a {file}: make a bundle of it with 'jumok {command} {folder} --out BUNDLE'"
    return "is this a bundle?"


def _parse_manifest(folder: Path) -> tuple[Manifest | None, dict[str, FileEntry], list[str]]:
    """Return the manifest if valid, its readable files, and its problems.

    Raises:
        BundleError: the file is not a manifest of a known format.
    """
    raw = manifest_bytes(folder)
    try:
        fields = parse_json(raw)
    except UnusableFileError as exc:
        raise BundleError(folder, [f"{MANIFEST_FILE} {exc}"]) from exc
    if not isinstance(fields, dict):
        raise BundleError(folder, [f"{MANIFEST_FILE} must hold an object, it holds a {type(fields).__name__}"])
    version = fields.get("format_version")
    if isinstance(version, bool) or version not in READABLE_FORMAT_VERSIONS:
        said = "no format_version" if version is None else f"format_version {version!r}"
        readable = " and ".join(map(str, READABLE_FORMAT_VERSIONS))
        raise BundleError(folder, [f"{MANIFEST_FILE} has {said}, this jumok reads format_version {readable}"])
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValidationError as exc:
        problems = _schema_problems(exc)
    else:
        return manifest, manifest.files, []
    try:
        return None, _FILES.validate_python(fields.get("files")), problems
    except ValidationError:  # already among the problems
        return None, {}, problems


def _schema_problems(error: ValidationError) -> list[str]:
    """Return one line per problem: place, problem and value."""
    problems = []
    for details in error.errors(include_url=False):
        where = "".join(map(_path_text, details["loc"])).lstrip(".")
        message = details["msg"].removeprefix("Value error, ")
        scalar = isinstance(details["input"], str | int | float | bool) and details["type"] != "value_error"
        got = f", got {details['input']!r}" if scalar else ""
        problems += [f"{MANIFEST_FILE}: {where}{': ' if where else ''}{line}{got}" for line in message.splitlines()]
    return problems


def _path_text(part: int | str) -> str:
    """Return a part of a field's path: ``inputs[0]``, ``generation.beam_size``, ``files['a.onnx']``."""
    if part == "[key]":  # pydantic's mark for a dictionary key, which the part before names
        return ""
    return f".{part}" if isinstance(part, str) and part.isidentifier() else f"[{part!r}]"


def _measure(path: Path) -> FileEntry:
    with RegularFile(path) as opened:
        return FileEntry(size=opened.size, sha256=opened.sha256())


def _walk(folder: Path) -> Iterator[str]:
    """Yield relative paths of a bundle's files, except names with leading dot."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield (Path(parent) / name).relative_to(folder).as_posix()


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that a bundle may be written to a path; BundleError if not."""
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise BundleError(target, ["exists already; choose another folder, or overwrite a bundle with --overwrite"])
    # Overwriting deletes a folder, so it must be a bundle and not a mistyped home directory.
    if target.is_symlink() or not (target / MANIFEST_FILE).is_file():
        raise BundleError(target, ["exists and is not a bundle, so it is not overwritten; choose another folder"])


def _complete(folder: Path, parts: ManifestDraft) -> Bundle:
    """Measure the files in ``folder``, write the manifest and open the result."""
    files = {file: _measure(folder / file) for file in _walk(folder) if file not in COMPANIONS}
    try:
        manifest = Manifest(**dict(parts), files=files)
    except ValidationError as exc:
        raise BundleError(folder, _schema_problems(exc)) from exc
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return Bundle.open(folder)


def _sibling(target: Path, role: str) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.{role}")


def _move_into_place(draft: Path, target: Path) -> None:
    """Rename ``draft`` to ``target``; if that fails, an old ``target`` stays."""
    replaced = _sibling(target, "replaced") if target.exists() else None
    if replaced is not None:
        target.rename(replaced)
    try:
        draft.rename(target)
    except OSError:
        if replaced is not None:
            replaced.rename(target)
        raise
    _flush_one(target.parent)
    if replaced is not None:
        shutil.rmtree(replaced)


def _flush(folder: Path) -> None:
    """Flush files and folders to disk, before a rename makes them visible."""
    for parent, _, files in os.walk(folder):
        for name in files:
            _flush_one(Path(parent) / name)
        _flush_one(Path(parent))


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
