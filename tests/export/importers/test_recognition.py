"""Formats are recognised by their files; foreign ones are refused with a remedy."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from jumok_export.errors import ExportError
from jumok_export.importers.recognition import recognise


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "pytorch_model.bin.index.json"])
def test_a_hugging_face_folder_is_recognised_by_any_of_its_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert recognise(tmp_path).name == "a Hugging Face checkpoint"


def test_an_unknown_folder_is_refused_with_all_formats(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    with pytest.raises(ExportError) as raised:
        recognise(tmp_path)
    message, *formats = str(raised.value).splitlines()
    assert message == f"{tmp_path} holds no model of a format that can be imported:"
    assert "  - a Hugging Face checkpoint: config.json, and model.safetensors or pytorch_model.bin" in formats


@pytest.mark.parametrize(
    ("name", "given", "way"),
    [
        ("config.json", "config.json", "{folder}/config.json is only a part of a model: give its folder, {folder}"),
        ("manifest.json", "", "{folder} is a bundle already: use 'jumok serve {folder}'"),
        ("best.ckpt", "", "{folder} is a run of 'jumok train': use 'jumok export --out BUNDLE {folder}'"),
    ],
)
def test_other_files_and_folders_are_refused_with_the_way(name: str, given: str, way: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ExportError) as raised:
        recognise(tmp_path / given)
    assert str(raised.value) == way.format(folder=tmp_path)


CHECKPOINTS: dict[str, dict[str, Any]] = {
    "opennmt-py": {"model": {}, "generator": {"0.weight": torch.zeros(2)}, "vocab": {}, "opt": {}},
    "fairseq": {"args": None, "model": {}, "optimizer_history": [{"num_updates": 3}], "last_optimizer_state": {}},
}


@pytest.mark.parametrize("in_zip", [True, False])
@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("given", ["file", "folder"])
def test_training_checkpoints_are_refused_with_the_way(kind: str, in_zip: bool, given: str, tmp_path: Path) -> None:
    file = tmp_path / "model_step_3.pt"
    torch.save(CHECKPOINTS[kind], file, _use_new_zipfile_serialization=in_zip)
    with pytest.raises(ExportError) as raised:
        recognise(file if given == "file" else tmp_path)
    message = str(raised.value)
    assert "which is not imported: CTranslate2 converts it, and its folder can be imported" in message
    assert f"ct2-{kind}-converter --model_path {file}" in message
    assert message.endswith("jumok import FOLDER")


def zip_with_a_damaged_member() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"onmt " * 1000)
    content = stream.getvalue()
    start = content.index(b"data.pkl") + len(b"data.pkl")
    return content[:start] + b"\xff" * 8 + content[start + 8 :]


OTHERS = {
    "empty": b"",
    "cut short": b"PK\x03\x04 cut short",
    "damaged": zip_with_a_damaged_member(),
    "of a tensor": None,
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_other_pytorch_files_are_refused(content: bytes | None, tmp_path: Path) -> None:
    """None is a file of a tensor that no format knows."""
    torch.save({"weight": torch.zeros(2)}, tmp_path / "model.pt")
    if content is not None:
        (tmp_path / "model.pt").write_bytes(content)
    for path in (tmp_path, tmp_path / "model.pt"):
        with pytest.raises(ExportError, match=r"is a PyTorch file without a known model: .* docs/own-model.md says$"):
            recognise(path)
