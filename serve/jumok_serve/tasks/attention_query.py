"""Attention that a request names: its kinds, layers and heads."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from jumok_proto.attention import ATTENTION_KINDS, AttentionKind
from jumok_proto.errors import AttentionUnavailableError, InvalidArgumentError
from jumok_serve.runtime.graphs import Floats
from jumok_serve.tasks.teacher_forcing import TeacherForcing

MAX_WEIGHTS = 2**23
"""Limit for all weights of a request together, if translations that are not given had the maximum length."""
NAMES: dict[AttentionKind, str] = {
    "cross": "cross-attention",
    "encoder": "self-attention in its encoder",
    "decoder": "self-attention in its decoder",
}
"""Kinds of attention, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery:
    """Kinds, layers and heads of attention that a request names.

    Attributes:
        layer: index of the only layer; None: all layers.
        head: index of the only head; None: all heads.
        each_head: True to return the weights of each layer and head, besides their mean.

    Raises:
        InvalidArgumentError: a kind is unknown or repeated, or a layer or head is not an index from 0.
    """

    kinds: Sequence[AttentionKind] = ("cross",)
    layer: int | None = None
    head: int | None = None
    each_head: bool = False

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
                raise InvalidArgumentError(f"{name} must be a number from 0, got {value!r}", field=name)

    def check(self, model: str, aligner: TeacherForcing) -> None:
        """Check that the model has this attention.

        Raises:
            AttentionUnavailableError: the model has no aligner, or no attention of a kind.
            InvalidArgumentError: the model has no such layer or head.
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
                        f"{name} must be 0 to {count - 1}, got {value}: model {model!r} has no other {NAMES[kind]}",
                        field=name,
                    )

    def check_size(self, aligner: TeacherForcing, lengths: Iterable[tuple[int, int]]) -> None:
        """Check the number of weights of a request.

        Args:
            lengths: tokens of each text and of its translation.

        Raises:
            InvalidArgumentError: the number is over MAX_WEIGHTS.
        """
        matrices = {kind: 1 + self.each_head * math.prod(map(len, self.selected(aligner, kind))) for kind in self.kinds}
        weights = sum(
            count * {"cross": source * target, "encoder": source * source, "decoder": target * target}[kind]
            for source, target in lengths
            for kind, count in matrices.items()
        )
        if weights > MAX_WEIGHTS:
            raise InvalidArgumentError(
                f"the attention could be {weights} weights, more than the {MAX_WEIGHTS} of a request: send several "
                "requests, give targets, or name a layer or a head",
                field="contents",
            )

    def selected(self, aligner: TeacherForcing, kind: AttentionKind) -> tuple[range, range]:
        """Return the indices of the layers and heads."""
        layers, heads = aligner.heads(kind)
        return _one_or_all(self.layer, layers), _one_or_all(self.head, heads)

    def reduce(self, weights: Floats) -> Floats:
        """Select weights, [B, layers, heads, rows, columns], or average them over layers and heads."""
        layers, heads = _one_or_all(self.layer, weights.shape[1]), _one_or_all(self.head, weights.shape[2])
        selected = weights[:, layers.start : layers.stop, heads.start : heads.stop]
        return selected if self.each_head else selected.mean(axis=(1, 2), keepdims=True, dtype=np.float32)


def _one_or_all(index: int | None, count: int) -> range:
    return range(count) if index is None else range(index, index + 1)
