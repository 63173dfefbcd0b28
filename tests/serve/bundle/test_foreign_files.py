"""Files of unknown origin: pipes, devices, holes and huge files are refused at once."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jumok_serve.bundle import bundle as bundle_module
from jumok_serve.bundle.bundle import read_manifest
from jumok_serve.bundle.model_root import ModelRoot
from jumok_serve.bundle.shortlist import Shortlist
from jumok_serve.errors import BundleError
from jumok_serve.files import UnusableFileError, parse_json, read_file
from tests.serve.bundle.test_bundle import edit_manifest, problems_of


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
@pytest.mark.parametrize("file", ["manifest.json", "fp32/weights.bin", "tokenizer.model"])
def test_a_pipe_or_a_device_is_refused_at_once(toy_bundle: Path, file: str, make: Callable[[Path], None]) -> None:
    """A pipe may have no writer, and an endless device would be read until memory runs out."""
    (toy_bundle / file).unlink()
    make(toy_bundle / file)
    found = "\n".join(problems_of(toy_bundle))
    assert file in found
    assert "is not a regular file" in found or "outside" in found


def test_a_root_with_a_pipe_for_a_manifest_is_listed(tmp_path: Path, toy_bundle: Path) -> None:
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped/manifest.json")
    found = ModelRoot(tmp_path).bundles()
    assert toy_bundle.name in [bundle.folder for bundle in found if not bundle.problem]


def test_a_file_of_holes_is_refused(toy_bundle: Path) -> None:
    """Its hash would take as long as that of a full disk."""
    os.truncate(toy_bundle / "fp32/weights.bin", 2**42)
    entry = {"fp32/weights.bin": {"size": 2**42, "sha256": "0" * 64}}
    edit_manifest(toy_bundle, lambda fields: fields["files"].update(entry))
    assert f"fp32/weights.bin: is sparse: {2**42} bytes" in "\n".join(problems_of(toy_bundle))


def test_a_large_manifest_is_refused(toy_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "MAX_MANIFEST_BYTES", 100)
    assert "manifest.json is too large" in problems_of(toy_bundle)[0]


def test_a_manifest_of_many_files_is_refused(toy_bundle: Path) -> None:
    entry = {"size": 0, "sha256": "0" * 64}
    edit_manifest(toy_bundle, lambda fields: fields["files"].update({f"f{number}": entry for number in range(1001)}))
    with pytest.raises(BundleError, match="at most 1000 items"):
        read_manifest(toy_bundle)


def test_a_growing_or_missing_file_is_no_crash(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_file(file, 5) == b"12345"
    with pytest.raises(UnusableFileError, match="is too large: 5 bytes, at most 4 are read"):
        read_file(file, 4)
    with pytest.raises(UnusableFileError, match="is not a regular file"):
        read_file(tmp_path, 4)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none", 4)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 10_000])
def test_json_that_is_none(content: bytes) -> None:
    with pytest.raises(UnusableFileError, match="is not JSON"):
        parse_json(content)


SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(path=st.lists(st.integers(0, 10**6), min_size=1, max_size=6), value=VALUES, remove=st.booleans())
def test_any_manifest_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, path: list[int], value: Any, remove: bool, manifest_fields: Any
) -> None:
    """One field at any depth is replaced or removed."""
    folder = tmp_path_factory.mktemp("manifest")
    fields = parse_json(manifest_fields)
    place: Any = fields
    for number in path[:-1]:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        inner = place[keys[number % len(keys)]] if keys else None
        if not isinstance(inner, dict | list) or not inner:
            break
        place = inner
    keys = list(place) if isinstance(place, dict) else range(len(place))
    key = keys[path[-1] % len(keys)]
    if remove:
        del place[key]
    else:
        place[key] = value
    (folder / "manifest.json").write_text(json.dumps(fields), encoding="utf-8", errors="surrogatepass")
    try:
        read_manifest(folder)
        problems_of(folder)  # the files are not there
    except BundleError:
        pass
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def manifest_fields() -> bytes:
    return (Path(__file__).parents[3] / "models/multi30k-en-de-transformer/manifest.json").read_bytes()


@pytest.mark.parametrize("count", [2**28, 2**50])
def test_lists_that_are_larger_than_their_file_are_refused(count: int, tmp_path: Path) -> None:
    """An array of zeros shrinks by a factor of a thousand, and a header may declare any size."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({count},), }}".ljust(117).encode() + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(tmp_path / "lists.npz", "w", zipfile.ZIP_DEFLATED) as lists:
        for name in ("offsets", "targets", "always"):
            lists.writestr(f"{name}.npy", array)
    with pytest.raises(ValueError, match="it has no arrays"):
        Shortlist.load(tmp_path / "lists.npz", sources=3, vocabulary=9)
    with zipfile.ZipFile(tmp_path / "zeros.npz", "w", zipfile.ZIP_DEFLATED) as zeros:
        for name in ("offsets", "targets", "always"):
            with zeros.open(f"{name}.npy", "w") as member:
                for _ in range(400):
                    member.write(bytes(2**20))
    with pytest.raises(ValueError, match="bytes, at most"):
        Shortlist.load(tmp_path / "zeros.npz", sources=3, vocabulary=9)
