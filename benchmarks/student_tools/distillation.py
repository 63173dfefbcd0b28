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
LARGEST_SUM = (2**15 - 1) // (2 * LARGEST)
"""Largest magnitude of the sum of two values, so that those of activations up to 254 stay within 16 bits."""


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

    What rounding takes from a matrix is added before the next rounding. No sum of two products can then saturate in
    16 bits, so that all of intgemm's kernels compute alike: ONNX Runtime's option `reduce_range` has the same purpose.
    """

    def __init__(self, model: nn.Module) -> None:
        self._matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
        self._lost = [torch.zeros_like(matrix) for matrix in self._matrices]

    @torch.no_grad()
    def round(self) -> None:
        """Round the matrices; the largest magnitude of each becomes 127."""
        for matrix, lost in zip(self._matrices, self._lost, strict=True):
            exact = matrix + lost
            unit = exact.abs().max().clamp_min(torch.finfo(exact.dtype).tiny) / LARGEST
            levels = torch.round(exact / unit)
            lost.copy_(exact - levels * unit)  # without what limits take, which would add up
            matrix.copy_(limited(levels) * unit)


def limited(levels: Tensor) -> Tensor:
    """Limit 8-bit values [N, K] whose products are added by twos in 16 bits.

    intgemm multiplies activations of 0 .. 254 and adds the products of neighbours along K. Where two neighbours are too
    large together, the smaller is changed. So the largest magnitude of a matrix stays.
    """
    pairs = levels.reshape(len(levels), -1, 2).clone()
    sums = pairs.sum(dim=-1)
    exceeding = sums.abs() > LARGEST_SUM  # few
    excess = sums[exceeding] - sums[exceeding].sign() * LARGEST_SUM
    smaller = pairs[exceeding].abs().argmin(dim=-1, keepdim=True)
    pairs[exceeding] = pairs[exceeding].scatter_add(-1, smaller, -excess[:, None])
    return pairs.reshape(levels.shape)
