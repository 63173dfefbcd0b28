"""Marian's files: what is written comes back, and damaged, foreign and hostile files are refused by name."""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jumok_export.importers.marian.binary_file import read_binary
from jumok_export.importers.marian.lexical_shortlist import read_shortlist
from jumok_export.importers.marian.npz_file import read_npz
from jumok_export.importers.marian.stored import MarianFile, Quantized
from jumok_export.importers.marian.vocabulary import read_list
from jumok_serve.files import UnusableFileError
from tests.support.checkpoints.marian_files import quantized, write_binary, write_npz, write_shortlist, write_vocabulary
from tests.support.checkpoints.marian_models import parameters, settings

OPTIONS = settings((40, 40))
ARRAYS = parameters((40, 40), OPTIONS)
LISTS = [[3, 1], [], [2, 9, 4]]


def write_model(path: Path) -> None:
    if path.suffix == ".npz":
        write_npz(path, ARRAYS, OPTIONS)
    else:
        write_binary(path, ARRAYS, OPTIONS)


def read_model(path: Path) -> MarianFile:
    return read_npz(path) if path.suffix == ".npz" else read_binary(path)


@pytest.mark.parametrize("name", ["model.npz", "model.bin"])
def test_every_parameter_and_the_options_come_back(tmp_path: Path, name: str) -> None:
    write_model(tmp_path / name)
    file = read_model(tmp_path / name)
    assert file.items.keys() == ARRAYS.keys()
    assert not file.quantized
    assert "transformer-decoder-autoreg: self-attention" in file.configuration
    assert not file.configuration.endswith("\0")
    for key, array in ARRAYS.items():
        np.testing.assert_array_equal(file.items[key], array)
    tensors = file.tensors()
    np.testing.assert_array_equal(tensors["encoder_l1_ffn_W1"], ARRAYS["encoder_l1_ffn_W1"].T)
    np.testing.assert_array_equal(tensors["encoder_l1_ffn_b1"], ARRAYS["encoder_l1_ffn_b1"][0])
    np.testing.assert_array_equal(tensors["Wemb"], ARRAYS["Wemb"])


def test_matrices_of_8_bits_come_back_with_every_value(tmp_path: Path) -> None:
    alphas = {"encoder_l1_self_Wq": 31.5, "Wemb": 12.25}
    write_binary(tmp_path / "model.bin", ARRAYS, alphas=alphas)
    file = read_binary(tmp_path / "model.bin")
    assert file.quantized
    assert not file.configuration
    for name in ("encoder_l1_ffn_W1", "decoder_l2_context_Wk", "Wemb"):
        item, (values, multiplier) = file.items[name], quantized(name, ARRAYS[name])
        assert isinstance(item, Quantized)
        np.testing.assert_array_equal(item.values, values if name == "Wemb" else values.T)
        assert item.multiplier == multiplier
        largest = np.abs(ARRAYS[name]).max()
        floats = file.tensors()[name].numpy()
        expected = ARRAYS[name] if name == "Wemb" else ARRAYS[name].T
        assert np.abs(floats - expected).max() <= largest / 127 * 0.51
    np.testing.assert_array_equal(file.tensors()["encoder_l1_self_bq"], ARRAYS["encoder_l1_self_bq"][0])
    for name, alpha in alphas.items():  # the embedding's is stored in 8 bits, as Marian's converter does
        assert file.alpha(name) == pytest.approx(alpha, rel=1e-6)
    assert file.alpha("decoder_l2_context_Wk") is None
    assert not any(name.endswith("_QuantMultA") for name in file.tensors())


def changed(path: Path, at: int, form: str, *numbers: int) -> None:
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, at, *numbers)
    path.write_bytes(content)


def write_one_matrix(path: Path, at: int, form: str, *numbers: int) -> None:
    """Write a model of one matrix, changed in a place."""
    write_binary(path, {"a_Wq": np.ones((2, 3), np.float32)}, alphas={})
    changed(path, at, form, *numbers)


def write_archive(path: Path, arrays: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)


def header(descr: str, *shape: int) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def cut(end: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[:end])


def saved(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


Damage = dict[str, tuple[Callable[[Path], object], str]]
BINARIES: Damage = {
    "empty": (cut(0), "is empty"),
    "two bytes": (cut(2), "ends after 2 bytes, within its version"),
    "wrong magic": (lambda path: changed(path, 0, "<Q", 7), "begins with 7 instead of 1"),
    "items without end": (lambda path: changed(path, 8, "<Q", 2**60), "at most 100000 are read"),
    "a name without end": (lambda path: changed(path, 16, "<Q", 2**40), "a name has 1099511627776 bytes"),
    "an unknown type": (lambda path: changed(path, 24, "<Q", 0x2801), "in the type packed8avx512"),
    "a type of the future": (lambda path: changed(path, 24, "<Q", 0x9999), "in the type 0x9999"),
    "many axes": (lambda path: changed(path, 32, "<Q", 99), "has 99 axes"),
    "values without end": (lambda path: changed(path, 40, "<Q", 2**62), "ends after"),
    "values for another shape": (lambda path: changed(path, 40, "<Q", 4), "and only 4 bytes"),
    "negative sizes": (
        lambda path: write_one_matrix(path, 16 + 4 * 8 + len("a_Wq") + 1, "<2i", -2, -3),
        r"a_Wq has the shape \(-2, -3\)",
    ),
    "a multiplier of 0": (lambda path: write_one_matrix(path, 262, "<i", 0), r"a_Wq has the multiplier 0\.0"),
}
ARCHIVES: Damage = {
    "empty": (cut(0), r"is damaged, or no \.npz file"),
    "no zip": (lambda path: path.write_bytes(b"no zip"), r"is damaged, or no \.npz file"),
    "a few bytes": (cut(9000), r"is damaged, or no \.npz file"),
    "all but a byte": (cut(-1), r"is damaged, or no \.npz file"),
    "a changed byte": (flip_a_byte, "is damaged"),
    "no array": (lambda path: write_archive(path, {"Wemb": b"no array"}), "Wemb is no array"),
    "integers": (lambda path: np.savez(path, Wemb=np.zeros(3, np.int64)), "has Wemb in the type int64"),
    "another size": (  # it takes no memory
        lambda path: write_archive(path, {"Wemb": header("<f4", 2**20, 2**20)}),
        r"Wemb has the shape \(1048576, 1048576\) and 0 bytes",
    ),
    "many small bombs": (
        lambda path: write_archive(path, {f"Wemb{n}": saved(np.zeros(2**22, np.float32)) for n in range(6)}),
        r"would unpack from \d+ to 100664064 bytes",
    ),
}
SHORTLISTS: Damage = {
    "too short": (cut(40), "no binary shortlist: it has 40 bytes"),
    "wrong magic": (lambda path: changed(path, 0, "<Q", 1), "begins with 0x1 instead of 0xf11a48d5013417f5"),
    "cut off": (cut(-4), "is damaged: it has"),
    "another token": (lambda path: changed(path, 80, "<I", 2), "its checksum is wrong"),
    "sizes without end": (lambda path: changed(path, 40, "<Q", 2**60), "is damaged: it has"),
}
FILES: dict[str, tuple[Damage, Callable[[Path], object], Callable[[Path], object]]] = {
    "model.bin": (BINARIES, write_model, read_binary),
    "model.npz": (ARCHIVES, write_model, read_npz),
    "lex.bin": (SHORTLISTS, lambda path: write_shortlist(path, LISTS, frequent=5, best=3), read_shortlist),
}


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, (damage, *_) in FILES.items() for case in damage])
def test_damaged_files_are_refused(tmp_path: Path, name: str, case: str) -> None:
    cases, write, read = FILES[name]
    damage, problem = cases[case]
    write(tmp_path / name)
    damage(tmp_path / name)
    with pytest.raises(UnusableFileError, match=problem):
        read(tmp_path / name)


def test_a_binary_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    write_binary(path, ARRAYS, OPTIONS)
    whole = path.read_bytes()
    random = np.random.default_rng(3)
    for length in (*random.integers(1, len(whole), 60).tolist(), len(whole) - 256):
        path.write_bytes(whole[:length])
        with pytest.raises(UnusableFileError, match="is damaged or incomplete: it ends after"):
            read_binary(path)


class Trap:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, ("touched", "w")


def test_pickled_objects_in_an_npz_file_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content: dict[str, Any] = {"special:model.yml": np.zeros(2, np.int8), "Wemb": np.array([Trap()], object)}
    np.savez("model.npz", **content)
    with pytest.raises(UnusableFileError, match="has pickled objects in Wemb, which are never loaded"):
        read_npz(tmp_path / "model.npz")
    write_archive(Path("model.npz"), {"Wemb": header("|O", 1) + pickle.dumps([Trap()])})
    with pytest.raises(UnusableFileError, match="has pickled objects in Wemb"):
        read_npz(tmp_path / "model.npz")
    assert not (tmp_path / "touched").exists()


def test_a_shortlist_comes_back(tmp_path: Path) -> None:
    write_shortlist(tmp_path / "lex.bin", LISTS, frequent=5, best=3)
    found = read_shortlist(tmp_path / "lex.bin")
    assert (found.frequent, found.best) == (5, 3)
    assert found.offsets.tolist() == [0, 2, 2, 5]
    assert found.targets.tolist() == [1, 3, 2, 4, 9]


def test_a_vocabulary_comes_back(tmp_path: Path) -> None:
    pieces = [
        "</s>",
        "<unk>",
        "▁the",
        '"',
        "'",
        ":",
        "▁a: b",
        "\\",
        "\x85",
        "\u2028",
        "#",
        "yes",
        "10",
        ">>deu<<",
        "😀",
    ]
    write_vocabulary(tmp_path / "vocab.yml", pieces)
    assert read_list(tmp_path / "vocab.yml") == {piece: number for number, piece in enumerate(pieces)}
    (tmp_path / "vocab.yml").write_text("? 'it''s'\n: 0\n'a': 1\nb: 2\n? \"c\\u00e9\"\n: 3\n", encoding="utf-8")
    assert read_list(tmp_path / "vocab.yml") == {"it's": 0, "a": 1, "b": 2, "cé": 3}


@pytest.mark.parametrize(
    ("content", "problem"),
    [("a: 1\nb: 1\n", "the same number"), ("a: 1\n\nb\n", "line 3: not a token and its number: 'b'")],
)
def test_other_vocabularies_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "vocab.yml").write_text(content)
    with pytest.raises(UnusableFileError, match=problem):
        read_list(tmp_path / "vocab.yml")
