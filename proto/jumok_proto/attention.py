"""Attention weights between tokens."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

AttentionKind: TypeAlias = Literal["cross", "encoder", "decoder"]
"""Cross-attention (``"cross"``), or self-attention of the encoder (``"encoder"``) or the decoder (``"decoder"``)."""
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)

Matrix: TypeAlias = tuple[tuple[float, ...], ...]
"""Rows of weights."""


@dataclass(frozen=True, slots=True)
class AlignedToken:
    """A token, or a word of several tokens."""

    text: str
    """A token as the tokenizer spells it, an unknown one of the source as in the text; a word as it is written."""
    special: bool = False
    """True for a token around the text: start, end of sentence, language."""
    unknown: bool = False
    """True for a token that the vocabulary lacks, and for a word with one."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Attention of one kind. The weights of a row sum to 1."""

    rows: tuple[AlignedToken, ...]
    """Tokens that attend."""
    columns: tuple[AlignedToken, ...]
    """Tokens attended to."""
    layers: tuple[int, ...]
    """Layers of the weights, counted from 0."""
    heads: tuple[int, ...]
    """Heads of the weights, counted from 0."""
    mean: Matrix
    """``[rows][columns]``, the mean over these layers and heads."""
    by_head: tuple[tuple[Matrix, ...], ...] | None = None
    """``[layers][heads][rows][columns]``; None unless each head was requested."""
