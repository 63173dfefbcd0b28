"""A bundle that is changed while it is in use: the files that were opened, or an error."""

import errno
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest

from jumok_proto.errors import BundleNotLoadedError
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.bundle.model_root import copy_bundle
from jumok_serve.errors import BundleError
from jumok_serve.translator import Translator

TEXT, TARGET = "a man in a blue shirt", "ein Mann"


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")


def file_of(bundle: Path, graph: str) -> Path:
    return bundle / Bundle.open(bundle).variant("fp32").graphs[graph].file


def test_a_moved_bundle_stays_the_same(bundle: Path, recurrent_bundle: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Scores come from a graph that is opened at its first use, when another bundle has the name."""
    with Translator(tiny_bundle, precision="fp32") as unmoved:
        expected = unmoved.score(TEXT, TARGET).score
    with Translator(bundle, precision="fp32") as translator:
        bundle.rename(tmp_path / "aside")
        shutil.copytree(recurrent_bundle, bundle)
        assert translator.score(TEXT, TARGET).score == expected
        assert translator.translate(TEXT).text is not None


@pytest.mark.parametrize("graph", ["scorer", "aligner"])
def test_a_graph_that_was_overwritten_is_not_used(bundle: Path, graph: str) -> None:
    with Translator(bundle, precision="fp32") as translator:
        file = file_of(bundle, graph)
        other = file_of(bundle, "encoder")
        shutil.copyfile(other, file)
        with pytest.raises(BundleNotLoadedError, match=rf"bundle is not as it was opened, load it again: .*{graph}"):
            translator.score(TEXT, TARGET) if graph == "scorer" else translator.align(TEXT, TARGET)
        assert translator.translate(TEXT).text is not None


def test_replaced_weights_are_not_used(bundle: Path) -> None:
    """The graph is the old one, and its weights are others of the same size."""
    with Translator(bundle, precision="fp32") as translator:
        weights = bundle / translator.manifest.precisions["fp32"].weights
        weights.rename(bundle / "old")
        weights.write_bytes(bytes((bundle / "old").stat().st_size))
        with pytest.raises(BundleNotLoadedError, match="changed while the bundle was in use"):
            translator.score(TEXT, TARGET)


def overwrite(file: Path) -> None:
    """Write other content in place, as `cp` does, but never shorter content."""
    with file.open("r+b") as stream:
        stream.write(bytes(file.stat().st_size))


@pytest.mark.parametrize("scored_before", [False, True])
def test_overwritten_weights_give_no_result(bundle: Path, scored_before: bool) -> None:
    with Translator(bundle, precision="fp32") as translator:
        if scored_before:  # the sessions of scorer and aligner are open then
            translator.score(TEXT, TARGET)
            translator.align(TEXT, TARGET)
        translator.translate(TEXT)
        pending = translator.submit([TEXT])
        overwrite(bundle / translator.manifest.precisions["fp32"].weights)
        for use in (
            pending.collect,
            partial(translator.translate, TEXT),
            partial(translator.translate, [TEXT, TEXT], split_sentences=True),
            partial(translator.translate, TEXT, attention=True),
            partial(translator.score, TEXT, TARGET),
            partial(translator.align, TEXT, TARGET),
            partial(translator.align, TEXT),
        ):
            with pytest.raises(BundleNotLoadedError, match="bundle bundle is not as it was opened, load it again"):
                use()


def test_weights_that_another_file_replaces_stay_in_use(bundle: Path) -> None:
    with Translator(bundle, precision="fp32") as translator:
        weights = bundle / translator.manifest.precisions["fp32"].weights
        expected = translator.translate(TEXT).text
        os.utime(weights, ns=(1, 1))
        assert translator.translate(TEXT).text == expected
        weights.rename(bundle / "old")
        weights.write_bytes(bytes((bundle / "old").stat().st_size))
        assert translator.translate(TEXT).text == expected


def test_links_and_permissions_change_nothing(bundle: Path, tmp_path: Path) -> None:
    with Translator(bundle, precision="fp32") as translator:
        scorer = file_of(bundle, "scorer")
        scorer.chmod(0o400)
        os.link(scorer, tmp_path / "link")
        os.utime(scorer)
        assert translator.score(TEXT, TARGET).tokens


def test_a_private_copy_survives_overwriting(bundle: Path) -> None:
    """Also cutting off the weights, which the copy's sessions have mapped."""
    copy = copy_bundle(bundle)
    with Translator(copy.name, precision="fp32") as translator:
        expected = translator.translate(TEXT).text
        for file in bundle.rglob("*"):
            if file.is_file():
                os.truncate(file, 0)
        assert translator.translate(TEXT).text == expected
        assert translator.score(TEXT, TARGET).tokens
    copy.cleanup()
    assert not Path(copy.name).exists()


def test_a_copy_holds_listed_files_alone(bundle: Path) -> None:
    (bundle / ".hidden").write_bytes(b"x")
    copy = copy_bundle(bundle)
    assert not (Path(copy.name) / ".hidden").exists()
    assert not (Path(copy.name) / "README.md").exists()
    assert Bundle.open(copy.name).manifest == Bundle.open(bundle).manifest
    copy.cleanup()


def test_a_bundle_that_cannot_be_copied_names_the_file(bundle: Path) -> None:
    weights = Bundle.open(bundle).variant("fp32").weights
    (bundle / weights).unlink()
    with pytest.raises(BundleError, match=f"{weights} cannot be copied"):
        copy_bundle(bundle)


def test_a_copy_without_room_leaves_nothing(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfileobj", full)
        with pytest.raises(BundleError, match="No space left on device: make room in the temporary folder"):
            copy_bundle(bundle)
    assert [*(tmp_path / "temporary").iterdir()] == []
    (tmp_path / "temporary").rmdir()
    with pytest.raises(BundleError, match=r"No such file or directory.*: make room in the temporary folder"):
        copy_bundle(bundle)
