"""Alignments as protobuf messages, and back."""

from collections.abc import Iterable, Sequence
from itertools import chain

from jumok_proto.alignments import Alignment
from jumok_proto.attention import AlignedToken, AttentionKind, AttentionWeights, Matrix
from jumok_proto.v1 import alignment_pb2

_KINDS: dict[AttentionKind, alignment_pb2.AttentionKind.ValueType] = {
    "cross": alignment_pb2.ATTENTION_KIND_CROSS,
    "encoder": alignment_pb2.ATTENTION_KIND_ENCODER,
    "decoder": alignment_pb2.ATTENTION_KIND_DECODER,
}
_KINDS_BACK = {number: kind for kind, number in _KINDS.items()}


def kinds_to_proto(kinds: Iterable[AttentionKind]) -> list[alignment_pb2.AttentionKind.ValueType]:
    """Make the enum values of kinds of attention."""
    return [_KINDS[kind] for kind in kinds]


def kinds_from_proto(numbers: Iterable[alignment_pb2.AttentionKind.ValueType]) -> tuple[AttentionKind, ...]:
    """Read kinds of attention; none is cross-attention. Raise ValueError for an unknown kind."""
    kinds = []
    for number in numbers:
        if number not in _KINDS_BACK:
            raise ValueError(f"kinds has the unknown value {number}")
        kinds.append(_KINDS_BACK[number])
    return tuple(kinds) or ("cross",)


def alignments_to_proto(alignments: Sequence[Alignment]) -> alignment_pb2.AlignTextResponse:
    """Make the response of a request from alignments."""
    return alignment_pb2.AlignTextResponse(alignments=[_to_proto(alignment) for alignment in alignments])


def alignments_from_proto(message: alignment_pb2.AlignTextResponse) -> list[Alignment]:
    """Read the alignments of a response; raise ValueError for weights of a wrong size."""
    return [_from_proto(alignment) for alignment in message.alignments]


def _to_proto(alignment: Alignment) -> alignment_pb2.Alignment:
    return alignment_pb2.Alignment(
        target=alignment.target,
        source_tokens=_tokens_to_proto(alignment.source_tokens),
        target_tokens=_tokens_to_proto(alignment.target_tokens),
        decoder_tokens=_tokens_to_proto(alignment.decoder_tokens),
        cross=_weights_to_proto(alignment.cross),
        encoder=_weights_to_proto(alignment.encoder),
        decoder=_weights_to_proto(alignment.decoder),
        source_truncated=alignment.source_truncated,
        model=alignment.model,
        model_version=alignment.model_version,
    )


def _from_proto(message: alignment_pb2.Alignment) -> Alignment:
    source, target, decoder = (
        tuple(AlignedToken(token.text, token.special, token.unknown) for token in tokens)
        for tokens in (message.source_tokens, message.target_tokens, message.decoder_tokens)
    )

    def weights(
        kind: AttentionKind, rows: tuple[AlignedToken, ...], columns: tuple[AlignedToken, ...]
    ) -> AttentionWeights | None:
        if not message.HasField(kind):
            return None
        found: alignment_pb2.AttentionWeights = getattr(message, kind)
        layers, heads = tuple(found.layers), tuple(found.heads)
        if len(found.by_head) not in {0, len(layers) * len(heads)}:
            raise ValueError(
                f"{kind} has {len(found.by_head)} matrices for {len(layers)} layers of {len(heads)} heads each"
            )
        mean, *each = (_matrix(kind, matrix, len(rows), len(columns)) for matrix in (found.mean, *found.by_head))
        of_layers = range(0, len(each), len(heads) or 1)
        return AttentionWeights(
            rows=rows,
            columns=columns,
            layers=layers,
            heads=heads,
            mean=mean,
            by_head=tuple(tuple(each[first : first + len(heads)]) for first in of_layers) if each else None,
        )

    return Alignment(
        target=message.target,
        source_tokens=source,
        target_tokens=target,
        decoder_tokens=decoder,
        cross=weights("cross", target, source),
        encoder=weights("encoder", source, source),
        decoder=weights("decoder", target, decoder),
        source_truncated=message.source_truncated,
        model=message.model,
        model_version=message.model_version,
    )


def _tokens_to_proto(tokens: Sequence[AlignedToken]) -> list[alignment_pb2.AlignedToken]:
    return [
        alignment_pb2.AlignedToken(text=token.text, special=token.special, unknown=token.unknown) for token in tokens
    ]


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


def _matrix(kind: AttentionKind, message: alignment_pb2.AttentionMatrix, rows: int, columns: int) -> Matrix:
    weights = tuple(message.weights)
    if len(weights) != rows * columns:
        raise ValueError(f"{kind} has a matrix of {len(weights)} weights for {rows} by {columns} tokens")
    return tuple(weights[row * columns : (row + 1) * columns] for row in range(rows))
