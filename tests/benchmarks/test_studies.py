"""Each study runs on tiny models and texts, and prints its table."""

import json
import re
from pathlib import Path

import pytest

from tests.benchmarks.conftest import DATA, ROOT, run

PAIR = r"\d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)"
"""A value with its range."""
TINY = "--set width=32 --set heads=2 --set feed_forward=32 --set encoder_layers=1 --set decoder_layers=1"
STUDIES = {
    "import_memory --shapes tiny-nllb --folder OUT": r"\| tiny-nllb \| .* \| CTranslate2 \| int8 \| ",
    "made_tags MODEL --sentences 3 --tags-only": "every tag once: 3; well formed: 3; ",
    "markup TINY TAGGED.en TAGGED.de --parallel TAGGED.en TAGGED.de": ": aligner of guided alignment\n",
    "quality --plan PLAN --runs OUT --plots OUT": r"\| self-attention \| tiny-transformer - tiny-general \| [+-]\d",
    "scale": r"\| both \(scaled-object.yaml\) \| ",
    "scale_measure --shape tiny-marian --outstanding 1 2 --rounds 1": r"wire_bytes = \d+\n",
    "software TINY --test CORPUS.en CORPUS.de --train CORPUS.en CORPUS.de --target-language de": (
        r"\| translation memory \| 100.00 \(100.00 to 100.00\) \| 100.00 \(100.00 to 100.00\) \|"
    ),
    "splitting --sentences 60": r"en +60 +\d+ +[\d.]+ +[\d.]+\n",
    "terms --replace CORPUS.en CORPUS.de --model MODEL --sentences 4": r"placed +[1-9]\d* +100.0% +[\d.]+% ",
    "terms --quick --peer": rf"3 +\d+ +100.0% +[\d.]+ +[\d.]+ +{PAIR}\n",
    f"throughput --sentences 4 --rounds 1 {TINY}": rf"jumok int8 +4 +\d+ +{PAIR}\n",
}
"""Pattern in the output of each study, by its command; words in capitals are replaced by paths."""


@pytest.mark.parametrize("command", STUDIES)
def test_a_study_prints_its_table(command: str, corpus: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    paths: dict[str, Path] = {
        "MODEL": ROOT / "models/multi30k-en-de-transformer",
        "TINY": tiny_bundle,
        "PLAN": DATA / "quality.toml",
        "OUT": tmp_path,
        **{f"TAGGED.{language}": corpus / f"tagged.{language}.gz" for language in ("en", "de")},
        **{f"CORPUS.{language}": corpus / f"val.{language}.gz" for language in ("en", "de")},
    }
    name, *arguments = command.split()
    printed = run(f"studies.{name}", *(paths.get(each, each) for each in arguments), corpus=corpus)
    assert re.search(STUDIES[command], printed), printed
    if name == "quality":
        for plot in ("lengths", "gradients", "entropies"):
            assert (tmp_path / f"{plot}.png").read_bytes().startswith(b"\x89PNG")
    if name == "scale":
        document = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
        assert [line for line in printed.splitlines() if line not in document] == []


def test_meanings_are_told_apart_by_no_single_head(corpus: Path, tmp_path: Path) -> None:
    """With words that take little time; all words give the figures of the page."""
    file = tmp_path / "homonyms.json"
    run("studies.homonyms", "--words", "glasses", "track", "bar", "--json", file, corpus=corpus)
    found = json.loads(file.read_text(encoding="utf-8"))
    context, alone = (found["shifts"][encoder] for encoder in ("with context", "word alone"))
    gain = context["word alone"] - alone["word alone"]
    assert gain > 1
    assert max(max(heads) for heads in found["heads"]) < gain
    assert alone["with context"] > alone["word alone"]
