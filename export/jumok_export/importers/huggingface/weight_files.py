"""Weights of safetensors files and PyTorch pickles, mapped into memory, never executed."""

import json
import math
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import torch
from safetensors import safe_open
from torch import Tensor

from jumok_export.importers.huggingface.errors import CheckpointError

_CODE = re.compile(r"Unsupported (?:global|class|operand)[^\n]*?(?: ([\w.]+\.\w+)|$)", re.IGNORECASE | re.MULTILINE)
_ZIP = b"PK\x03\x04"
_MOST_HEADER_BYTES = 100 * 2**20


def read_weights(paths: Sequence[Path]) -> Mapping[str, Tensor]:
    """Open the tensors of several files by name; they stay on disk until used.

    Raises:
        CheckpointError: damaged files, content other than tensors, or a tensor in two files; lists all.
    """
    problems: list[str] = []
    files: dict[Path, Mapping[str, Tensor]] = {}
    for path in paths:
        try:
            files[path] = _Safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
        except _UnusableError as error:
            problems.append(f"{path.name} {error}")
        except OSError as error:
            problems.append(f"{path.name} cannot be read: {error.strerror or error}")
    found_in: dict[str, Path] = {}
    for path, tensors in files.items():
        problems += [f"{name} is in {found_in[name].name} and in {path.name}" for name in tensors if name in found_in]
        found_in |= dict.fromkeys(tensors, path)
    if problems:
        raise CheckpointError(problems)
    return _MergedFiles({name: files[path] for name, path in found_in.items()})


def stores_halves(path: Path) -> bool:
    """True if most of a safetensors file is tensors of 16 bits; False if it is unreadable, or another file."""
    try:
        opened = _Safetensors(path) if path.suffix == ".safetensors" else None
    except (_UnusableError, OSError):
        return False
    return opened is not None and opened.bytes_in_halves() > path.stat().st_size / 2


class _UnusableError(ValueError):
    """An invalid file; the message continues the file's name."""


class _MergedFiles(Mapping[str, Tensor]):
    def __init__(self, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> Tensor:
        return self._files[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class _Safetensors(Mapping[str, Tensor]):
    """Tensors of one safetensors file, mapped when they are used."""

    def __init__(self, path: Path) -> None:
        try:
            opened: Any = safe_open(path, framework="pt", device="cpu")
        except OSError:
            raise
        except Exception as error:  # SafetensorError, and Python's own for other content
            raise _UnusableError(_damage(path, str(error))) from error
        self._file = opened
        self._names = frozenset(opened.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def bytes_in_halves(self) -> int:
        """Bytes of tensors of 16 bits."""
        slices = map(self._file.get_slice, self._names)
        return sum(2 * math.prod(each.get_shape()) for each in slices if each.get_dtype() in {"F16", "BF16"})

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _damage(path: Path, reason: str) -> str:
    """Describe damage of a safetensors file.

    A file is 8 bytes of header length, a JSON header, and tensors.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = stream.read(length) if 8 + length <= size and length <= _MOST_HEADER_BYTES else b""
    try:
        ends = [entry["data_offsets"][1] for name, entry in json.loads(header).items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"is damaged, or no safetensors file: {size} bytes, {reason}"
    if size < expected:
        return f"is truncated: {size} bytes, expected {expected}; copy or download it again"
    return f"is damaged: {size} bytes, expected {expected}; {reason}"


def _read_pickle(path: Path) -> Mapping[str, Tensor]:
    """Read a `torch.save` file, mapped unless its format is the oldest."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        zipped = stream.read(len(_ZIP)) == _ZIP
    if zipped and is_zipfile(path):
        _check_archive(path, size)
    elif zipped:
        raise _UnusableError(f"is truncated: the directory at its end is missing after {size} bytes; copy it again")
    try:
        with warnings.catch_warnings(action="ignore"):  # remarks on the pickle's version
            content = torch.load(path, weights_only=True, map_location="cpu", mmap=zipped)
    except pickle.UnpicklingError as error:
        code = _CODE.search(str(error))
        if code is not None:
            found = f" ({code[1]})" if code[1] else ""
            raise _UnusableError(
                f"holds code{found}, which is never run: convert it to model.safetensors where you trust it"
            ) from error
        raise _UnusableError(f"is damaged, or no weights file: {size} bytes; {_first_line(error)}") from error
    except OSError:
        raise
    except Exception as error:  # a pickle fails in many ways
        raise _UnusableError(f"is damaged, or no weights file: {size} bytes; {_first_line(error)}") from error
    if not isinstance(content, Mapping):
        raise _UnusableError(f"holds a {type(content).__name__} instead of tensors by name")
    others = [name for name, value in content.items() if not (isinstance(name, str) and isinstance(value, Tensor))]
    if others:
        raise _UnusableError(f"must hold nothing but tensors by name, and {others[0]!r} is none")
    for name, tensor in content.items():
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise _UnusableError(f"has a tensor {name!r} that is not a plain array of numbers")
        # Strides of 0 would declare terabytes that are not there.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise _UnusableError(f"has a tensor {name!r} of {tensor.numel()} numbers, which are not in the file")
    return content


def _check_archive(path: Path, size: int) -> None:
    """Refuse compressed members, which could become larger than memory."""
    try:
        with ZipFile(path) as archive:
            inflated = sum(member.file_size for member in archive.infolist())
    except (BadZipFile, ValueError, NotImplementedError) as error:
        raise _UnusableError(f"is damaged: {error}") from error
    if inflated > size:
        raise _UnusableError(f"is compressed: {size} bytes would become {inflated}; save the model again")


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
