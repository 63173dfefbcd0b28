"""Checkpoints with huge numbers, deep nesting, pipes or weights that are not there are refused at once."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.families import build_model
from jumok_export.importers.huggingface.folder import open_checkpoint
from jumok_export.importers.huggingface.generation import read_generation
from jumok_export.importers.huggingface.weight_files import read_weights
from jumok_export.training.configuration_file import ConfigurationError, load_configuration
from tests.support.checkpoints.random_checkpoints import config_of, random_checkpoint

HUGE = 10**400


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {kind: random_checkpoint(kind) for kind in ("bart", "marian", "t5")}


@pytest.fixture
def folder(models: dict[str, Any], tmp_path: Path) -> Path:
    models["bart"].save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def problems(folder: Path) -> str:
    try:
        return "\n".join(open_checkpoint(folder).problems)
    except CheckpointError as error:
        return "\n".join(error.problems)


SIZES = {
    "bart": ["vocab_size", "d_model", "encoder_attention_heads", "decoder_layers", "encoder_ffn_dim", "pad_token_id"],
    "marian": ["encoder_layers", "decoder_layers", "max_position_embeddings", "decoder_vocab_size"],
    "t5": ["num_layers", "num_decoder_layers", "d_kv", "n_positions", "relative_attention_num_buckets"],
}


@pytest.mark.parametrize("size", [10**9, HUGE, 1e300, float("inf"), float("nan"), -HUGE])
@pytest.mark.parametrize("kind", SIZES)
def test_huge_sizes_are_problems(kind: str, size: float, models: dict[str, Any]) -> None:
    """Neither memory nor time grows with the number."""
    model = models[kind]
    given = config_of(model)
    for field in SIZES[kind]:
        if field == "decoder_vocab_size":
            given["share_encoder_decoder_embeddings"] = False
        with pytest.raises(CheckpointError) as caught:
            build_model({**given, field: size}, model.state_dict())
        assert any(field in problem and len(problem) < 500 for problem in caught.value.problems)


def test_a_table_of_positions_beyond_memory_is_refused(models: dict[str, Any]) -> None:
    model = models["marian"]
    given = config_of(model)
    with pytest.raises(CheckpointError, match="must make a table of at most"):
        build_model({**given, "max_position_embeddings": 2**20, "d_model": 2**20}, model.state_dict())


@pytest.mark.parametrize("field", ["num_beams", "max_length", "length_penalty", "top_k", "temperature", "eos_token_id"])
@pytest.mark.parametrize("value", [HUGE, -HUGE, float("inf"), float("nan"), [HUGE], {"a": 1}])
def test_huge_numbers_of_generation_are_problems(field: str, value: Any) -> None:
    sampled = field in {"top_k", "temperature"}
    settings = {"eos_token_id": 2, "decoder_start_token_id": 2, "do_sample": sampled, field: value}
    with pytest.raises(CheckpointError) as caught:
        read_generation(settings, legacy=False, vocabulary=99, pad=1, max_target_length=20, start=2)
    assert any(field in problem and len(problem) < 500 for problem in caught.value.problems)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "9" * 10_000, '{"a": ' + "9" * 10_000 + "}"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_nested_and_long_json_is_a_problem(name: str, content: str, folder: Path) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    assert f"{name} is not JSON" in problems(folder)


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"],
)
def test_a_pipe_is_refused_without_waiting(name: str, folder: Path) -> None:
    if "index" in name:
        (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert f"{name} is" in problems(folder) or "weights are missing" in problems(folder)


def wide(file: Path, zipped: bool) -> None:
    """A few bytes would become 96 GB when they are copied."""
    torch.save({"weight": torch.zeros(1).expand(2**30, 24)}, file, _use_new_zipfile_serialization=zipped)


def compressed(file: Path) -> None:
    """Zeros shrink by a factor of a thousand."""
    torch.save({"weight": torch.zeros(10**6)}, file)
    with (
        zipfile.ZipFile(io.BytesIO(file.read_bytes())) as plain,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for member in plain.namelist():
            small.writestr(member, plain.read(member))


def headed(header: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(len(header).to_bytes(8, "little") + header + b"rest")


NOT_THERE = f"has a tensor 'weight' of {24 * 2**30} numbers, which are not in the file"


@pytest.mark.parametrize(
    ("name", "write", "problem"),
    [
        ("pytorch_model.bin", lambda file: wide(file, zipped=True), NOT_THERE),
        ("pytorch_model.bin", lambda file: wide(file, zipped=False), NOT_THERE),
        (
            "pytorch_model.bin",
            lambda file: torch.save({"weight": torch.eye(3).to_sparse()}, file),
            "'weight' that is not a plain array of numbers",
        ),
        ("pytorch_model.bin", compressed, "is compressed"),
        ("model.safetensors", headed(b"[" * 50_000), "is damaged"),
        ("model.safetensors", headed(b'{"a":' * 50_000), "is damaged"),
        ("model.safetensors", headed(b"{}"), "is damaged"),
        ("model.safetensors", headed(b"\xff" * 9), "is damaged"),
    ],
    ids=["strides of 0", "strides of 0, old", "sparse", "compressed", "lists", "objects", "no tensor", "no text"],
)
def test_absent_weights_are_refused(name: str, write: Callable[[Path], object], problem: str, tmp_path: Path) -> None:
    write(tmp_path / name)
    with pytest.raises(CheckpointError, match=problem):
        read_weights([tmp_path / name])


@pytest.mark.parametrize("content", ["a = " + "[" * 100_000, "a = " + "9" * 10_000])
def test_nested_training_files_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError):
        load_configuration(tmp_path / "config.toml")
    (tmp_path / "config.toml").unlink()
    os.mkfifo(tmp_path / "config.toml")
    with pytest.raises(ConfigurationError, match="is not a regular file"):
        load_configuration(tmp_path / "config.toml")
