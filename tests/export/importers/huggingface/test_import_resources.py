"""Memory and disk of an import: refused if it does not fit, and nothing is left behind."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.common import random_marian
from benchmarks.common.random_marian import MarianSizes
from benchmarks.common.random_nllb import NllbSizes, make_checkpoint
from benchmarks.import_memory import measure, memory_of_tree
from jumok_export.bundles import resources
from jumok_export.bundles.resources import check_memory, estimate_memory, estimate_seconds
from jumok_export.errors import ExportError
from jumok_export.importers.huggingface import import_checkpoint
from jumok_export.importers.huggingface.folder import stored_parameters
from jumok_export.importers.huggingface.weight_files import stores_halves
from jumok_serve.bundle.bundle import Bundle

SIZES = NllbSizes(vocabulary=700, layers=1, width=32, feed_forward=64, heads=2, languages=5, half=True)


@pytest.mark.parametrize(("dtype", "parameters"), [("float16", 2**42), ("float32", 2**41)])
def test_a_model_that_does_not_fit_into_memory_is_refused_before_it_is_read(
    dtype: str, parameters: int, tmp_path: Path
) -> None:
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


def test_a_checkpoint_in_fp16_gives_the_bundle_of_the_same_weights_in_fp32(tmp_path: Path) -> None:
    make_checkpoint(SIZES, tmp_path / "halves")
    shutil.copytree(tmp_path / "halves", tmp_path / "floats")
    for part in (tmp_path / "floats").glob("*.safetensors"):
        save_file({name: tensor.float() for name, tensor in load_file(part).items()}, part)
    said: list[str] = []
    for name in ("halves", "floats"):
        import_checkpoint(tmp_path / name, tmp_path / f"{name}.bundle", precisions=["int8"], progress=said.append)
        stored = sum(part.stat().st_size for part in (tmp_path / name).glob("*.safetensors"))
        assert stored_parameters(tmp_path / name) == stored // (2 if name == "halves" else 4)  # no setting says it
    assert sum("million parameters: this takes up to" in line for line in said) == 2
    halves, floats = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.name != "manifest.json"}
        for folder in (tmp_path / "halves.bundle" / "int8", tmp_path / "floats.bundle" / "int8")
    )
    assert halves == floats
    assert {path.name for path in tmp_path.iterdir()} == {"halves", "floats", "halves.bundle", "floats.bundle"}


@pytest.mark.parametrize(
    ("parameters", "measured_gib"),
    [(61_000_000, 1.04), (238_000_000, 1.86), (615_000_000, 4.90), (1_371_000_000, 6.97), (3_345_000_000, 12.81)],
)
def test_the_estimate_in_int8_is_a_tenth_more_than_published_models_took(parameters: int, measured_gib: float) -> None:
    """OPUS-MT, tc-big and NLLB with 600 million, 1.3 and 3.3 billion, as `make import-memory` measured them."""
    assert estimate_memory(parameters, ["int8"]) / 2**30 == pytest.approx(1.1 * measured_gib, rel=0.001)


@pytest.mark.parametrize(("lacking", "fits"), [(0, True), (0.5, True), (2, False)])
def test_memory_that_an_export_has_already_is_not_needed_again(
    lacking: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lacking` is the part of this process's memory by which the free memory is less than the estimate."""
    parameters, own = 10**9, memory_of_tree(os.getpid())[0] * 1024
    monkeypatch.setattr(resources, "free_memory", lambda: int(estimate_memory(parameters, ["int8"]) - lacking * own))
    with nullcontext() if fits else pytest.raises(ExportError, match="use a machine with more memory"):
        check_memory(parameters, ["int8"])


def test_memory_that_is_not_of_the_weights_is_no_part_of_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = 10**6
    assert memory_of_tree(os.getpid())[0] * 1024 > 10 * parameters
    needed = estimate_memory(parameters, ["int8"])
    monkeypatch.setattr(resources, "free_memory", lambda: int(needed - 5 * parameters))
    with pytest.raises(ExportError, match="use a machine with more memory"):
        check_memory(parameters, ["int8"])


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_estimate_grows_with_the_parameters(precision: str) -> None:
    estimates = [
        estimate_memory(millions * 10**6, [precision]) for millions in (0, 1, 30, 61, 100, 238, 615, 1370, 3300)
    ]
    assert all(fewer < more for fewer, more in pairwise(estimates))
    assert estimate_memory(10**8, ["fp32", "int8"]) == estimate_memory(10**8, ["fp32"])


@pytest.mark.parametrize(("parameters", "measured_s"), [(61_000_000, 22), (238_000_000, 43), (615_000_000, 116)])
def test_the_estimated_time_in_int8_is_within_a_fifth_of_what_published_models_took(
    parameters: int, measured_s: float
) -> None:
    """The same models and measurements."""
    assert estimate_seconds(parameters, ["int8"]) == pytest.approx(measured_s, rel=1 / 5)


@pytest.mark.slow
def test_the_estimate_is_at_least_what_small_models_take_and_grows_about_as_fast(
    one_core: None, tmp_path: Path
) -> None:
    found = []
    for layers in (1, 3):
        checkpoint, out = tmp_path / f"{layers}", tmp_path / f"{layers}.bundle"
        random_marian.make_checkpoint(MarianSizes(vocabulary=2_000, layers=layers, positions=32), checkpoint)
        memory = measure("opus-mt", "jumok", "int8", checkpoint, out).anonymous_gib * 2**30
        parameters = Bundle.open(out).manifest.architecture.parameters
        assert parameters is not None
        found.append((parameters, memory, estimate_memory(parameters, ["int8"])))
    (fewer, least, estimated), (more, most, larger) = found
    assert more > 2 * fewer
    assert least <= estimated
    assert most <= larger
    assert (most - least) / 2 < larger - estimated < 3 * (most - least)


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
        ({"a": torch.bfloat16}, True),
        ({"a": torch.float16, "b": torch.float16}, True),
        ({"a": torch.float32, "b": torch.float16}, False),
        ({"a": torch.float32}, False),
    ],
)
def test_a_file_stores_halves_if_most_of_it_is_in_16_bits(
    dtypes: dict[str, torch.dtype], halves: bool, tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    save_file({name: torch.zeros(300, 20, dtype=dtype) for name, dtype in dtypes.items()}, file)
    assert stores_halves(file) == halves
    file.write_bytes(file.read_bytes()[:-1])
    assert not stores_halves(file)
    assert not stores_halves(tmp_path / "none.safetensors")
    assert not stores_halves(tmp_path / "pytorch_model.bin")
