"""Translations of a test set by a run's bundle, with scores.

They are kept in the checkpoint's folder, with BLEU and chrF.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
    """BLEU and chrF of a corpus."""

    bleu: float
    chrf: float


def settings(run: Run) -> tuple[Setting, ...]:
    """Decoding settings of a run: int8 only for a model's first seed."""
    return tuple(each for each in SETTINGS if run.first or each.precision == "fp32")


def translate(run: Run, tests: TestSet, *, progress: Progress) -> dict[str, list[str]]:
    """Translate a test set in every setting; returns translations by the setting's key.

    Bundle and translations are made if they are missing or of another checkpoint. Translations without a checkpoint, as
    of a seed that was trained elsewhere, are taken as they are.

    Raises:
        CheckpointError, ExportError, VerificationError, BundleError: see the export of a bundle.
    """
    bundle, kept = run.folder / "bundle", run.translations
    origin = {"sources_sha256": tests.digest}
    if run.checkpoint.exists():
        origin["checkpoint_sha256"] = hashlib.sha256(run.checkpoint.read_bytes()).hexdigest()
    if kept.exists():
        record = json.loads(kept.read_text(encoding="utf-8"))
        if origin.items() <= record.items():
            found: dict[str, list[str]] = record["translations"]
            return found
    precisions = tuple(dict.fromkeys(each.precision for each in settings(run)))
    progress(f"{run.name}: exporting its bundle")
    export_checkpoint(load_checkpoint(run.checkpoint), bundle, precisions=precisions, overwrite=bundle.exists())
    translations = {}
    for precision in precisions:
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
    record = {**origin, "translations": translations}
    kept.write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    return translations


def score(translations: Sequence[str], references: Sequence[str]) -> Scores:
    """Score a corpus of at least one sentence."""
    return Scores(
        bleu=BLEU().corpus_score(translations, [references]).score,
        chrf=CHRF().corpus_score(translations, [references]).score,
    )


def signatures() -> dict[str, str]:
    """Signatures of the scores from sacreBLEU."""
    bleu, chrf = BLEU(), CHRF()
    # What a signature has is known once something was scored.
    bleu.corpus_score(["a"], [["a"]])
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


def differing(translations: Mapping[str, Sequence[str]], beam: int) -> int:
    """Number of sentences whose int8 translation differs from fp32."""
    fp32, int8 = (translations[Setting(precision=precision, beam=beam).key] for precision in PRECISIONS)
    return sum(one != other for one, other in zip(fp32, int8, strict=True))
