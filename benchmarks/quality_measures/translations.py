"""Translations of a test set by a run's bundle, with scores.

They are kept in the checkpoint's folder, with BLEU and chrF.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from benchmarks.quality_measures.runs import Run
from jumok_export.training.checkpoint import load_checkpoint
from jumok_export.training.export import export_checkpoint
from jumok_serve import Translator
from jumok_serve.evaluation.evaluation import translate_corpus
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.parameters import TranslationParameters

PRECISIONS = ("fp32", "int8")
BEAMS = (1, 5)
BINS = ((1, 8), (9, 11), (12, 15), (16, None))
"""Shortest and longest source of each bin, in words; None for no limit."""
RESAMPLES = 1000

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Decoding setting of a test set."""

    precision: str
    beam: int

    @property
    def key(self) -> str:
        """Its name in files."""
        return f"{self.precision} beam {self.beam}"


SETTINGS = tuple(Setting(precision=precision, beam=beam) for precision in PRECISIONS for beam in BEAMS)
BEST_SETTING = Setting(precision="fp32", beam=BEAMS[-1])
"""The setting of the scores by length."""


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """Sources with one reference each."""

    __test__ = False  # no test of pytest's

    sources: Sequence[str]
    references: Sequence[str]

    @property
    def digest(self) -> str:
        """SHA-256 of the sources."""
        return hashlib.sha256("\n".join(self.sources).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Scores:
    """BLEU with the 95 % interval of sacreBLEU's bootstrap, and chrF.

    Attributes:
        bleu: BLEU of the corpus.
        low: lower end of the interval.
        high: upper end.
        chrf: chrF of the corpus.
        sentences: number of sentences.
    """

    bleu: float
    low: float
    high: float
    chrf: float
    sentences: int


def translate(run: Run, tests: TestSet, *, progress: Progress) -> dict[str, list[str]]:
    """Translate a test set in every setting; returns translations by the setting's key.

    Bundle and translations are made if they are missing or older than the checkpoint.

    Raises:
        CheckpointError, ExportError, VerificationError, BundleError: see the export of a bundle.
    """
    bundle, kept = run.folder / "bundle", run.folder / "translations.json"
    if not _is_newer(bundle / "manifest.json", run.checkpoint):
        progress(f"{run.name}: exporting its bundle")
        export_checkpoint(load_checkpoint(run.checkpoint), bundle, precisions=PRECISIONS, overwrite=bundle.exists())
    if _is_newer(kept, bundle / "manifest.json"):
        record = json.loads(kept.read_text(encoding="utf-8"))
        if record["sources_sha256"] == tests.digest:
            found: dict[str, list[str]] = record["translations"]
            return found
    translations = {}
    for precision in PRECISIONS:
        with Translator(bundle, precision=precision) as translator:
            for setting in (each for each in SETTINGS if each.precision == precision):
                progress(f"{run.name}: translating {len(tests.sources)} sentences, {setting.key}")
                options = DecodingOptions(beam_size=setting.beam)
                done = translate_corpus(
                    lambda texts: translator.submit(texts, TranslationParameters(options=options)),  # noqa: B023 - called before the next setting
                    tests.sources,
                    lambda _: None,
                )
                translations[setting.key] = [translation.text for translation in done]
    record = {"sources_sha256": tests.digest, "translations": translations}
    kept.write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    return translations


def _is_newer(path: Path, than: Path) -> bool:
    return path.exists() and path.stat().st_mtime >= than.stat().st_mtime


def score(translations: Sequence[str], references: Sequence[str]) -> Scores:
    """Score a corpus of at least one sentence."""
    bleu = BLEU().corpus_score(translations, [references], n_bootstrap=RESAMPLES)
    return Scores(
        bleu=bleu.score,
        low=bleu._mean - bleu._ci,
        high=bleu._mean + bleu._ci,
        chrf=CHRF().corpus_score(translations, [references]).score,
        sentences=len(translations),
    )


def signatures() -> dict[str, str]:
    """Signatures of the scores from sacreBLEU, with the bootstrap's samples and seed."""
    bleu, chrf = BLEU(), CHRF()
    # What a signature has is known once something was scored.
    bleu.corpus_score(["a"], [["a"]], n_bootstrap=RESAMPLES)
    chrf.corpus_score(["a"], [["a"]])
    return {"BLEU": str(bleu.get_signature()), "chrF": str(chrf.get_signature())}


def bin_name(bounds: tuple[int, int | None]) -> str:
    """Name of a bin, such as "9-11" or "over 15"."""
    shortest, longest = bounds
    return f"over {shortest - 1}" if longest is None else f"{shortest}-{longest}"


def by_length(tests: TestSet) -> dict[str, list[int]]:
    """Sentences by bin of the source length in words."""
    words = [len(source.split()) for source in tests.sources]
    return {
        bin_name(bounds): [
            index
            for index, count in enumerate(words)
            if bounds[0] <= count and (bounds[1] is None or count <= bounds[1])
        ]
        for bounds in BINS
    }


def score_bins(translations: Sequence[str], tests: TestSet) -> dict[str, Scores]:
    """The scores of every bin that has sentences."""
    return {
        name: score([translations[index] for index in inside], [tests.references[index] for index in inside])
        for name, inside in by_length(tests).items()
        if inside
    }


def differing(translations: Mapping[str, Sequence[str]], beam: int) -> int:
    """Number of sentences whose int8 translation differs from fp32."""
    fp32, int8 = (translations[Setting(precision=precision, beam=beam).key] for precision in PRECISIONS)
    return sum(one != other for one, other in zip(fp32, int8, strict=True))
