"""Output of ``jumok inspect``."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jumok_serve.bundle.bundle import Bundle, write_bundle
from jumok_serve.bundle.describe import as_json, describe
from jumok_serve.manifest.manifest import Check, ManifestDraft, VerificationReport

MODELS = Path(__file__).parents[3] / "models"


@pytest.fixture
def bundle(toy_bundle: Path) -> Bundle:
    return Bundle.open(toy_bundle)


def row(text: str, *starts: str) -> list[str]:
    """Return the cells of the line that begins with ``starts``."""
    (line,) = [cells for cells in map(str.split, text.splitlines()) if cells[: len(starts)] == list(starts)]
    return line


def test_shows_the_whole_manifest(bundle: Bundle) -> None:
    text = describe(bundle)
    assert text.startswith("toy-en-de 1.0\n")
    assert row(text, "languages") == ["languages", "en", "to", "de"]
    assert "lookup: width=2, tied=true" in text
    assert "beam_size=4, num_hypotheses=1, length_penalty=0.6, early_stopping=false" in text
    assert "source 32 tokens, target 48 tokens" in text
    assert row(text, "BLEU") == ["BLEU", "34.56", "fp32", "5", "test_2016_flickr"]
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in text
    assert row(text, "fp32", "encoder") == ["fp32", "encoder", "40", "2.4e-06", "0.0001", "passed"]
    assert row(text, "fp32", "decode") == ["fp32", "decode", "1,200", "3.1e-05", "0.0001", "passed"]
    assert "jumok export run/best.ckpt --out toy" in text
    assert "torch 2.6.0, onnxruntime 1.21.0" in text
    assert "three sentences" in text
    assert "    [model]\n    layers = 0" in text
    for file, entry in bundle.manifest.files.items():
        assert row(text, file) == [file, f"{entry.size:,}", entry.sha256[:16]]


def test_bytes_of_a_precision_are_its_graphs_and_weights(bundle: Bundle) -> None:
    on_disk = sum(path.stat().st_size for path in (bundle.path / "fp32").iterdir())
    assert as_json(bundle)["bytes"] == {"fp32": on_disk}
    assert f"{on_disk:,}" in row(describe(bundle), "fp32", f"{on_disk:,}")


def test_lines_fit_the_terminal_and_numbers_are_aligned(bundle: Bundle) -> None:
    lines = describe(bundle).splitlines()
    path = str(bundle.path)
    assert all(len(line) <= 100 for line in lines if path not in line)
    assert all(line == line.rstrip() for line in lines)
    heading = lines.index("Verification") + 1
    cells = ("cases", "40", "1,200")
    ends = {line.index(cell) + len(cell) for line, cell in zip(lines[heading:], cells, strict=False)}
    assert len(ends) == 1


def test_native_graphs_are_shown_with_the_command_that_adds_them(bundle: Bundle) -> None:
    text = describe(bundle)
    size = f"{as_json(bundle)['bytes']['fp32']:,}"
    assert row(text, "fp32", size)[3] == "no"
    assert "jumok add-native BUNDLE --out NEW_BUNDLE" in text
    assert as_json(bundle)["native_graphs"] == {"fp32": False}
    native = Bundle.open(MODELS / "multi30k-en-de-transformer")
    assert row(describe(native), "int8", "6,848,538")[3] == "yes"
    assert "add-native" not in describe(native)
    assert as_json(native)["native_graphs"] == {"int8": True}


def test_escape_sequences_do_not_reach_the_terminal(bundle: Bundle) -> None:
    provenance = bundle.manifest.provenance.model_copy(update={"notes": "\x1b[2Jgone", "configuration": "\x9b2J"})
    manifest = bundle.manifest.model_copy(update={"provenance": provenance})
    text = describe(replace(bundle, manifest=manifest))
    assert "[2Jgone" in text
    assert not {"\x1b", "\x9b"} & set(text)


def test_json_holds_the_manifest(bundle: Bundle) -> None:
    shown = json.loads(json.dumps(as_json(bundle)))
    manifest = json.loads((bundle.path / "manifest.json").read_bytes())
    assert {name: shown[name] for name in manifest} == manifest
    assert shown["verified"] == {"fp32": True}
    assert shown["path"] == str(bundle.path)


def test_shows_failed_checks_and_absent_parts(tmp_path: Path, build_toy: Callable[[Path], ManifestDraft]) -> None:
    failed = VerificationReport(checks=(Check(name="encoder", cases=1, worst=0.5, limit=0.1, passed=False),))

    def build(folder: Path) -> ManifestDraft:
        return build_toy(folder).model_copy(update={"scores": (), "verification": {"fp32": failed}})

    bundle = write_bundle(tmp_path / "failed", build)
    text = describe(bundle)
    assert row(text, "fp32", "encoder")[-1] == "FAILED"
    assert "Scores\n  none recorded" in text
    assert as_json(bundle)["verified"] == {"fp32": False}
    unverified = bundle.manifest.model_copy(update={"verification": {}})
    text = describe(replace(bundle, manifest=unverified))
    assert "Verification\n  none recorded" in text
    assert "not recorded" in text
