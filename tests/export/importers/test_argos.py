"""Argos Translate packages: imported with their languages, and hostile zips refused."""

import json
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jumok.commands._main import run
from jumok_export.importers.argos.importing import import_package
from jumok_export.importers.argos.package import unpack
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.recognition import recognise
from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import Vocabulary
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from tests.support.checkpoints.ctranslate2_folders import SPECIAL, open_peer, random_spec, save, spec_of, tokens_of

METADATA = {
    "package_version": "1.9",
    "argos_version": "1.9",
    "from_code": "en",
    "from_name": "English",
    "to_code": "de",
    "to_name": "German",
    "type": "translate",
}


@pytest.fixture(scope="module")
def folder(tiny_model: Transformer, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installed package with the tiny model; read only."""
    package = tmp_path_factory.mktemp("argos") / "translate-en_de-1_9"
    package.mkdir()
    (package / "sentencepiece.model").write_bytes(vocabulary.model)
    save(spec_of(tiny_model, tokens_of(vocabulary.model)), package / "model")
    (package / "metadata.json").write_text(json.dumps(METADATA))
    (package / "stanza/en").mkdir(parents=True)
    (package / "stanza/en/tokenize.pt").write_bytes(b"never read")
    return package


@pytest.fixture
def zipped(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Zip the package as Argos Translate does, with further members."""

    def make(*members: tuple[zipfile.ZipInfo | str, bytes], name: str = "translate-en_de-1_9.argosmodel") -> Path:
        path = tmp_path / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.rglob("*")):
                archive.write(file, file.relative_to(folder.parent))
            for member, content in members:
                archive.writestr(member, content)
        return path

    return make


def test_a_package_through_the_command(
    zipped: Callable[..., Path], tiny_bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    package = zipped()
    assert run(["import", str(package), "--out", str(tmp_path / "bundle"), "--precision", "fp32"]) == 0
    said = capfd.readouterr().err
    assert f"{package} is an Argos Translate package" in said
    assert "sentences are split by jumok for en, not by the package's splitter (stanza)" in said
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest.name == "argos-en-de"
    assert (manifest.generation.beam_size, manifest.generation.length_penalty) == (4, 0.2)
    text = "The cat sleeps."
    with (
        Translator(tmp_path / "bundle", precision="fp32", threads=1) as translator,
        Translator(tiny_bundle, precision="fp32", threads=1) as trained,
    ):
        direction = translator.manifest.languages.direction()
        assert (direction.source, direction.target) == ("en", "de")
        found = translator.translate([text], beam_size=1, max_length=20)[0].text
        assert found == trained.translate([text], beam_size=1, max_length=20)[0].text


def test_an_installed_package_is_a_folder(folder: Path) -> None:
    assert recognise(folder).name == "an Argos Translate package"


def test_only_needed_files_are_unpacked(zipped: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    package = unpack(zipped(), tmp_path / "out")
    assert {str(file.relative_to(package.folder)) for file in package.folder.rglob("*") if file.is_file()} == {
        "metadata.json",
        "sentencepiece.model",
        "model/config.json",
        "model/model.bin",
        "model/shared_vocabulary.json",
    }
    assert package.splitter == "stanza"


def test_a_target_prefix_begins_every_translation(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    vocabulary = json.loads((copy / "model/shared_vocabulary.json").read_text())
    (copy / "metadata.json").write_text(json.dumps(METADATA | {"target_prefix": vocabulary[7], "to_code": "pb"}))
    bundle = import_package(copy, tmp_path / "bundle", precisions=("fp32",))
    target = bundle.manifest.languages.targets["pt-BR"]
    assert target.forced_first == 7
    with Translator(tmp_path / "bundle", precision="fp32", threads=1) as translator:
        [translation] = translator.translate(["The cat sleeps."], max_length=9)
    assert translation.hypotheses[0].token_ids[0] == 7
    assert not translation.text.startswith(vocabulary[7].strip("▁")) or vocabulary[7].strip("▁") == ""


def link(name: str) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr = (stat.S_IFLNK | 0o777) << 16
    return made


def refusal(package: Path, out: Path) -> str:
    with pytest.raises(CheckpointError) as raised:
        import_package(package, out)
    assert not out.exists()
    return str(raised.value)


@pytest.mark.parametrize(
    ("member", "content", "problem"),
    [
        ("translate-en_de-1_9/model/../../../evil", b"x", "evil' leaves the package's folder"),
        ("/etc/evil", b"x", "'/etc/evil' leaves the package's folder"),
        ("..\\evil", b"x", "evil' leaves the package's folder"),
        (link("translate-en_de-1_9/model/vmap.txt"), b"/etc/passwd", "vmap.txt' is a link"),
        ("translate-en_de-1_9/model/bomb", bytes(100 * 2**20), "would unpack from "),
        ("other/metadata.json", b"{}", "the package has 2 files named metadata.json"),
        ("translate-en_de-1_9/model/model.bin", b"x", "'translate-en_de-1_9/model/model.bin' is there 2 times"),
    ],
    ids=["parent", "absolute", "backslash", "link", "bomb", "second metadata", "second of one name"],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_members_are_refused(
    member: zipfile.ZipInfo | str, content: bytes, problem: str, zipped: Callable[..., Path], tmp_path: Path
) -> None:
    assert problem in refusal(zipped((member, content)), tmp_path / "bundle")
    assert not (tmp_path / "evil").exists()


def test_a_member_that_says_too_small_a_size_is_cut(zipped: Callable[..., Path], tmp_path: Path) -> None:
    path = zipped(("translate-en_de-1_9/model/vmap.txt", bytes(range(256)) * 4000))
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")  # the last entry of the directory is the last member's
    content[at + 24 : at + 28] = (1000).to_bytes(4, "little")
    path.write_bytes(content)
    assert "is no zip of a package, or is damaged: Bad CRC-32" in refusal(path, tmp_path / "bundle")


@pytest.mark.parametrize("length", [0, 10, 1000, -10])
def test_a_truncated_package_is_refused(length: int, zipped: Callable[..., Path], tmp_path: Path) -> None:
    path = zipped()
    path.write_bytes(path.read_bytes()[:length])
    assert "is no zip of a package, or is damaged" in refusal(path, tmp_path / "bundle")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"type": "sbd"}, "the package is of type 'sbd': only 'translate' is supported"),
        ({"from_code": None}, "from_code of metadata.json must be a language code, it is None"),
        ({"target_prefix": 5}, "target_prefix of metadata.json must be a token, it is 5"),
        (None, "neither sentencepiece.model nor bpe.model is there"),
    ],
)
def test_other_metadata_is_refused(change: dict[str, Any] | None, problem: str, folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    if change is None:
        (copy / "sentencepiece.model").unlink()
    else:
        (copy / "metadata.json").write_text(json.dumps(METADATA | change))
    assert problem in refusal(copy, tmp_path / "bundle")


def test_a_package_with_codes_of_moses_words(tmp_path: Path) -> None:
    package = tmp_path / "translate-en_de-1_0"
    pieces = [*SPECIAL, "d@@", "og", "dog", "cat", "s", "s@@", "."]
    save(random_spec((pieces, pieces)), package / "model")
    (package / "metadata.json").write_text(json.dumps(METADATA))
    (package / "bpe.model").write_text("#version: 0.2\no g</w>\nd og</w>\na t</w>\nc at</w>\n")
    import_package(package, tmp_path / "bundle", precisions=("fp32",))
    peer = open_peer(package / "model")
    with Translator(tmp_path / "bundle", precision="fp32", threads=1) as translator:
        assert translator.tokenizer.source_tokens(translator.tokenizer.encode("dog cat.")) == ["dog", "cat", "."]
        [translation] = translator.translate(["dog cat."], beam_size=1, max_length=8)
        given = [["dog", "cat", "."]]
        [expected] = peer.translate_batch(given, beam_size=1, max_decoding_length=8, return_end_token=True)
        [hypothesis] = translation.hypotheses
        assert translator.tokenizer.tokens(hypothesis.token_ids) == expected.hypotheses[0]
