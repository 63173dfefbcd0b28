"""Distillation of students as mozilla/translations trains them: a teacher's translations, then 8-bit weights."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from jumok_serve import Translator

BEAM_SIZE = 1
TOGETHER = 1000
"""Texts between two words of progress."""
LARGEST = 127


def teach(teacher: Path, texts: Sequence[str], file: Path, progress: Callable[[str], None]) -> list[str]:
    """Translate texts with a teacher's bundle, unless `file` has the translations already."""
    if not file.exists():
        found: list[str] = []
        with Translator(teacher, precision="int8", threads=torch.get_num_threads()) as translator:
            for first in range(0, len(texts), TOGETHER):
                some = translator.translate(
                    texts[first : first + TOGETHER], beam_size=BEAM_SIZE, truncate=True, split_sentences=False
                )
                found += [" ".join(each.hypotheses[0].text.split()) for each in some]
                progress(f"the teacher translated {len(found)} of {len(texts)} texts")
        written = file.with_name("written")
        written.write_text("".join(f"{text}\n" for text in found), encoding="utf-8")
        written.rename(file)
    return file.read_text(encoding="utf-8").splitlines()


class EightBitWeights:
    """Matrices kept at 8-bit values between updates, as by Marian's option `--quantize-bits 8`.

    What rounding takes from a matrix is added before the next rounding.
    """

    def __init__(self, model: nn.Module) -> None:
        self._matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
        self._lost = [torch.zeros_like(matrix) for matrix in self._matrices]

    @torch.no_grad()
    def round(self) -> None:
        """Round the matrices; the largest magnitude of each becomes 127."""
        for matrix, lost in zip(self._matrices, self._lost, strict=True):
            exact = matrix + lost
            rounded = rounded_to_8_bits(exact)
            lost.copy_(exact - rounded)
            matrix.copy_(rounded)


def rounded_to_8_bits(matrix: Tensor) -> Tensor:
    """Round to multiples of the largest magnitude's 127th part."""
    unit = matrix.abs().max().clamp_min(torch.finfo(matrix.dtype).tiny) / LARGEST
    return torch.round(matrix / unit) * unit
