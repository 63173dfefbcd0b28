"""Damaged and hostile files model.bin are refused with their place."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from jumok_export.bundles import resources
from jumok_export.errors import ExportError
from jumok_export.importers.ctranslate2.importing import import_folder
from jumok_export.importers.ctranslate2.stored import ModelFile
from jumok_export.importers.ctranslate2.transformer import build_model
from jumok_export.importers.huggingface.errors import CheckpointError
from tests.support.checkpoints.ctranslate2_folders import SPECIAL, random_spec, save

TOKENS = [*SPECIAL, "a", "b", "c"]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = save(random_spec((TOKENS, TOKENS)), tmp_path_factory.mktemp("stored") / "model", quantization="int8")
    return (folder / "model.bin").read_bytes()


def problem(content: bytes, folder: Path) -> str:
    (folder / "model.bin").write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        build_model(ModelFile(folder / "model.bin"), epsilon=None, start=2)
    return "\n".join(raised.value.problems)


def text(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def variable(name: str, shape: tuple[int, ...], kind: int, data: bytes, *, size: int | None = None) -> bytes:
    axes = struct.pack("<B", len(shape)) + b"".join(struct.pack("<I", length) for length in shape)
    return text(name) + axes + struct.pack("<BI", kind, len(data) if size is None else size) + data


def file(*variables: bytes, spec: str = "TransformerSpec", version: int = 6, count: int | None = None) -> bytes:
    number = len(variables) if count is None else count
    head = struct.pack("<I", version) + text(spec) + struct.pack("<II", 7, number)
    return head + b"".join(variables) + struct.pack("<I", 0)


def test_every_truncation_is_refused(content: bytes, tmp_path: Path) -> None:
    for length in [*range(40), *range(40, len(content) - 1, 211), len(content) - 1]:
        found = problem(content[:length], tmp_path)
        assert "is truncated" in found or "cannot be read" in found


FAULTS: dict[str, tuple[bytes, str]] = {
    "other file": (b"PK\x03\x04" + bytes(100), "model.bin is no model of CTranslate2, or of an unknown version"),
    "newer": (file(version=7), "7 is not 2 to 6"),
    "decoder-only": (file(spec="TransformerDecoderSpec"), "a decoder-only model writes texts and does not translate"),
    "Whisper": (file(spec="WhisperSpec"), "Whisper reads speech"),
    "unknown": (file(spec="MixtureSpec"), "the model is a 'MixtureSpec': supported are TransformerSpec"),
    "nothing": (file(), "encoder/embeddings_0/weight is missing"),
    "many variables": (file(count=2**32 - 1), "it names 4294967295 variables"),
    "empty name": (file(struct.pack("<H", 0)), "a name of 0 bytes"),
    "many axes": (file(text("a") + b"\xff"), "a variable with 255 axes"),
    "type": (file(variable("a", (), 9, b"")), "an unknown type, 9"),
    "size": (file(variable("a", (2,), 0, bytes(4))), "4 bytes for shape (2,)"),
    "huge": (file(variable("a", (2**31, 2**31, 2**31), 0, b"", size=2**32 - 1)), "4294967295 bytes for shape"),
    "beyond": (file(variable("a", (2**28,), 0, b"", size=2**30)), "is truncated: 1073741824 bytes are expected"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_hostile_files_are_refused(fault: str, tmp_path: Path) -> None:
    content, expected = FAULTS[fault]
    assert expected in problem(content, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"linear_1/weight_scale", b"linear_1/weight_scalx", "its scale is missing"),
        (b"decoder/projection", b"decoder/projectiox", "decoder/projection/weight is missing"),
    ],
)
def test_missing_parts_are_named(old: bytes, new: bytes, expected: str, content: bytes, tmp_path: Path) -> None:
    assert expected in problem(content.replace(old, new), tmp_path)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_scales_without_a_finite_weight_are_refused(value: float, content: bytes, tmp_path: Path) -> None:
    marker = b"encoder/layer_0/ffn/linear_0/weight_scale\0"
    at = content.index(marker) + len(marker) + struct.calcsize("<BIBI")
    damaged = content[:at] + np.float32(value).tobytes() + content[at + 4 :]
    assert "NaN or infinite values are in encoder/layer_0/ffn/linear_0/weight" in problem(damaged, tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.bin")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        ModelFile(tmp_path / "model.bin")


def test_a_model_larger_than_memory_is_refused(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "free_memory", lambda: 2**27)  # a small machine
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(ExportError, match=r"needs about 0\.4 GiB of memory in int8, and 0\.1 GiB are free: use"):
        import_folder(tmp_path, tmp_path / "out", precisions=["int8"])
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]
