"""Older versions of the format are read as CTranslate2 reads them."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from jumok_export.importers.ctranslate2.stored import ModelFile
from jumok_export.importers.ctranslate2.vocabulary import read_settings
from jumok_export.importers.huggingface.errors import CheckpointError
from tests.export.importers.ctranslate2.test_stored import text
from tests.export.importers.ctranslate2.test_transformer import SOURCE, TARGET, assert_equal
from tests.support.checkpoints.ctranslate2_folders import random_spec, save

SIZES = {0: 4, 1: 1, 2: 2, 3: 4}
"""Bytes by type: float32, int8, int16, int32."""
Record = tuple[str, tuple[int, ...], int, bytes]


def records(content: bytes) -> tuple[bytes, list[Record], dict[str, str]]:
    """Head of a file of version 6 after the version, its variables, and the names of aliases' variables."""
    at = 4

    def numbers(layout: str) -> tuple[int, ...]:
        nonlocal at
        found = struct.unpack_from(f"<{layout}", content, at)
        at += struct.calcsize(f"<{layout}")
        return found

    def name() -> str:
        nonlocal at
        [size] = numbers("H")
        at += size
        return content[at - size : at - 1].decode()

    def variables() -> Iterator[Record]:
        nonlocal at
        for _ in range(numbers("I")[0]):
            called, [axes] = name(), numbers("B")
            shape = numbers(f"{axes}I")
            kind, size = numbers("BI")
            at += size
            yield called, shape, kind, content[at - size : at]

    name()
    numbers("I")
    head = content[4:at]
    found = list(variables())
    return head, found, {name(): name() for _ in range(numbers("I")[0])}


def rewrite(folder: Path, version: int) -> Path:
    """Turn a folder of version 6 into one as the converters of an older version wrote it."""
    head, variables, aliases = records((folder / "model.bin").read_bytes())
    config = json.loads((folder / "config.json").read_text())
    if version < 6:
        (folder / "config.json").unlink()
        for token in ("unk_token", "bos_token", "eos_token"):
            variables.append((token, (len(config[token]),), 1, config[token].encode()))
        for flag, on in (
            ("with_source_bos", config["add_source_bos"]),
            ("with_source_eos", config["add_source_eos"]),
            ("with_target_bos", config["decoder_start_token"] == config["bos_token"]),
        ):
            variables.append((flag, (), 1, bytes([on])))
    if version < 3:  # without aliases every name has its values
        by_name = {record[0]: record for record in variables}
        for alias, name in aliases.items():
            for ending in ("", "_scale"):
                if name + ending in by_name:
                    variables.append((alias + ending, *by_name[name + ending][1:]))
    written = struct.pack("<I", version) + head + struct.pack("<I", len(variables))
    for name, shape, kind, values in variables:
        written += text(name) + struct.pack(f"<B{len(shape)}I", len(shape), *shape)
        size = SIZES[kind]
        written += struct.pack("<BI", *((size, len(values) // size) if version < 4 else (kind, len(values)))) + values
    if version >= 3:
        written += struct.pack("<I", len(aliases)) + b"".join(text(a) + text(name) for a, name in aliases.items())
    (folder / "model.bin").write_bytes(written)
    return folder


@pytest.mark.parametrize("quantization", [None, "int8", "int16"])
@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_older_versions_are_read(version: int, quantization: str | None, tmp_path: Path) -> None:
    folder = save(random_spec((SOURCE, TARGET)), tmp_path / "model", quantization=quantization)
    newest = read_settings(folder, ModelFile(folder / "model.bin"))
    rewrite(folder, version)
    file = ModelFile(folder / "model.bin")
    assert file.version == version
    assert read_settings(folder, file) == newest
    assert_equal(folder)


@pytest.mark.parametrize("version", [0, 1, 7])
def test_others_are_refused_by_their_number(version: int, tmp_path: Path) -> None:
    folder = save(random_spec((SOURCE, TARGET)), tmp_path / "model")
    content = (folder / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(struct.pack("<I", version) + content[4:])
    with pytest.raises(CheckpointError, match=f"{version} is not 2 to 6"):
        ModelFile(folder / "model.bin")
