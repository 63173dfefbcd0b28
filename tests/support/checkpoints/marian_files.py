"""Writer of Marian's files: models as `.npz` and `.bin`, shortlists as `lex.*.bin`, vocabularies and configurations."""

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from jumok_export.importers.marian.lexical_shortlist import MAGIC, checksum_of

Arrays = Mapping[str, NDArray[np.float32]]
INT8, FLOAT32, INTGEMM8 = 0x0101, 0x0404, 0x4101
_QUANTIZED = re.compile(r"_W.?$|Wemb")
"""Names of the parameters that Marian's converter stores in 8 bits."""


def configuration_text(settings: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(settings), default_flow_style=None, sort_keys=True)


def write_npz(path: Path, arrays: Arrays, settings: Mapping[str, Any]) -> None:
    text = configuration_text(settings).encode() + b"\0"
    content: dict[str, Any] = {"special:model.yml": np.frombuffer(text, np.int8), **arrays}
    np.savez(path, **content)


def quantized(name: str, array: NDArray[np.float32]) -> tuple[NDArray[np.int8], np.float32]:
    """A matrix in 8 bits as Marian's converter makes it: values in the stored orientation, and the multiplier."""
    multiplier = np.float32(127 / np.abs(array).max())
    values = np.clip(np.rint(array * multiplier), -127, 127).astype(np.int8)
    return (values if "Wemb" in name else np.ascontiguousarray(values.T)), multiplier


def write_binary(
    path: Path, arrays: Arrays, settings: Mapping[str, Any] | None = None, *, alphas: Mapping[str, float] | None = None
) -> None:
    """Write a binary model.

    Args:
        settings: the configuration, stored in the file unless None.
        alphas: multipliers of activations by the name of the matrix; None: a file in float32.
    """
    items: list[tuple[str, int, tuple[int, ...], bytes]] = []
    every = {
        **arrays,
        **{f"{name}_QuantMultA": np.full((1, 1), value, np.float32) for name, value in (alphas or {}).items()},
    }
    for name, array in sorted(every.items()):
        kind, content = FLOAT32, array.astype("<f4").tobytes()
        if alphas is not None and _QUANTIZED.search(name):
            values, multiplier = quantized(name, array)
            kind, content = INTGEMM8, values.tobytes() + struct.pack("<f", multiplier)
        items.append((name, kind, array.shape, content + bytes(-len(content) % 256)))
    if settings is not None:
        text = configuration_text(settings).encode() + b"\0"
        items.append(("special:model.yml", INT8, (len(text),), text + bytes(-len(text) % 256)))
    written = struct.pack("<2Q", 1, len(items))
    for name, kind, shape, content in items:
        written += struct.pack("<4Q", len(name) + 1, kind, len(shape), len(content))
    written += b"".join(name.encode() + b"\0" for name, *_ in items)
    written += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    gap = (len(written) + 8) // 256 * 256 + 256 - len(written) - 8
    written += struct.pack("<Q", gap) + bytes(gap)
    path.write_bytes(written + b"".join(content for *_, content in items))


def write_shortlist(path: Path, lists: Sequence[Sequence[int]], *, frequent: int, best: int = 100) -> None:
    """Write a binary shortlist of the target ids of each source id."""
    offsets = np.cumsum([0, *map(len, lists)]).astype("<u8")
    targets = np.array([target for listed in lists for target in sorted(listed)], "<u4")
    content = struct.pack("<4Q", frequent, best, len(offsets), len(targets)) + offsets.tobytes() + targets.tobytes()
    path.write_bytes(struct.pack("<2Q", MAGIC, checksum_of(content)) + content)


def write_vocabulary(path: Path, pieces: Sequence[str]) -> None:
    """Write a `vocab.yml` of pieces in the order of their ids."""
    lines = (
        f"{yaml.safe_dump(piece, allow_unicode=True, default_style=chr(34)).strip()}: {number}\n"
        for number, piece in enumerate(pieces)
    )
    path.write_text("".join(lines), encoding="utf-8")
