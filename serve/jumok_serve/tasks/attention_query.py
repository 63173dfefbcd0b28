"""Which attention is asked for: of what kinds, layers and heads."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from jumok_proto.alignments import ATTENTION_KINDS, AttentionKind
from jumok_proto.errors import AttentionUnavailableError, InvalidArgumentError
from jumok_serve.runtime.graphs import Floats
from jumok_serve.tasks.teacher_forcing import TeacherForcing

MAX_WEIGHTS = 2**23
"""Of all that a request asks for together, if each translation that is not given were of the maximum length."""
NAMES: dict[AttentionKind, str] = {
    "cross": "cross-attention",
    "encoder": "self-attention in its encoder",
    "decoder": "self-attention in its decoder",
}
"""What a model has, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery:
    """Which attention is asked for.

    Raises:
        InvalidArgumentError: a kind is unknown or repeated, or a layer or head is no number from 0 on.
    """

    kinds: Sequence[AttentionKind] = ("cross",)
    layer: int | None = None
    """None: all."""
    head: int | None = None
    """None: all."""
    each_head: bool = False
    """Whether each layer's and head's is, besides the mean over them."""

    def __post_init__(self) -> None:
        known = ", ".join(ATTENTION_KINDS)
        if isinstance(self.kinds, str) or not isinstance(self.kinds, Sequence) or not self.kinds:
            raise InvalidArgumentError(
                f"kinds must be a sequence of some of {known}, got {self.kinds!r}", field="kinds"
            )
        for index, kind in enumerate(self.kinds):
            if kind not in ATTENTION_KINDS:
                raise InvalidArgumentError(f"kinds are {known}, got {kind!r}", field=f"kinds[{index}]")
            if kind in self.kinds[:index]:
                raise InvalidArgumentError(f"kinds has {kind!r} twice", field=f"kinds[{index}]")
        for name, value in (("layer", self.layer), ("head", self.head)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InvalidArgumentError(f"{name} must be a number from 0 on, got {value!r}", field=name)

    def check(self, model: str, aligner: TeacherForcing) -> None:
        """Refuse what the model does not have.

        Raises:
            AttentionUnavailableError: there is no aligner, or no attention of a kind.
            InvalidArgumentError: there is no such layer or head.
        """
        if not aligner.can_align:
            raise AttentionUnavailableError.of(model)
        for kind in self.kinds:
            counts = aligner.heads(kind)
            if 0 in counts:
                raise AttentionUnavailableError.of(model, NAMES[kind])
            for name, value, count in zip(("layer", "head"), (self.layer, self.head), counts, strict=True):
                if value is not None and value >= count:
                    raise InvalidArgumentError(
                        f"{name} must lie between 0 and {count - 1}, which model {model!r} has of {NAMES[kind]}; "
                        f"got {value}",
                        field=name,
                    )

    def check_size(self, aligner: TeacherForcing, lengths: Iterable[tuple[int, int]]) -> None:
        """Refuse to answer with more weights than a request takes, for so many tokens of each text and translation.

        Raises:
            InvalidArgumentError: there could be more.
        """
        matrices = {kind: 1 + self.each_head * math.prod(map(len, self.chosen(aligner, kind))) for kind in self.kinds}
        weights = sum(
            count * {"cross": source * target, "encoder": source * source, "decoder": target * target}[kind]
            for source, target in lengths
            for kind, count in matrices.items()
        )
        if weights > MAX_WEIGHTS:
            raise InvalidArgumentError(
                f"the attention that is asked for could be {weights} weights, and a request takes at most "
                f"{MAX_WEIGHTS}: send several requests, give targets, or name a layer or a head",
                field="contents",
            )

    def chosen(self, aligner: TeacherForcing, kind: AttentionKind) -> tuple[range, range]:
        """The layers and heads that are asked for."""
        layers, heads = aligner.heads(kind)
        return _one_or_all(self.layer, layers), _one_or_all(self.head, heads)

    def reduce(self, weights: Floats) -> Floats:
        """What is kept of weights [B, layers, heads, rows, columns]: each that is asked for, or the mean over them."""
        layers, heads = _one_or_all(self.layer, weights.shape[1]), _one_or_all(self.head, weights.shape[2])
        asked = weights[:, layers.start : layers.stop, heads.start : heads.stop]
        return asked if self.each_head else asked.mean(axis=(1, 2), keepdims=True, dtype=np.float32)


def _one_or_all(index: int | None, count: int) -> range:
    return range(count) if index is None else range(index, index + 1)
