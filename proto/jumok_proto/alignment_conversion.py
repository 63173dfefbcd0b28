"""Alignments as protobuf messages, and back."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from jumok_proto.alignments import Alignment
from jumok_proto.attention import ATTENTION_KINDS, AlignedToken, AttentionKind, AttentionWeights, Matrix
from jumok_proto.fields import Conversion, Enumeration, each
from jumok_proto.v1 import alignment_pb2

_KINDS: Enumeration[AttentionKind, alignment_pb2.AttentionKind.ValueType] = Enumeration(
    ATTENTION_KINDS, alignment_pb2.AttentionKind, "ATTENTION_KIND", refusal="kinds has the unknown value {}"
)
_TOKENS = each(Conversion(AlignedToken, alignment_pb2.AlignedToken))
_ALIGNMENT = Conversion(
    Alignment,
    alignment_pb2.Alignment,
    fields=[name for name in Alignment.__annotations__ if name not in ATTENTION_KINDS],
    source_tokens=_TOKENS,
    target_tokens=_TOKENS,
    decoder_tokens=_TOKENS,
)


def kinds_to_proto(kinds: Iterable[AttentionKind]) -> list[alignment_pb2.AttentionKind.ValueType]:
    """Make the enum values of kinds of attention."""
    return list(map(_KINDS.to_proto, kinds))


def kinds_from_proto(numbers: Iterable[int]) -> tuple[AttentionKind, ...]:
    """Read kinds of attention; none is cross-attention. Raise ValueError for an unknown kind."""
    return tuple(map(_KINDS.from_proto, numbers)) or ("cross",)


def alignments_to_proto(alignments: Iterable[Alignment]) -> alignment_pb2.AlignTextResponse:
    """Make the response of a request from alignments."""
    return alignment_pb2.AlignTextResponse(
        alignments=[
            _ALIGNMENT.to_proto(
                alignment, **{kind: _weights_to_proto(getattr(alignment, kind)) for kind in ATTENTION_KINDS}
            )
            for alignment in alignments
        ]
    )


def alignments_from_proto(message: alignment_pb2.AlignTextResponse) -> list[Alignment]:
    """Read the alignments of a response; raise ValueError for weights of a wrong size."""
    return [_from_proto(alignment) for alignment in message.alignments]


def _from_proto(message: alignment_pb2.Alignment) -> Alignment:
    alignment = _ALIGNMENT.from_proto(message)
    source, target = alignment.source_tokens, alignment.target_tokens
    sides: dict[AttentionKind, tuple[tuple[AlignedToken, ...], tuple[AlignedToken, ...]]] = {
        "cross": (target, source),
        "encoder": (source, source),
        "decoder": (target, alignment.decoder_tokens),
    }
    weights: dict[str, Any] = {
        kind: _weights(kind, getattr(message, kind), *sides[kind]) for kind in sides if message.HasField(kind)
    }
    return replace(alignment, **weights)


def _weights(
    kind: str,
    message: alignment_pb2.AttentionWeights,
    rows: tuple[AlignedToken, ...],
    columns: tuple[AlignedToken, ...],
) -> AttentionWeights:
    layers, heads = tuple(message.layers), tuple(message.heads)
    if len(message.by_head) not in {0, len(layers) * len(heads)}:
        raise ValueError(
            f"{kind} has {len(message.by_head)} matrices for {len(layers)} layers of {len(heads)} heads each"
        )
    mean, *by_head = (_matrix(kind, matrix, len(rows), len(columns)) for matrix in (message.mean, *message.by_head))
    of_layers = range(0, len(by_head), len(heads) or 1)
    return AttentionWeights(
        rows=rows,
        columns=columns,
        layers=layers,
        heads=heads,
        mean=mean,
        by_head=tuple(tuple(by_head[first : first + len(heads)]) for first in of_layers) if by_head else None,
    )


def _weights_to_proto(weights: AttentionWeights | None) -> alignment_pb2.AttentionWeights | None:
    if weights is None:
        return None
    return alignment_pb2.AttentionWeights(
        layers=weights.layers,
        heads=weights.heads,
        mean=_matrix_to_proto(weights.mean),
        by_head=map(_matrix_to_proto, chain.from_iterable(weights.by_head or ())),
    )


def _matrix_to_proto(matrix: Matrix) -> alignment_pb2.AttentionMatrix:
    return alignment_pb2.AttentionMatrix(weights=chain.from_iterable(matrix))


def _matrix(kind: str, message: alignment_pb2.AttentionMatrix, rows: int, columns: int) -> Matrix:
    weights = tuple(message.weights)
    if len(weights) != rows * columns:
        raise ValueError(f"{kind} has a matrix of {len(weights)} weights for {rows} by {columns} tokens")
    return tuple(weights[row * columns : (row + 1) * columns] for row in range(rows))
