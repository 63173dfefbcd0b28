"""Settings and weights in a Hugging Face checkpoint's folder, read without executing anything."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.weight_files import read_weights, stores_halves
from jumok_export.parallel import raise_if_cancelled
from jumok_serve.files import MOST_JSON_BYTES, UnusableFileError, parse_json, read_file

CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Files with all weights, in order of preference; an index lists several files instead."""
_FOREIGN = ("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "model.ckpt.index")
_OF_CHECKPOINTS = (".json", ".safetensors", ".bin", ".model", ".spm", ".txt")
"""Endings of the files that are read."""
_READ_WHOLE = (".json", ".model", ".spm", ".txt")
"""Endings of those that are read into memory, by libraries too."""
_POINTER = b"version https://git-lfs.github.com/spec/"
_ADAPTER = "adapter_config.json"
_HASHED_AT_ONCE = 2**20
"""Bytes that are hashed between looks at whether the import goes on."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFolder:
    """Content of a checkpoint's folder, and the problems of reading it.

    Attributes:
        config: content of config.json; None if unreadable.
        generation: content of generation_config.json; None if missing or unreadable.
        legacy: True without generation_config.json: early versions of transformers had these settings in config.json.
        tensors: weights by name, mapped from their files; None if unreadable.
        problems: reasons why parts are unreadable.
    """

    path: Path
    config: Mapping[str, Any] | None
    generation: Mapping[str, Any] | None
    legacy: bool
    tensors: Mapping[str, Tensor] | None
    weights: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the folder, or of the model in Hugging Face's cache."""
        folder = self.path.resolve()
        cached = _cached(folder)
        return folder.name if cached is None else cached.name.rpartition("--")[2]

    @property
    def commit(self) -> str | None:
        """Commit of a model in Hugging Face's cache."""
        return cached_commit(self.path)

    def sha256(self) -> dict[str, str]:
        """Compute the SHA-256 of every weights file by name; other threads may compute meanwhile."""
        return {name: _sha256(self.path / name) for name in self.weights}


def open_checkpoint(folder: str | os.PathLike[str]) -> CheckpointFolder:
    """Read a checkpoint's settings and open its weights; executes nothing.

    Weights are in model.safetensors or pytorch_model.bin, in one file or in several with an index.

    Raises:
        CheckpointError: a missing part. Unreadable parts are among the result's problems.
    """
    path = Path(folder)
    if not path.is_dir():
        raise CheckpointError([f"{path} is {'a file' if path.exists() else 'not there'}: name a checkpoint's folder"])
    missing = [*_missing(path)]
    if missing:
        raise CheckpointError(missing)
    leaking = [
        f"{entry.name} is a link that leaves the checkpoint's folder: copy the folder with what its links lead to"
        for entry in sorted(path.iterdir())
        if entry.is_symlink() and not _inside(path, entry)
    ]
    # Libraries that read the folder would wait for the writer of a pipe.
    leaking += [
        f"{entry.name} is not a regular file"
        for entry in sorted(path.iterdir())
        if not (entry.is_file() or entry.is_dir())
    ]
    leaking += [
        f"{entry.name} has {entry.stat().st_size} bytes, at most {MOST_JSON_BYTES} are read"
        for entry in sorted(path.iterdir())
        if entry.suffix in _READ_WHOLE and entry.is_file() and entry.stat().st_size > MOST_JSON_BYTES
    ]
    if leaking:
        raise CheckpointError(leaking)
    pointers = [
        f"{entry.name} is a Git LFS pointer, and its content is missing: run `git lfs pull` in the checkpoint's folder"
        for entry in sorted(path.iterdir())
        if entry.suffix in _OF_CHECKPOINTS and _is_pointer(entry)
    ]
    if pointers:
        raise CheckpointError(pointers)
    problems: list[str] = []
    config = _read_object(path / CONFIG, problems)
    legacy = not (path / GENERATION).exists()
    generation = None if legacy else _read_object(path / GENERATION, problems)
    weights: tuple[str, ...] = ()
    tensors = None
    try:
        weights = _weights_files(path)
        tensors = read_weights([path / name for name in weights])
        _check_index(path, weights, tensors)
    except CheckpointError as error:
        problems += error.problems
        tensors = None
    return CheckpointFolder(
        path=path,
        config=config,
        generation=generation,
        legacy=legacy,
        tensors=tensors,
        weights=weights,
        problems=tuple(problems),
    )


def stored_parameters(folder: str | os.PathLike[str]) -> int:
    """Estimate the number of a checkpoint's parameters, by the sizes of its files; 0 if they are unreadable."""
    path, problems = Path(folder), list[str]()
    try:
        files = [path / name for name in _weights_files(path)]
        size = sum(file.stat().st_size for file in files)
    except (CheckpointError, OSError, AssertionError):
        return 0
    config = _read_object(path / CONFIG, problems) or {}
    stated = config.get("dtype") or config.get("torch_dtype")
    halved = str(stated).removeprefix("torch.") in {"float16", "bfloat16"} if stated else stores_halves(files[0])
    return size // (2 if halved else 4)


def _sha256(path: Path) -> str:
    digest, block = sha256(), memoryview(bytearray(_HASHED_AT_ONCE))
    with path.open("rb", buffering=0) as stream:
        while size := stream.readinto(block):
            raise_if_cancelled()
            digest.update(block[:size])
    return digest.hexdigest()


def _is_pointer(path: Path) -> bool:
    """True for a small text that stands for a large file in a Git repository."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_POINTER)) == _POINTER


def _missing(path: Path) -> Iterator[str]:
    if not (path / CONFIG).is_file():
        adapter = (path / _ADAPTER).is_file()
        hint = "merge the adapter into its base model and import that" if adapter else "is this a checkpoint's folder?"
        yield f"{CONFIG} is missing in {path}: {hint}"
    if not any((path / name).is_file() for whole in WEIGHTS for name in (whole, _index(whole))):
        other = [name for name in _FOREIGN if (path / name).is_file()]
        hint = f"; {other[0]} is not read: save the model with transformers' save_pretrained" if other else ""
        yield f"weights are missing in {path}: neither {' nor '.join(WEIGHTS)} is there, nor an index of either{hint}"


def _index(whole: str) -> str:
    return f"{whole}.index.json"


def _inside(folder: Path, path: Path) -> bool:
    """True if a path stays in the folder or its model's cache."""
    cached = _cached(folder.resolve())
    roots = [folder.resolve(), *([] if cached is None else [cached / "blobs"])]
    return any(path.resolve().is_relative_to(root) for root in roots)


def cached_commit(path: Path) -> str | None:
    """Commit of a snapshot in Hugging Face's cache; None elsewhere."""
    folder = path.resolve()
    return None if _cached(folder) is None else folder.name


def _cached(folder: Path) -> Path | None:
    """Model folder in Hugging Face's cache, if `folder` is a snapshot there."""
    model = folder.parent.parent
    return model if folder.parent.name == "snapshots" and model.name.startswith("models--") else None


def _read_object(path: Path, problems: list[str]) -> Mapping[str, Any] | None:
    """Read a JSON object; returns None on a problem, which is added to `problems`."""
    try:
        content = parse_json(read_file(path, MOST_JSON_BYTES))
    except UnusableFileError as error:
        problems.append(f"{path.name} {error}")
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    else:
        if isinstance(content, dict):
            return content
        problems.append(f"{path.name} must hold an object, it holds a {type(content).__name__}")
    return None


def _weights_files(path: Path) -> tuple[str, ...]:
    """Names of the weights files: one, or those of an index.

    Raises:
        CheckpointError: an invalid index, or missing files.
    """
    for whole in WEIGHTS:
        if (path / whole).is_file():
            return (whole,)
        if (path / _index(whole)).is_file():
            return tuple(sorted(set(_weight_map(path, whole).values())))
    raise AssertionError("weights are there")


def _weight_map(path: Path, whole: str) -> Mapping[str, str]:
    index, problems = _index(whole), list[str]()
    content = _read_object(path / index, problems)
    if content is None:
        raise CheckpointError(problems)
    named = content.get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise CheckpointError([f"{index} has no weight_map from tensors to files"])
    for name in sorted(set(named.values())):
        # A plain name is all that save_pretrained writes; "..", a slash or a link could lead anywhere.
        if not re.fullmatch(r"[\w-][\w.-]*", name) or not _inside(path, path / name):
            problems.append(f"{index} names {name!r}, which leaves the checkpoint's folder")
        elif not (path / name).is_file():
            problems.append(f"{name} is missing, and {index} names it")
    if problems:
        raise CheckpointError(problems)
    return named


def _check_index(path: Path, weights: tuple[str, ...], tensors: Mapping[str, Tensor]) -> None:
    if weights[0] in WEIGHTS:
        return
    whole = next(whole for whole in WEIGHTS if (path / _index(whole)).is_file())
    missing = [f"{name} is missing, and {_index(whole)} names it" for name in _weight_map(path, whole).keys() - tensors]
    if missing:
        raise CheckpointError(sorted(missing))
