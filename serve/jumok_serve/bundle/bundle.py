"""Open bundles whose files match the manifest; write bundles atomically."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from jumok_serve.bundle.pinned_folder import PinnedFolder
from jumok_serve.bundle.shortlist import Shortlist
from jumok_serve.errors import BundleError
from jumok_serve.files import RegularFile, UnusableFileError, parse_json, read_file
from jumok_serve.manifest.manifest import (
    READABLE_FORMAT_VERSIONS,
    FileEntry,
    GraphSpec,
    Manifest,
    ManifestDraft,
    PrecisionVariant,
    TensorSpec,
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

_ONNX_TYPES = {
    "float32": "tensor(float)",
    "float16": "tensor(float16)",
    "int64": "tensor(int64)",
    "int32": "tensor(int32)",
    "int8": "tensor(int8)",
    "uint8": "tensor(uint8)",
    "bool": "tensor(bool)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A checked bundle with its tokenizer loaded.

    Attributes:
        manifest: the manifest; all files match it.
        pinned: the folder as it was opened; None for a bundle that no session reads.
    """

    path: Path
    manifest: Manifest
    tokenizer: Tokenizer
    pinned: PinnedFolder | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Bundle":
        """Check the bundle at ``path`` and open it.

        The checks are: the manifest's schema, sizes and SHA-256 of all files, no unlisted file, and a tokenizer that
        loads and has the stated sizes. The tensors of a graph are checked when a session loads it; see `check_graph`.

        Raises:
            BundleError: lists every problem.
        """
        folder = Path(path)
        raw = manifest_bytes(folder)
        try:
            manifest, files, problems = _parse_manifest(raw)
        except _UnreadableManifestError as exc:
            raise BundleError(folder, [str(exc)]) from exc
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
                (self.path if self.pinned is None else self.pinned.path) / described.file,
                sources=tokenizer.source_vocab_size,
                vocabulary=tokenizer.target_vocab_size,
            )
        except (ValueError, OSError) as exc:
            raise BundleError(self.path, [f"{described.file} is not a shortlist of this model: {exc}"]) from exc


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a bundle without checking its files; ``BundleError`` lists every problem."""
    folder = Path(path)
    try:
        manifest, _, problems = _parse_manifest(manifest_bytes(folder))
    except _UnreadableManifestError as exc:
        raise BundleError(folder, [str(exc)]) from exc
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


class NodeArg(Protocol):
    """ONNX Runtime's description of a graph's input or output (``onnxruntime.NodeArg``)."""

    @property
    def name(self) -> str:
        """Name of the tensor."""

    @property
    def type(self) -> str:
        """Element type in ONNX Runtime's spelling, such as ``tensor(float)``."""

    @property
    def shape(self) -> Sequence[int | str | None]:
        """Constant size or symbol of each axis; None: dynamic without a name."""


def check_graph(spec: GraphSpec, inputs: Sequence[NodeArg], outputs: Sequence[NodeArg]) -> list[str]:
    """Return the differences between a loaded graph's tensors and the manifest.

    Names, element types, ranks and constant sizes must be equal. If the manifest has a symbol, the graph's axis must be
    dynamic; its name does not matter unless it is another symbol of the same entry.
    """
    symbols = {axis for tensor in (*spec.inputs, *spec.outputs) for axis in tensor.axes if isinstance(axis, str)}
    return [
        f"{spec.file}: {problem}"
        for role, specs, found in (("input", spec.inputs, inputs), ("output", spec.outputs, outputs))
        for problem in _tensor_problems(role, specs, found, symbols)
    ]


def _tensor_problems(
    role: str, specs: Sequence[TensorSpec], found: Sequence[NodeArg], symbols: set[str]
) -> Iterator[str]:
    by_name = {node.name: node for node in found}
    expected = {tensor.name for tensor in specs}
    for name in by_name.keys() - expected:
        yield f"{role} {name!r} is not in the manifest, which has {', '.join(sorted(expected)) or 'none'}"
    for tensor in specs:
        node = by_name.get(tensor.name)
        if node is None:
            yield f"{role} {tensor.name!r} is missing; the graph has {', '.join(by_name) or 'none'}"
            continue
        if node.type != _ONNX_TYPES[tensor.dtype]:
            yield f"{role} {tensor.name!r} is {node.type}, the manifest says {_ONNX_TYPES[tensor.dtype]}"
        if not _axes_agree(tensor.axes, node.shape, symbols):
            shape, axes = _shape_text(node.shape), _shape_text(tensor.axes)
            yield f"{role} {tensor.name!r} has shape {shape}, the manifest says {axes}"


def _axes_agree(axes: Sequence[int | str], shape: Sequence[int | str | None], symbols: set[str]) -> bool:
    if len(axes) != len(shape):
        return False
    return all(
        axis == size or (isinstance(axis, str) and not isinstance(size, int) and size not in symbols)
        for axis, size in zip(axes, shape, strict=True)
    )


def _shape_text(axes: Sequence[int | str | None]) -> str:
    return f"[{', '.join('?' if axis is None else str(axis) for axis in axes)}]"


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


class _UnreadableManifestError(ValueError):
    """The file is not a manifest of a known format."""


def _parse_manifest(raw: bytes) -> tuple[Manifest | None, dict[str, FileEntry], list[str]]:
    """Return the manifest if valid, its readable files, and its problems."""
    try:
        fields = parse_json(raw)
    except UnusableFileError as exc:
        raise _UnreadableManifestError(f"{MANIFEST_FILE} {exc}") from exc
    if not isinstance(fields, dict):
        raise _UnreadableManifestError(f"{MANIFEST_FILE} must hold an object, it holds a {type(fields).__name__}")
    version = fields.get("format_version")
    if isinstance(version, bool) or version not in READABLE_FORMAT_VERSIONS:
        said = "no format_version" if version is None else f"format_version {version!r}"
        readable = " and ".join(map(str, READABLE_FORMAT_VERSIONS))
        raise _UnreadableManifestError(f"{MANIFEST_FILE} has {said}, this jumok reads format_version {readable}")
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
        manifest = Manifest(**{name: getattr(parts, name) for name in ManifestDraft.model_fields}, files=files)
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
