"""Checkpoint folders: every form of weights, and refusal of damaged, foreign, huge and endless files."""

import hashlib
import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.folder import open_checkpoint
from jumok_export.importers.huggingface.importing import import_checkpoint
from jumok_export.importers.huggingface.weight_files import read_weights
from tests.support.checkpoints.random_checkpoints import random_checkpoint
from tests.support.checkpoints.tokenizer_checkpoints import change


class Runs:
    """An object whose unpickling makes a folder."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.made),)


@pytest.fixture(scope="module")
def model() -> Any:
    return random_checkpoint("bart")


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    """A checkpoint without a tokenizer."""
    model.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def problems(folder: Path) -> tuple[str, ...]:
    """Problems of a folder, raised or collected."""
    try:
        return open_checkpoint(folder).problems
    except CheckpointError as error:
        return error.problems


def in_one_pickle(folder: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, folder / "pytorch_model.bin")


def in_an_old_pickle(folder: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def in_two_pickles(folder: Path, tensors: dict[str, Tensor]) -> None:
    names = sorted(tensors)
    parts = {"pytorch_model-1.bin": names[::2], "pytorch_model-2.bin": names[1::2]}
    for file, part in parts.items():
        torch.save({name: tensors[name] for name in part}, folder / file)
    places = {name: file for file, part in parts.items() for name in part}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))


def in_half_precision(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("save", [in_one_pickle, in_an_old_pickle, in_two_pickles, in_half_precision])
def test_every_form_of_weights(save: Callable[[Path, dict[str, Tensor]], None], model: Any, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    stored = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save(folder, stored)
    opened = open_checkpoint(folder)
    assert opened.problems == ()
    assert opened.tensors is not None
    assert opened.tensors.keys() == stored.keys()
    for name, tensor in stored.items():
        torch.testing.assert_close(opened.tensors[name].float(), tensor, atol=1e-3, rtol=1e-3)


def test_weights_that_transformers_has_split(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    opened = open_checkpoint(tmp_path)
    assert len(opened.weights) > 1
    assert opened.problems == ()
    assert opened.tensors is not None
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(opened.tensors["model.shared.weight"], loaded.state_dict()["model.shared.weight"])
    hashes = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in opened.weights}
    assert opened.sha256() == hashes


def test_safetensors_are_preferred(model: Any, folder: Path) -> None:
    in_one_pickle(folder, {"other": torch.ones(1)})
    assert open_checkpoint(folder).weights == ("model.safetensors",)


def test_folders_without_a_checkpoint_are_refused(tmp_path: Path, folder: Path) -> None:
    assert problems(tmp_path / "nowhere") == (f"{tmp_path}/nowhere is not there: name a checkpoint's folder",)
    assert problems(folder / "config.json") == (f"{folder}/config.json is a file: name a checkpoint's folder",)
    (tmp_path / "empty").mkdir()
    config, weights = problems(tmp_path / "empty")
    assert config == f"config.json is missing in {tmp_path}/empty: is this a checkpoint's folder?"
    assert weights.endswith("neither model.safetensors nor pytorch_model.bin is there, nor an index of either")
    (tmp_path / "empty/tf_model.h5").touch()
    (tmp_path / "empty/adapter_config.json").touch()
    config, weights = problems(tmp_path / "empty")
    assert config.endswith("merge the adapter into its base model and import that")
    assert weights.endswith("; tf_model.h5 is not read: save the model with transformers' save_pretrained")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("share", [0.999, 0.5, 0.001, 0.0])
def test_truncated_weights(model: Any, folder: Path, name: str, share: float) -> None:
    whole = folder / name
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
        in_one_pickle(folder, dict(model.state_dict()))
    content = whole.read_bytes()
    whole.write_bytes(content[: int(len(content) * share)])
    [problem] = problems(folder)
    assert problem.startswith(f"{name} is ")
    assert f"{int(len(content) * share)} bytes" in problem
    if name == "model.safetensors" and share >= 0.5:
        assert f"expected {len(content)}; copy or download it again" in problem


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "sentencepiece.bpe.model"])
def test_pointers_of_git_lfs_are_named(folder: Path, name: str) -> None:
    lines = ["version https://git-lfs.github.com/spec/v1", f"oid sha256:{'0a' * 32}", "size 298769208", ""]
    (folder / name).write_text("\n".join(lines))
    (problem,) = problems(folder)
    assert problem.startswith(f"{name} is a Git LFS pointer, and its content is missing: run `git lfs pull` in the")


def test_damaged_weights(model: Any, folder: Path) -> None:
    whole = folder / "model.safetensors"
    content = whole.read_bytes()
    whole.write_bytes(content + b"more")
    assert problems(folder)[0].startswith(f"model.safetensors is damaged: {len(content) + 4} bytes, expected")
    whole.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"hello")
    assert problems(folder)[0].startswith("pytorch_model.bin is damaged, or no weights file: 5 bytes; ")
    in_an_old_pickle(folder, dict(model.state_dict()))
    old = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(old[:-1000])
    assert problems(folder)[0].startswith("pytorch_model.bin is damaged, or no weights file: ")


@pytest.mark.parametrize("form", ["zip", "old", "plain"])
def test_a_pickle_with_code_is_refused_and_not_run(folder: Path, form: str) -> None:
    (folder / "model.safetensors").unlink()
    file, made = folder / "pytorch_model.bin", folder / "made"
    if form == "plain":
        file.write_bytes(pickle.dumps({"weight": Runs(made)}))
    else:
        torch.save({"weight": Runs(made)}, file, _use_new_zipfile_serialization=form == "zip")
    [problem] = problems(folder)
    assert problem.startswith("pytorch_model.bin holds code")
    assert problem.endswith("convert it to model.safetensors where you trust it")
    assert not made.exists()
    pickle.loads(pickle.dumps(Runs(made)))
    assert made.exists()


def test_pickles_of_other_things(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for content, said in (
        ([torch.ones(1)], "holds a list instead of tensors by name"),
        ({"model": {"weight": torch.ones(1)}}, "must hold nothing but tensors by name, and 'model' is none"),
    ):
        torch.save(content, folder / "pytorch_model.bin")
        assert problems(folder) == (f"pytorch_model.bin {said}",)


@pytest.mark.parametrize("named", ["../elsewhere.safetensors", "/etc/passwd", "sub/part.safetensors", "..", ".hidden"])
def test_an_index_that_leads_elsewhere(folder: Path, named: str) -> None:
    shutil.copy(folder / "model.safetensors", folder.parent / "elsewhere.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.shared.weight": named}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert problems(folder) == (f"model.safetensors.index.json names {named!r}, which leaves the checkpoint's folder",)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_that_leads_elsewhere(folder: Path, file: str) -> None:
    (folder / file).unlink(missing_ok=True)
    (folder.parent / "elsewhere").write_text("{}")
    (folder / file).symlink_to(folder.parent / "elsewhere")
    said = problems(folder)
    assert any(problem.startswith(f"{file} is a link that leaves the checkpoint's folder") for problem in said)
    (folder / "within").write_text("{}")
    (folder / file).unlink()
    (folder / file).symlink_to("within")
    assert not any("is a link" in problem for problem in problems(folder))


def test_a_snapshot_in_the_cache_is_links_to_its_models_blobs(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "cache" / "models--Example--opus-mt-en-de"
    snapshot = model / "snapshots" / "0a1b2c"
    shutil.copytree(folder, model / "blobs")
    snapshot.mkdir(parents=True)
    for file in (model / "blobs").iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    checkpoint = open_checkpoint(snapshot)
    assert checkpoint.problems == ()
    assert checkpoint.name == "opus-mt-en-de"
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to("../../../elsewhere.json")
    (tmp_path / "cache" / "elsewhere.json").write_text("{}")
    assert any(problem.startswith("config.json is a link that leaves") for problem in problems(snapshot))


def test_an_error_keeps_its_problems_when_it_is_sent_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(CheckpointError(["first", "second"])))
    assert sent.problems == ("first", "second")
    assert str(sent) == str(CheckpointError(["first", "second"]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "{index} is not JSON"),
        ("[]", "{index} must hold an object, it holds a list"),
        ('{"weight_map": {}}', "{index} has no weight_map from tensors to files"),
        ('{"weight_map": {"a": "b.safetensors"}}', "b.safetensors is missing, and {index} names it"),
        ('{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}', "a is in 1.safetensors and in 2.safetensors"),
        ('{"weight_map": {"a": "1.safetensors", "b": "1.safetensors"}}', "b is missing, and {index} names it"),
    ],
)
def test_broken_indices(content: str, said: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for number in (1, 2):
        save_file({"a": torch.ones(1)}, folder / f"{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(content)
    assert problems(folder)[0].startswith(said.format(index="model.safetensors.index.json"))


def test_settings_that_cannot_be_read(folder: Path) -> None:
    (folder / "config.json").write_text("[1]")
    (folder / "generation_config.json").write_text("{'")
    (folder / "model.safetensors").write_bytes(b"12345678")
    config, generation, weights = problems(folder)
    assert config == "config.json must hold an object, it holds a list"
    assert generation.startswith("generation_config.json is not JSON: ")
    assert weights.startswith("model.safetensors is damaged")


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "9" * 10_000, '{"a": ' + "9" * 10_000 + "}"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_nested_and_long_json_is_a_problem(name: str, content: str, folder: Path) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    assert f"{name} is not JSON" in "\n".join(problems(folder))


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"],
)
def test_a_pipe_is_refused_without_waiting(name: str, folder: Path) -> None:
    if "index" in name:
        (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    said = "\n".join(problems(folder))
    assert f"{name} is" in said or "weights are missing" in said


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


def refusal(folder: Path, tmp_path: Path) -> tuple[str, ...]:
    """Problems that `import_checkpoint` raises."""
    with pytest.raises(CheckpointError) as raised:
        import_checkpoint(folder, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
    return raised.value.problems


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": ["BertModel"], "model_type": "bert"}, "architecture BertModel is not supported"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "its weights are quantized by 'awq'"),
    ],
)
def test_unsupported_models_are_refused(config: dict[str, object], said: str, folder: Path, tmp_path: Path) -> None:
    """No other problem is reported, such as an unknown tokenizer."""
    change(folder, "config.json", **config)
    [problem] = refusal(folder, tmp_path)
    assert problem.startswith(said)


def test_all_problems_are_reported_at_once(folder: Path, tmp_path: Path) -> None:
    """Missing and misshapen weights, generation settings, the tokenizer."""
    tensors = dict(open_checkpoint(folder).tensors or {})
    tensors["model.shared.weight"] = torch.ones(3, 3)
    del tensors["model.encoder.layers.0.fc1.bias"]
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    change(folder, "generation_config.json", num_beam_groups=2, penalty_alpha=0.6)
    said = "\n".join(refusal(folder, tmp_path))
    for problem in (
        "model.shared.weight has shape (3, 3), expected (37, 24)",
        "model.encoder.layers.0.fc1.bias is missing",
        "num_beam_groups 2 is not supported",
        "penalty_alpha 0.6 is not supported",
        "tokenizer",
    ):
        assert problem in said


def test_broken_weights_do_not_hide_the_rest(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "generation_config.json").write_text('{"max_time": 3.0}')
    (folder / "tokenizer.json").write_text("{")
    said = refusal(folder, tmp_path)
    assert said[0].startswith("model.safetensors is damaged")
    assert any(problem.startswith("max_time 3.0 is not supported") for problem in said)
    assert any("tokenizer" in problem for problem in said)
