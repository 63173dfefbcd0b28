"""The file model.bin of CTranslate2: variables by name, each read within the file's bounds.

The format is that of CTranslate2's `model_spec.py` and `model.cc`: a version, the specification's name and revision,
and variables with name, shape, type and content; then aliases.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_serve.files import RegularFile, UnusableFileError

FILE = "model.bin"
VERSIONS = range(2, 7)
"""Versions of the format that are read."""
_TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
_OLD_TYPES = {4: "float32", 2: "int16", 1: "int8"}
"""Types by bytes, before version 4."""
_BYTES = {"float32": 4, "int8": 1, "int16": 2, "int32": 4, "float16": 2, "bfloat16": 2}
_GLOBAL_INT16_SCALE = 1000.0
"""Scale of 16-bit weights that have none of their own."""
_MOST_VARIABLES = 2**20
_MOST_AXES = 4
_MOST_NAME = 1024


@dataclass(frozen=True)
class Variable:
    """A variable's place in the file."""

    shape: tuple[int, ...]
    dtype: str
    offset: int


class ModelFile(Mapping[str, Variable]):
    """Variables of a model.bin by name, aliases included; the file stays mapped.

    Attributes:
        spec: name of the specification, such as ``TransformerSpec``.
        revision: revision of the specification.
        version: version of the file's format.

    Raises:
        CheckpointError: no such file, or a truncated or damaged one.
    """

    def __init__(self, path: Path) -> None:
        try:
            with RegularFile(path):
                self._content = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, UnusableFileError, ValueError) as error:
            raise CheckpointError([f"{path.name} cannot be read: {error}"]) from error
        reader = _Reader(self._content, path.name)
        self.version = reader.number("<I")
        if self.version not in VERSIONS:
            raise CheckpointError(
                [f"{path.name} is no model of CTranslate2, or of an unknown version: {self.version} is not 2 to 6"]
            )
        self.spec, self.revision = reader.text(), reader.number("<I")
        self._variables: dict[str, Variable] = {}
        for _ in range(reader.count(_MOST_VARIABLES, "variables")):
            name = reader.text()
            self._variables.setdefault(name, reader.variable(self.version))
        self._bases = {name: name for name in self._variables}
        if self.version >= 3:
            for _ in range(reader.count(_MOST_VARIABLES, "aliases")):
                alias, name = reader.text(), reader.text()
                for ending in ("", "_scale", "_zero"):
                    if name + ending in self._variables:
                        self._bases.setdefault(alias + ending, name + ending)

    def __getitem__(self, name: str) -> Variable:
        return self._variables[self._bases[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bases)

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def parameters(self) -> int:
        """Number of the model's parameters."""
        return sum(prod(variable.shape) for variable in self._variables.values())

    def base(self, name: str) -> str:
        """Return the stored name of a variable, which its aliases share."""
        return self._bases[name]

    def same(self, one: str, other: str) -> bool:
        """True if two names are of one variable."""
        return self.base(one) == self.base(other)

    @property
    def quantized(self) -> bool:
        """True if matrices are stored in 8 bits."""
        return any(variable.dtype == "int8" and len(variable.shape) == 2 for variable in self._variables.values())

    def number(self, name: str, default: float) -> float:
        """Read a variable with one number, or return the default."""
        if name not in self:
            return default
        if self[name].shape != ():
            raise CheckpointError([f"{name} must be one number, it has shape {self[name].shape}"])
        return float(self._values(self[name], slice(None)))

    def text(self, name: str, default: str) -> str:
        """Read a variable that holds the bytes of a text, or return the default."""
        if name not in self:
            return default
        if self[name].dtype != "int8":
            raise CheckpointError([f"{name} must be a text, it is {self[name].dtype}"])
        return self._values(self[name], slice(None)).tobytes().decode("utf-8", errors="replace")

    def weights(self, name: str, rows: slice = slice(None)) -> Tensor:
        """Read a variable as float32, dequantized as CTranslate2 does.

        With `rows` only a part of its first axis is read.

        Raises:
            CheckpointError: a quantized variable whose scale is missing or does not fit.
        """
        variable = self[name]
        values = self._values(variable, rows)
        if variable.dtype in {"int8", "int16"}:
            with np.errstate(invalid="ignore"):
                values = values.astype(np.float32) * self._reciprocal_scales(name, variable, rows)
        elif variable.dtype == "bfloat16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        else:
            values = values.astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(values))

    def _reciprocal_scales(self, name: str, variable: Variable, rows: slice) -> NDArray[np.float32]:
        scale = f"{name}_scale"
        if scale not in self and variable.dtype == "int16":
            return np.full((), np.float32(1) / np.float32(_GLOBAL_INT16_SCALE), np.float32)
        if scale not in self or self[scale].dtype != "float32":
            raise CheckpointError([f"{name} is {variable.dtype}, and its scale is missing"])
        found = self[scale]
        if found.shape not in {(), variable.shape[:1]}:
            raise CheckpointError([f"{scale} has shape {found.shape}, expected {variable.shape[:1]}"])
        with np.errstate(divide="ignore"):  # infinite weights are refused by name
            reciprocal: NDArray[np.float32] = np.float32(1) / self._values(found, rows).astype(np.float32)
        return reciprocal.reshape(-1, *[1] * (len(variable.shape) - 1)) if found.shape else reciprocal

    def _values(self, variable: Variable, rows: slice) -> NDArray[np.generic]:
        size = prod(variable.shape) * _BYTES[variable.dtype]
        kind = "uint16" if variable.dtype == "bfloat16" else variable.dtype
        stored = self._content[variable.offset : variable.offset + size]
        # Numbers are not aligned in the file: NumPy reads them, PyTorch needs a copy.
        values = np.ndarray(variable.shape, np.dtype(kind).newbyteorder("<"), stored)
        return values[rows] if variable.shape else values


class _Reader:
    """Numbers and texts of a file in order; each must lie within the file."""

    def __init__(self, content: NDArray[np.uint8], name: str) -> None:
        self._content = content
        self._name = name
        self._at = 0

    def number(self, layout: str) -> int:
        (number,) = struct.unpack(layout, self._take(struct.calcsize(layout)))
        return int(number)

    def count(self, most: int, what: str) -> int:
        count = self.number("<I")
        if count > most:
            raise CheckpointError([f"{self._name} is damaged: it names {count} {what}"])
        return count

    def text(self) -> str:
        size = self.number("<H")
        if not 1 <= size <= _MOST_NAME:
            raise CheckpointError([f"{self._name} is damaged: a name of {size} bytes at byte {self._at}"])
        try:
            return self._take(size)[:-1].decode()
        except UnicodeDecodeError as error:
            raise CheckpointError([f"{self._name} is damaged: a name is no text at byte {self._at}"]) from error

    def variable(self, version: int) -> Variable:
        axes = self.number("<B")
        if axes > _MOST_AXES:
            raise CheckpointError([f"{self._name} is damaged: a variable with {axes} axes at byte {self._at}"])
        shape = tuple(self.number("<I") for _ in range(axes))
        kind = self.number("<B")
        if version >= 4:
            dtype = _TYPES[kind] if kind < len(_TYPES) else None
            size = self.number("<I")
        else:
            dtype = _OLD_TYPES.get(kind)
            size = self.number("<I") * kind
        if dtype is None:
            raise CheckpointError([f"{self._name} is damaged: an unknown type, {kind}, at byte {self._at}"])
        if size != prod(shape) * _BYTES[dtype]:
            raise CheckpointError([f"{self._name} is damaged: {size} bytes for shape {shape} at byte {self._at}"])
        offset = self._at
        self._skip(size)
        return Variable(shape, dtype, offset)

    def _take(self, size: int) -> bytes:
        start = self._at
        self._skip(size)
        return self._content[start : self._at].tobytes()

    def _skip(self, size: int) -> None:
        if size > len(self._content) - self._at:
            raise CheckpointError(
                [f"{self._name} is truncated: {size} bytes are expected at byte {self._at} of {len(self._content)}"]
            )
        self._at += size
