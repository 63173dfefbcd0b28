"""Memory and disk of an import: refused if it does not fit, and nothing is left behind."""

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from benchmarks.common.random_nllb import NllbSizes, make_checkpoint
from jumok_export.bundles.resources import estimate_memory
from jumok_export.errors import ExportError
from jumok_export.importers.huggingface import import_checkpoint
from jumok_export.importers.huggingface.folder import stored_parameters

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
    assert sum("million parameters: this takes up to" in line for line in said) == 2
    halves, floats = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.name != "manifest.json"}
        for folder in (tmp_path / "halves.bundle" / "int8", tmp_path / "floats.bundle" / "int8")
    )
    assert halves == floats
    assert {path.name for path in tmp_path.iterdir()} == {"halves", "floats", "halves.bundle", "floats.bundle"}
