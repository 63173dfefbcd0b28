"""Bundles on disk: opened only when everything in them is as the manifest says, written all or not at all."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from jumok_serve.bundle.shortlist import Shortlist
from jumok_serve.errors import BundleError
from jumok_serve.manifest.fields import MANIFEST_FILE, RelativePath
from jumok_serve.manifest.manifest import (
    READABLE_FORMAT_VERSIONS,
    FileEntry,
    GraphSpec,
    Manifest,
    ManifestDraft,
    PrecisionVariant,
    TensorSpec,
)
from jumok_serve.tokenizers.tokenizer import Tokenizer, load_tokenizer

# Documents for people may lie beside the manifest and be edited; nothing that the runtime reads is among them.
COMPANIONS = frozenset({"README.md", "LICENSE", "LICENSE.txt", "NOTICE", "config.toml"})
_UNLISTED = COMPANIONS | {MANIFEST_FILE}

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
    """A bundle whose files were all found to be as its manifest says, with its tokenizer loaded."""

    path: Path
    manifest: Manifest
    tokenizer: Tokenizer

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Bundle":
        """Check the whole bundle at ``path`` and open it; ``BundleError`` lists all that is wrong with it.

        Checked are the manifest against its schema, every file's size and SHA-256, files that nobody listed, and that
        the tokenizer loads and has the stated size. The graphs' tensors are compared by ``check_graph`` when a session
        loads them.
        """
        folder = Path(path)
        raw = _read_manifest(folder)
        try:
            manifest, files, problems = _parse_manifest(raw)
        except _UnreadableManifestError as exc:
            raise BundleError(folder, [str(exc)]) from exc
        damaged = {file: problem for file, entry in files.items() if (problem := _file_problem(folder, file, entry))}
        problems += damaged.values()
        if files:
            unlisted = [file for file in _walk(folder) if file not in files and file not in _UNLISTED]
            problems += [f"{file}: not listed in {MANIFEST_FILE}; remove it" for file in unlisted]
        tokenizer = None
        if manifest is not None and not damaged.keys() & set(manifest.tokenizer.files):
            try:
                tokenizer = load_tokenizer(manifest.tokenizer, folder)
            except (ValueError, OSError) as exc:
                problems.append(str(exc))
        if problems or manifest is None or tokenizer is None:
            raise BundleError(folder, problems)
        return cls(path=folder, manifest=manifest, tokenizer=tokenizer)

    def variant(self, precision: str) -> PrecisionVariant:
        """The graphs and weights of one precision; ``BundleError`` if the bundle has none of that name."""
        try:
            return self.manifest.precisions[precision]
        except KeyError:
            known = ", ".join(self.manifest.precisions)
            raise BundleError(self.path, [f"has no precision {precision!r}; it has {known}"]) from None

    def shortlist(self) -> Shortlist:
        """The lists of tokens that translations may be made of; ``BundleError`` if there are none."""
        described, tokenizer = self.manifest.shortlist, self.manifest.tokenizer
        if described is None:
            raise BundleError(
                self.path,
                [
                    "has no shortlist: export or import the model again with --shortlist-source and --shortlist-target "
                    "or --lexical-table, or use it without"
                ],
            )
        try:
            return Shortlist.load(
                self.path / described.file,
                sources=tokenizer.source_vocab_size,
                vocabulary=tokenizer.target_vocab_size,
            )
        except (ValueError, OSError) as exc:
            raise BundleError(self.path, [f"{described.file} is no shortlist of this model: {exc}"]) from exc

    def graph_path(self, precision: str, name: str) -> Path:
        """The ONNX file of a graph; ``BundleError`` if the bundle has no such precision or graph."""
        graphs = self.variant(precision).graphs
        if name not in graphs:
            raise BundleError(self.path, [f"has no graph {name!r} in {precision}; it has {', '.join(graphs)}"])
        return self.path / graphs[name].file


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of a bundle, whose files are not looked at; ``BundleError`` lists all that is wrong with it."""
    folder = Path(path)
    try:
        manifest, _, problems = _parse_manifest(_read_manifest(folder))
    except _UnreadableManifestError as exc:
        raise BundleError(folder, [str(exc)]) from exc
    if manifest is None:
        raise BundleError(folder, problems)
    return manifest


def write_bundle(
    out: str | os.PathLike[str], build: Callable[[Path], ManifestDraft], *, overwrite: bool = False
) -> Bundle:
    """Write a bundle to ``out`` and return it opened.

    ``build`` is given an empty folder, writes the model's files there and returns the manifest without ``files``;
    sizes and hashes are taken here. The folder is a sibling of ``out`` that gets the final name only after it was
    opened with all checks and flushed to disk. If anything fails, nothing is left of it and ``out`` is as it was.

    Raises ``BundleError`` if ``out`` exists (with ``overwrite``: exists and is no bundle), or if what ``build`` made is
    not a valid bundle.
    """
    target = Path(os.path.abspath(out))
    _check_target(target, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _sibling(target, "partial")
    draft.mkdir()
    try:
        parts = build(draft)
        try:
            bundle = _complete(draft, parts)
        except BundleError as exc:  # it names the draft, which nobody asked for and which is about to go
            raise BundleError(target, exc.problems) from exc
        _flush(draft)
        _check_target(target, overwrite=overwrite)
        _move_into_place(draft, target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return replace(bundle, path=Path(out))


class NodeArg(Protocol):
    """What ONNX Runtime says of a graph's input or output (``onnxruntime.NodeArg``)."""

    @property
    def name(self) -> str:
        """Name of the tensor."""

    @property
    def type(self) -> str:
        """ONNX Runtime's spelling of the element type, such as ``tensor(float)``."""

    @property
    def shape(self) -> Sequence[int | str | None]:
        """For each axis its constant size, its symbol, or None if it is dynamic and has no name."""


def check_graph(spec: GraphSpec, inputs: Sequence[NodeArg], outputs: Sequence[NodeArg]) -> list[str]:
    """Compare a loaded graph's tensors with the manifest and return every difference, none if they agree.

    Names, element types, ranks and constant sizes must be equal. Where the manifest has a symbol the graph must have a
    dynamic axis; what the graph calls it does not matter unless it is another symbol of the same manifest entry.
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


def _read_manifest(folder: Path) -> bytes:
    """The manifest as it lies on disk; without one there is nothing else to check."""
    if not folder.exists():
        raise BundleError(folder, ["no such folder"])
    if not folder.is_dir():
        raise BundleError(folder, ["not a folder; a bundle is the folder that holds manifest.json"])
    try:
        return (folder / MANIFEST_FILE).read_bytes()
    except FileNotFoundError:
        raise BundleError(folder, [f"{MANIFEST_FILE} is missing; is this a bundle?"]) from None
    except OSError as exc:
        raise BundleError(folder, [f"{MANIFEST_FILE} cannot be read: {exc.strerror}"]) from exc


class _UnreadableManifestError(ValueError):
    """Too far from a manifest for its parts to be judged."""


def _parse_manifest(raw: bytes) -> tuple[Manifest | None, dict[str, FileEntry], list[str]]:
    """The manifest if it keeps the schema, its files as far as they can be read, and what is wrong with it."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as exc:  # not JSON, not UTF-8, or nested without end
        raise _UnreadableManifestError(f"{MANIFEST_FILE} is not JSON: {exc}") from exc
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
    """One line a problem: where in the manifest, what is wrong, and with which value."""
    problems = []
    for details in error.errors(include_url=False):
        where = "".join(map(_step_text, details["loc"])).lstrip(".")
        message = details["msg"].removeprefix("Value error, ")
        scalar = isinstance(details["input"], str | int | float | bool) and details["type"] != "value_error"
        got = f", got {details['input']!r}" if scalar else ""
        problems += [f"{MANIFEST_FILE}: {where}{': ' if where else ''}{line}{got}" for line in message.splitlines()]
    return problems


def _step_text(part: int | str) -> str:
    """One step of the way to a field: ``inputs[0]``, ``generation.beam_size``, ``files['a.onnx']``."""
    if part == "[key]":  # pydantic's mark for a dictionary key, already named by the step before
        return ""
    return f".{part}" if isinstance(part, str) and part.isidentifier() else f"[{part!r}]"


def _file_problem(folder: Path, file: str, entry: FileEntry) -> str | None:
    path = folder / file
    try:
        if not path.is_file():
            return f"{file}: missing"
        if not path.resolve().is_relative_to(folder.resolve()):
            return f"{file}: a link that leads outside of the bundle"
        size = path.stat().st_size
        if size != entry.size:
            return f"{file}: {size} bytes, the manifest says {entry.size}"
        sha256 = _measure(path).sha256
    except OSError as exc:
        return f"{file}: cannot be read: {exc.strerror}"
    if sha256 != entry.sha256:
        return f"{file}: damaged: SHA-256 is {sha256}, the manifest says {entry.sha256}"
    return None


def _measure(path: Path) -> FileEntry:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return FileEntry(size=path.stat().st_size, sha256=digest.hexdigest())


def _walk(folder: Path) -> Iterator[str]:
    """Files of the bundle by relative path; names that begin with a dot belong to other tools (``.git``)."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield (Path(parent) / name).relative_to(folder).as_posix()


def _check_target(target: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise BundleError(target, ["exists already; choose another folder, or ask for it to be overwritten"])
    # Overwriting deletes a folder: only one that is a bundle, never a mistyped home directory.
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
    """Rename ``draft`` to ``target``; a bundle that is there already is kept aside until the new one stands."""
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
    """Make files and folders durable, so that the rename cannot be on disk before its content."""
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
