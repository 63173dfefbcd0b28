"""Opening a bundle finds every problem; writing one leaves a whole bundle or nothing."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jumok_serve.bundle.bundle import Bundle, write_bundle
from jumok_serve.errors import BundleError
from jumok_serve.manifest.manifest import ManifestDraft

Build = Callable[[Path], ManifestDraft]


def problems_of(path: Path) -> tuple[str, ...]:
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    return caught.value.problems


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = path / "manifest.json"
    fields = json.loads(file.read_bytes())
    change(fields)
    file.write_text(json.dumps(fields), encoding="utf-8")


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Opening


def test_whole_bundle_opens(toy_bundle: Path) -> None:
    bundle = Bundle.open(str(toy_bundle))
    assert bundle.manifest.name == "toy-en-de"
    assert bundle.path == toy_bundle
    assert bundle.tokenizer.vocab_size == bundle.manifest.tokenizer.target_vocab_size
    assert set(bundle.manifest.files) == {
        "fp32/encoder.onnx",
        "fp32/decoder.onnx",
        "fp32/weights.bin",
        "tokenizer.model",
    }


def test_missing_folder_and_missing_manifest(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "nowhere") == ("no such folder",)
    assert problems_of(tmp_path) == ("manifest.json is missing; is this a bundle?",)
    (tmp_path / "file").write_bytes(b"")
    assert problems_of(tmp_path) == ("manifest.json is missing; is this a bundle?",)
    assert problems_of(tmp_path / "file") == ("not a folder; a bundle is the folder that holds manifest.json",)


@pytest.mark.parametrize(
    ("file", "way"),
    [
        ("config.json", "the folder has a config.json: make a bundle of it with 'jumok import {folder} --out BUNDLE'"),
        ("best.ckpt", "the folder has a best.ckpt: make a bundle of it with 'jumok export {folder} --out BUNDLE'"),
        ("model/manifest.json", "the folder holds bundles: name one of them, such as {folder}/model"),
    ],
)
def test_folders_that_are_no_bundle_say_the_way_to_one(tmp_path: Path, file: str, way: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"")
    assert problems_of(tmp_path) == (f"manifest.json is missing; {way.format(folder=tmp_path)}",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "manifest.json is not JSON: "),
        (b'{"format_version": 1', "manifest.json is not JSON: "),
        (b"\xff\xfe", "manifest.json is not JSON: "),
        (b"[" * 100_000, "manifest.json is not JSON: "),
        (b"[1]", "manifest.json must hold an object, it holds a list"),
        (b'{"name": 3}', "manifest.json has no format_version, this jumok reads format_version 1"),
        (b'{"format_version": 7, "x": 1}', "manifest.json has format_version 7, this jumok reads format_version 1"),
        (b'{"format_version": "1"}', "manifest.json has format_version '1', this jumok reads format_version 1"),
        (b'{"format_version": true}', "manifest.json has format_version True, this jumok reads format_version 1"),
        (b'{"format_version": [1]}', "manifest.json has format_version [1], this jumok reads format_version 1"),
    ],
)
def test_unreadable_manifest_is_the_only_problem(toy_bundle: Path, content: bytes, problem: str) -> None:
    (toy_bundle / "fp32/weights.bin").unlink()
    (toy_bundle / "manifest.json").write_bytes(content)
    (found,) = problems_of(toy_bundle)
    assert found.startswith(problem)


def test_unknown_format_version_is_named_before_anything_else(toy_bundle: Path) -> None:
    (toy_bundle / "fp32/weights.bin").unlink()
    edit_manifest(toy_bundle, lambda fields: fields.update(format_version=2, limits="renamed in version 2"))
    assert problems_of(toy_bundle) == ("manifest.json has format_version 2, this jumok reads format_version 1",)


def flip_a_bit(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (Path.unlink, "missing"),
        (lambda file: flip_a_bit(file, 0), "damaged: SHA-256 is [0-9a-f]+.*"),
        (lambda file: flip_a_bit(file, -1), "damaged: SHA-256 is [0-9a-f]+.*"),
        (lambda file: os.truncate(file, file.stat().st_size - 1), r"\d+ bytes, the manifest says \d+"),
    ],
)
def test_a_damaged_file(toy_bundle: Path, damage: Callable[[Path], None], problem: str) -> None:
    damage(toy_bundle / "fp32/weights.bin")
    (found,) = problems_of(toy_bundle)
    assert re.fullmatch(f"fp32/weights.bin: {problem}", found)


def test_unlisted_file_is_refused_but_documents_and_hidden_files_are_not(toy_bundle: Path) -> None:
    (toy_bundle / "README.md").write_text("# Another card\n", encoding="utf-8")
    (toy_bundle / "LICENSE").write_text("Apache-2.0\n", encoding="utf-8")
    (toy_bundle / "config.toml").write_text("", encoding="utf-8")
    (toy_bundle / ".git").mkdir()
    (toy_bundle / ".git/index").write_bytes(b"")
    (toy_bundle / ".DS_Store").write_bytes(b"")
    Bundle.open(toy_bundle)
    (toy_bundle / "fp32/README.md").write_text("", encoding="utf-8")
    (toy_bundle / "decoder.onnx").write_bytes(b"")
    assert problems_of(toy_bundle) == (
        "decoder.onnx: not listed in manifest.json; remove it",
        "fp32/README.md: not listed in manifest.json; remove it",
    )


def test_path_out_of_the_bundle_is_refused(toy_bundle: Path) -> None:
    outside = toy_bundle.parent / "outside.bin"
    shutil.copy(toy_bundle / "fp32/weights.bin", outside)

    def change(fields: dict[str, Any]) -> None:
        fields["files"]["../outside.bin"] = fields["files"].pop("fp32/weights.bin")
        fields["precisions"]["fp32"]["weights"] = "../outside.bin"

    edit_manifest(toy_bundle, change)
    reason = "'../outside.bin' is not a plain path inside the bundle such as 'int8/encoder.onnx'"
    assert problems_of(toy_bundle) == (
        f"manifest.json: precisions.fp32.weights: {reason}",
        f"manifest.json: files['../outside.bin']: {reason}",
    )


def test_link_out_of_the_bundle_is_refused_and_link_to_the_bundle_is_not(toy_bundle: Path) -> None:
    link = toy_bundle.parent / "link"
    link.symlink_to(toy_bundle, target_is_directory=True)
    Bundle.open(link)
    weights = toy_bundle / "fp32/weights.bin"
    weights.rename(toy_bundle.parent / "weights.bin")
    weights.symlink_to(toy_bundle.parent / "weights.bin")
    assert problems_of(toy_bundle) == ("fp32/weights.bin: a link that leads outside of the bundle",)


def test_tokenizer_of_another_size(toy_bundle: Path) -> None:
    def change(fields: dict[str, Any]) -> None:
        fields["tokenizer"] |= {"source_vocab_size": 50, "target_vocab_size": 50}
        fields["precisions"]["fp32"]["graphs"]["decoder"]["outputs"][0]["axes"] = ["R", 50]

    size = Bundle.open(toy_bundle).tokenizer.vocab_size
    edit_manifest(toy_bundle, change)
    assert problems_of(toy_bundle) == (f"tokenizer: the source vocabulary is {size}, the manifest says 50",)


def test_several_problems_are_reported_at_once(toy_bundle: Path) -> None:
    (toy_bundle / "fp32/encoder.onnx").unlink()
    (toy_bundle / "fp32/decoder.onnx").write_bytes(b"short")
    (toy_bundle / "stray.onnx").write_bytes(b"")

    def change(fields: dict[str, Any]) -> None:
        fields["generation"]["beam_size"] = 65
        fields["colour"] = "blue"
        del fields["languages"]["targets"]

    edit_manifest(toy_bundle, change)
    with pytest.raises(BundleError) as caught:
        Bundle.open(toy_bundle)
    starts = (
        "manifest.json: languages.targets: Field required",
        "manifest.json: generation: beam_size must be at least 1 and at most 64, got 65",
        "manifest.json: colour: Extra inputs are not permitted, got 'blue'",
        "fp32/decoder.onnx: 5 bytes, the manifest says ",
        "fp32/encoder.onnx: missing",
        "stray.onnx: not listed in manifest.json; remove it",
    )
    for problem, start in zip(sorted(caught.value.problems), sorted(starts), strict=True):
        assert problem.startswith(start)
        assert problem in str(caught.value)


# Writing


def test_written_files_are_measured_and_nothing_else_is_left(tmp_path: Path, build_toy: Build) -> None:
    out = tmp_path / "models" / "toy"
    written = write_bundle(out, build_toy)
    assert os.listdir(out.parent) == ["toy"]
    assert written.path == out
    assert written.manifest == Bundle.open(out).manifest
    weights = written.manifest.files["fp32/weights.bin"]
    assert weights.size == (out / "fp32/weights.bin").stat().st_size
    assert (out / "README.md").read_text(encoding="utf-8") == "# A toy\n"


def test_written_bundle_is_readable_by_others(tmp_path: Path, build_toy: Build) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    assert write_bundle(tmp_path / "toy", build_toy).path.stat().st_mode == plain.stat().st_mode


def failing(error: BaseException) -> Callable[[Path], None]:
    def fail(_: Path) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (failing(RuntimeError("out of memory")), RuntimeError, "out of memory"),
        (failing(KeyboardInterrupt("stop")), KeyboardInterrupt, "stop"),
        (
            lambda folder: (folder / "fp32/weights.bin").unlink(),
            BundleError,
            r"precisions\.fp32\.weights: 'fp32/weights\.bin' is not among the files",
        ),
        (
            lambda folder: (folder / "tokenizer.model").write_bytes(b"not a model"),
            BundleError,
            r"tokenizer\.model is not a SentencePiece model",
        ),
    ],
)
def test_failure_while_building_leaves_nothing(
    tmp_path: Path, build_toy: Build, spoil: Callable[[Path], object], error: type[BaseException], message: str
) -> None:
    def build(folder: Path) -> ManifestDraft:
        draft = build_toy(folder)
        spoil(folder)
        return draft

    with pytest.raises(error, match=message) as caught:
        write_bundle(tmp_path / "toy", build)
    assert getattr(caught.value, "path", str(tmp_path / "toy")) == str(tmp_path / "toy")
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path, build_toy: Build) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BundleError, match=r"bundle .*/file/new: cannot be written: Not a directory; choose a folder"):
        write_bundle(tmp_path / "file/new", build_toy)


def test_existing_target_is_kept(toy_bundle: Path, build_toy: Build) -> None:
    before = listing(toy_bundle)
    built = []
    with pytest.raises(BundleError, match="exists already"):
        write_bundle(toy_bundle, lambda folder: built.append(folder) or build_toy(folder))  # type: ignore[func-returns-value]
    assert built == []
    assert listing(toy_bundle) == before


def test_target_that_appears_meanwhile_is_kept(tmp_path: Path, build_toy: Build) -> None:
    def build(folder: Path) -> ManifestDraft:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy/notes.txt").write_text("mine", encoding="utf-8")
        return build_toy(folder)

    with pytest.raises(BundleError, match="exists already"):
        write_bundle(tmp_path / "toy", build)
    assert listing(tmp_path) == {"toy/notes.txt": b"mine"}


def test_overwriting_replaces_the_whole_bundle(toy_bundle: Path, build_toy: Build) -> None:
    (toy_bundle / "LICENSE").write_text("of the old one", encoding="utf-8")
    before = set(listing(toy_bundle))
    write_bundle(toy_bundle, lambda folder: build_toy(folder).model_copy(update={"version": "2.0"}), overwrite=True)
    assert Bundle.open(toy_bundle).manifest.version == "2.0"
    assert set(listing(toy_bundle)) == before - {"LICENSE"}
    assert os.listdir(toy_bundle.parent) == ["toy"]


def test_failed_overwriting_keeps_the_old_bundle(
    toy_bundle: Path, build_toy: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def failing_rename(path: Path, target: Path) -> Path:
        if path.name.endswith(".partial"):
            raise OSError("disk is gone")
        return rename(path, target)

    before = listing(toy_bundle.parent)
    with pytest.raises(RuntimeError):
        write_bundle(toy_bundle, failing(RuntimeError("no")), overwrite=True)  # type: ignore[arg-type]
    assert listing(toy_bundle.parent) == before
    monkeypatch.setattr(Path, "rename", failing_rename)
    with pytest.raises(OSError, match="disk is gone"):
        write_bundle(toy_bundle, build_toy, overwrite=True)
    assert listing(toy_bundle.parent) == before


def test_folder_that_is_no_bundle_is_never_overwritten(tmp_path: Path, build_toy: Build) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work", encoding="utf-8")
    link = tmp_path / "link"
    link.symlink_to(write_bundle(tmp_path / "toy", build_toy).path)
    before = listing(tmp_path)
    for target in (home, home / "thesis.txt", link):
        with pytest.raises(BundleError, match="is not a bundle, so it is not overwritten"):
            write_bundle(target, build_toy, overwrite=True)
    assert listing(tmp_path) == before
