"""Marian's binary model files, `.bin`: mapped, and checked before anything is used.

A file is the version, the number of items, a header of four numbers for each item, all names, all shapes, a gap up to a
multiple of 256 bytes, and all values. Numbers are little-endian, 64 bits wide; sizes in shapes have 32 bits.

Matrices of type intgemm8 are stored transposed, except embeddings, with their multiplier after the values.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jumok_export.importers.marian.stored import CONFIGURATION, MarianFile, Quantized, Stored
from jumok_proto.errors import printable
from jumok_serve.files import RegularFile, UnusableFileError

VERSION = 1
INT8, FLOAT32, INTGEMM8 = 0x0101, 0x0404, 0x4101
_TYPES = {
    0x0102: "int16",
    0x0402: "float16",
    0x0408: "float64",
    0x0802: "packed16",
    0x1801: "packed8avx2",
    0x2801: "packed8avx512",
    0x4102: "intgemm16",
}
"""Types that Marian knows and that are not read."""
MOST_ITEMS = 100_000
MOST_NAME_BYTES = 1024
MOST_AXES = 8
_EMBEDDING = "Wemb"


def read_binary(path: Path) -> MarianFile:
    """Read a binary model file.

    Raises:
        UnusableFileError: another file, or a damaged one; the message continues the file's name.
        OSError: the file cannot be opened.
    """
    with RegularFile(path) as file:
        if not file.size:
            raise UnusableFileError("is empty")
    return _Reader(np.memmap(path, np.uint8, "r")).read()


class _Reader:
    def __init__(self, content: NDArray[np.uint8]) -> None:
        self._content = content
        self._at = 0

    def read(self) -> MarianFile:
        version, number = self._integers(2, "its version")
        if version != VERSION:
            raise UnusableFileError(f"is no binary model of Marian: it begins with {version} instead of {VERSION}")
        if number > MOST_ITEMS:
            raise UnusableFileError(f"says that it has {number} parameters, at most {MOST_ITEMS} are read")
        headers = [self._integers(4, "its headers") for _ in range(number)]
        names = [self._name(length) for length, *_ in headers]
        shapes = [self._shape(name, axes) for name, (_, _, axes, _) in zip(names, headers, strict=True)]
        [gap] = self._integers(1, "its shapes")
        self._take(gap, "the gap before its values")
        values = [
            self._take(length, f"the values of {name}") for name, (*_, length) in zip(names, headers, strict=True)
        ]
        items: dict[str, Stored] = {}
        configuration = ""
        for name, shape, (_, kind, _, _), stored in zip(names, shapes, headers, values, strict=True):
            if name in items:
                raise UnusableFileError(f"has two parameters {name}")
            if name == CONFIGURATION:
                configuration = stored[: math.prod(shape)].tobytes().rstrip(b"\0").decode("utf-8", "replace")
            else:
                items[name] = _item(name, kind, shape, stored)
        return MarianFile(items=items, configuration=configuration)

    def _take(self, length: int, what: str) -> NDArray[np.uint8]:
        if length > len(self._content) - self._at:
            raise UnusableFileError(
                f"is damaged or incomplete: it ends after {len(self._content)} bytes, within {what}; download it again"
            )
        self._at += length
        return self._content[self._at - length : self._at]

    def _integers(self, number: int, what: str) -> list[int]:
        integers: list[int] = np.frombuffer(self._take(8 * number, what), "<u8").tolist()
        return integers

    def _name(self, length: int) -> str:
        if not 1 < length <= MOST_NAME_BYTES:
            raise UnusableFileError(f"is damaged: a name has {length} bytes")
        name = self._take(length, "its names").tobytes()
        if name[-1] or not name[:-1].isascii():
            raise UnusableFileError("is damaged: a name has no end")
        return printable(name[:-1].decode("ascii"))

    def _shape(self, name: str, axes: int) -> tuple[int, ...]:
        if axes > MOST_AXES:
            raise UnusableFileError(f"is damaged: {name} has {axes} axes")
        shape: tuple[int, ...] = tuple(np.frombuffer(self._take(4 * axes, "its shapes"), "<i4").tolist())
        if any(size < 1 for size in shape):
            raise UnusableFileError(f"is damaged: {name} has the shape {shape}")
        return shape


def _item(name: str, kind: int, shape: tuple[int, ...], stored: NDArray[np.uint8]) -> Stored:
    size = math.prod(shape)
    needed = {FLOAT32: 4 * size, INTGEMM8: size + 4}.get(kind)
    if needed is None:
        found = _TYPES.get(kind, f"{kind:#x}")
        raise UnusableFileError(f"has {name} in the type {found}: only float32 and intgemm8 are read")
    if len(stored) < needed:
        raise UnusableFileError(f"is damaged: {name} has the shape {shape} and only {len(stored)} bytes")
    if kind == FLOAT32:
        floats: NDArray[np.float32] = np.frombuffer(stored[:needed], "<f4").reshape(shape)
        return floats
    multiplier = float(np.frombuffer(stored[size:needed], "<f4")[0])
    if not (np.isfinite(multiplier) and multiplier > 0):
        raise UnusableFileError(f"is damaged: {name} has the multiplier {multiplier}")
    values: NDArray[np.int8] = np.frombuffer(stored[:size], np.int8)
    if _EMBEDDING in name:
        return Quantized(values.reshape(shape), multiplier)
    return Quantized(values.reshape(shape[::-1]).T, multiplier)
