"""Memory and disk of an import: refused if it does not fit, and nothing is left behind."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from jumok_export.bundles import resources
from jumok_export.bundles.resources import check_memory, estimate_memory, estimate_seconds
from jumok_export.errors import ExportError
from jumok_export.importers.huggingface import build_model, import_checkpoint
from jumok_export.importers.huggingface.folder import open_checkpoint, stored_parameters
from jumok_export.importers.huggingface.weight_files import stores_halves
from jumok_serve.bundle.bundle import Bundle
from tests.support.checkpoints.tokenizer_checkpoints import save_small_marian

SIZES: dict[str, Any] = {
    **{"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_layers": 1, "decoder_layers": 1},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2},
}


def anonymous_bytes(pid: int | str) -> int:
    """Anonymous memory of a process now, in bytes; 0 if it has ended."""
    try:
        content = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except ProcessLookupError:
        return 0
    return 1024 * sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", content, re.MULTILINE)))


def save_checkpoint(model: Any, folder: Path) -> None:
    """Save a model without the setting that names the type of its weights."""
    model.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del settings["dtype"]
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.parametrize(("dtype", "parameters"), [("float16", 2**42), ("float32", 2**41)])
def test_a_model_larger_than_memory_is_refused_before_it_is_read(dtype: str, parameters: int, tmp_path: Path) -> None:
    folder, out = tmp_path / "huge", tmp_path / "out"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"dtype": dtype}))
    with (folder / "model.safetensors").open("wb") as file:
        os.truncate(file.fileno(), 2**43)  # a file of holes, which takes no disk
    assert stored_parameters(folder) == parameters
    said: list[str] = []
    needed = estimate_memory(parameters, ["int8"]) / 2**30
    with pytest.raises(ExportError) as refused:
        import_checkpoint(folder, out, precisions=["int8"], progress=said.append)
    assert f"needs about {needed:.1f} GiB of memory in int8, and " in str(refused.value)
    assert "use a machine with more memory" in str(refused.value)
    assert not said
    with pytest.raises(ExportError, match=r"or make int8 alone with --precision int8$"):
        import_checkpoint(folder, out)
    assert [path.name for path in tmp_path.iterdir()] == ["huge"]


def test_weights_in_fp16_are_those_in_fp32(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made: Any = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(vocab_size=300, **SIZES))
    save_checkpoint(made.half(), tmp_path / "halves")
    shutil.copytree(tmp_path / "halves", tmp_path / "floats")
    for part in (tmp_path / "floats").glob("*.safetensors"):
        save_file({name: tensor.float() for name, tensor in load_file(part).items()}, part)
    states = []
    for name, size in (("halves", 2), ("floats", 4)):
        opened = open_checkpoint(tmp_path / name)
        states.append(build_model(opened.config or {}, opened.tensors or {}).model.state_dict())
        stored = sum(part.stat().st_size for part in (tmp_path / name).glob("*.safetensors"))
        assert stored_parameters(tmp_path / name) == stored // size  # no setting says it
    torch.testing.assert_close(*states, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("millions", "gib", "seconds"),
    [(61, 1.04, 22), (238, 1.86, 43), (615, 4.90, 116), (1371, 6.97, None), (3345, 12.81, None)],
)
def test_estimates_in_int8_are_about_what_published_models_took(millions: int, gib: float, seconds: int | None) -> None:
    """OPUS-MT, tc-big and NLLB with 600 million, 1.3 and 3.3 billion, as `make import-memory` measured them."""
    parameters = millions * 10**6
    assert estimate_memory(parameters, ["int8"]) / 2**30 == pytest.approx(1.1 * gib, rel=0.001)
    assert seconds is None or estimate_seconds(parameters, ["int8"]) == pytest.approx(seconds, rel=1 / 5)


@pytest.mark.parametrize(("lacking", "fits"), [(0, True), (0.5, True), (2, False)])
def test_memory_of_this_process_is_not_needed_again(
    lacking: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lacking` is the part of this process's memory by which the free memory is less than the estimate."""
    parameters, own = 10**9, anonymous_bytes("self")
    monkeypatch.setattr(resources, "free_memory", lambda: int(estimate_memory(parameters, ["int8"]) - lacking * own))
    with nullcontext() if fits else pytest.raises(ExportError, match="use a machine with more memory"):
        check_memory(parameters, ["int8"])


def test_memory_that_is_not_of_the_weights_is_no_part_of_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = 10**6
    assert anonymous_bytes("self") > 10 * parameters
    needed = estimate_memory(parameters, ["int8"])
    monkeypatch.setattr(resources, "free_memory", lambda: int(needed - 5 * parameters))
    with pytest.raises(ExportError, match="use a machine with more memory"):
        check_memory(parameters, ["int8"])


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_estimate_grows_with_the_parameters(precision: str) -> None:
    sizes = (0, 1, 30, 61, 100, 238, 615, 1370, 3300)
    estimates = [estimate_memory(millions * 10**6, [precision]) for millions in sizes]
    assert all(fewer < more for fewer, more in pairwise(estimates))
    assert estimate_memory(10**8, ["fp32", "int8"]) == estimate_memory(10**8, ["fp32"])


@pytest.mark.slow
def test_the_estimate_is_at_least_what_small_models_take_and_grows_as_fast(one_core: None, tmp_path: Path) -> None:
    found = []
    for layers in (1, 3):
        checkpoint, out = tmp_path / f"{layers}", tmp_path / f"{layers}.bundle"
        checkpoint.mkdir()
        save_small_marian(checkpoint)
        size = len(json.loads((checkpoint / "vocab.json").read_text(encoding="utf-8")))
        config = transformers.MarianConfig(
            vocab_size=size,
            d_model=512,
            encoder_ffn_dim=2048,
            decoder_ffn_dim=2048,
            encoder_layers=layers,
            decoder_layers=layers,
            max_position_embeddings=32,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=size - 1,
            decoder_start_token_id=size - 1,
        )
        save_checkpoint(transformers.MarianMTModel(config), checkpoint)
        memory = peak_of_import(checkpoint, out)
        parameters = Bundle.open(out).manifest.architecture.parameters
        assert parameters is not None
        found.append((parameters, memory, estimate_memory(parameters, ["int8"])))
    (fewer, least, estimated), (more, most, larger) = found
    assert more > 2 * fewer
    assert least <= estimated
    assert most <= larger
    assert (most - least) / 2 < larger - estimated < 3 * (most - least)


def peak_of_import(checkpoint: Path, out: Path) -> int:
    """Import a checkpoint in int8 in a process of its own; returns its most anonymous memory in bytes."""
    command = [sys.executable, "-m", "jumok", "import", str(checkpoint), "--out", str(out), "--precision", "int8"]
    peak = 0
    with subprocess.Popen(command) as process:
        while process.returncode is None:
            peak = max(peak, anonymous_bytes(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
    assert process.returncode == 0
    return peak


@pytest.fixture
def one_core() -> Iterator[None]:
    """Processes that start in the test have one core: they start no others."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("dtypes", "halves"),
    [
        ([torch.bfloat16], True),
        ([torch.float16, torch.float16], True),
        ([torch.float32, torch.float16], False),
        ([torch.float32], False),
    ],
)
def test_files_with_most_weights_in_16_bits(dtypes: list[torch.dtype], halves: bool, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({name: torch.zeros(300, 20, dtype=dtype) for name, dtype in zip("ab", dtypes, strict=False)}, file)
    assert stores_halves(file) == halves
    file.write_bytes(file.read_bytes()[:-1])
    assert not stores_halves(file)
    assert not stores_halves(tmp_path / "none.safetensors")
    assert not stores_halves(tmp_path / "pytorch_model.bin")
