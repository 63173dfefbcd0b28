"""BLEU of a bundle in fp16 on a device, against fp32."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_checks.report import Report
from jumok_serve import Translator
from jumok_serve.evaluation.parallel_text import read_lines
from jumok_serve.runtime.device import CPU, Device

MOST_APART = 0.2
"""Largest difference of fp16's BLEU from fp32's."""
BEAM_SIZE = 5


def bleu(
    report: Report, bundle: Path | None, source: Path | None, reference: Path | None, device: Device, *, count: int
) -> None:
    """Compare BLEU of the first sentences of a corpus."""
    name = "BLEU of fp16 beside fp32"
    if bundle is None or source is None or reference is None:
        report.skip(name, "no trained bundle and corpus: give --bundle, --source and --reference")
        return
    with report.part(name) as time_left:
        if not time_left:
            return
        import sacrebleu  # noqa: PLC0415 - an extra

        texts, references = read_lines(source)[:count], read_lines(reference)[:count]
        scores = {
            precision: sacrebleu.corpus_bleu(_translated(bundle, precision, where, texts), [references]).score
            for precision, where in (("fp32", CPU), ("fp16", device))
        }
        apart = abs(scores["fp16"] - scores["fp32"])
        report.check(
            name,
            apart <= MOST_APART,
            f"{scores['fp16']:.2f} in fp16 and {scores['fp32']:.2f} in fp32, of {len(texts)} sentences",
            fp16=scores["fp16"],
            fp32=scores["fp32"],
        )


def _translated(bundle: Path, precision: str, device: Device, texts: Sequence[str]) -> list[str]:
    with Translator(bundle, precision=precision, device=device.name) as translator:
        return [translation.text for translation in translator.translate(texts, beam_size=BEAM_SIZE)]
