"""What attended to what while a translation was written, and the alignment of tokens or words that follows from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Literal, TypeAlias, get_args

from jumok_proto.words import Spelling, spelling, words

AttentionKind: TypeAlias = Literal["cross", "encoder", "decoder"]
"""Tokens of the translation to those of the text (``"cross"``), or self-attention: tokens of the text to one another
(``"encoder"``), tokens of the translation to those before them (``"decoder"``)."""
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)

Matrix: TypeAlias = tuple[tuple[float, ...], ...]
"""Rows of weights."""


@dataclass(frozen=True, slots=True)
class AlignedToken:
    """A token, or a word of several."""

    text: str
    """As the tokenizer spells it; of a word, as it is written."""
    special: bool = False
    """Whether it is none of the text, but a sign that stands around it: start, end of sentence, a language."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Attention of one kind. All weights of a row add up to 1."""

    rows: tuple[AlignedToken, ...]
    """What attends."""
    columns: tuple[AlignedToken, ...]
    """What it attends to."""
    layers: tuple[int, ...]
    """The layers that the weights are of, counted from 0."""
    heads: tuple[int, ...]
    """The heads that they are of, counted from 0."""
    mean: Matrix
    """[rows][columns], the mean over those layers and heads."""
    by_head: tuple[tuple[Matrix, ...], ...] | None = None
    """[layers][heads][rows][columns], where each head's was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The attention of one text and a translation of it; of the kinds that were not asked for there is none."""

    target: str
    """The translation."""
    source_tokens: tuple[AlignedToken, ...]
    """What the encoder read, special tokens included."""
    target_tokens: tuple[AlignedToken, ...]
    """The translation's tokens, its end of sentence included where it has one."""
    decoder_tokens: tuple[AlignedToken, ...]
    """What the decoder read, one token before it wrote each of ``target_tokens``: the start token, and all of these but
    the last."""
    cross: AttentionWeights | None = None
    """[target tokens][source tokens]: row t is the attention of the step that wrote target token t."""
    encoder: AttentionWeights | None = None
    """[source tokens][source tokens]."""
    decoder: AttentionWeights | None = None
    """[target tokens][decoder tokens]: row t is the attention of the step that wrote target token t, which has read the
    decoder's tokens up to t; the rest is 0."""
    source_truncated: bool
    model: str
    model_version: str

    def attention(self, kind: AttentionKind) -> AttentionWeights:
        """The attention of one kind.

        Raises:
            ValueError: it was not asked for.
        """
        by_kind = {"cross": self.cross, "encoder": self.encoder, "decoder": self.decoder}
        if (found := by_kind.get(kind)) is None:
            there = ", ".join(name for name, weights in by_kind.items() if weights is not None)
            raise ValueError(f"there is no attention of kind {kind!r} here, only {there}: ask for it with kinds")
        return found

    def pairs(self, *, special: bool = False) -> tuple[tuple[int, int], ...]:
        """The hard alignment: for every target token the source token to which its mean cross-attention is highest.

        Special tokens, such as the end of sentence, take no part: they have no pair, and none is aligned with them,
        even where the weight is highest there; with `special` they are like all others. Of equal weights the first
        counts.

        Returns:
            Places in `source_tokens` and `target_tokens`, as (source, target), by target; none for a text without
            tokens to align with.

        Raises:
            ValueError: cross-attention was not asked for.
        """
        sources = [place for place, token in enumerate(self.source_tokens) if special or not token.special]
        rows = self.attention("cross").mean if sources else ()
        return tuple(
            (max(sources, key=row.__getitem__), target)
            for target, row in enumerate(rows)
            if special or not self.target_tokens[target].special
        )

    def words(self) -> "Alignment":
        """The same with pieces joined to words, which are what stands between spaces, punctuation included.

        A word's column is the sum of its pieces' columns, its row the mean of its pieces' rows, so that a row still
        adds up to 1. Where words begin is read off the pieces' spelling, see `jumok_proto.words`; a text of a script
        without spaces is a single word. Special tokens stay alone.
        """
        kind = spelling(token.text for token in (*self.source_tokens, *self.target_tokens) if not token.special)
        source, target = _Words(self.source_tokens, kind), _Words(self.target_tokens, kind)
        decoder = _Words(self.decoder_tokens, kind)
        return replace(
            self,
            source_tokens=source.tokens,
            target_tokens=target.tokens,
            decoder_tokens=decoder.tokens,
            cross=_joined(self.cross, target, source),
            encoder=_joined(self.encoder, source, source),
            decoder=_joined(self.decoder, target, decoder),
        )


class _Words:
    """The words of some tokens, and the places of their pieces."""

    def __init__(self, pieces: Sequence[AlignedToken], kind: Spelling) -> None:
        found = words([piece.text for piece in pieces], [piece.special for piece in pieces], kind)
        self.tokens = tuple(AlignedToken(text, pieces[places.start].special) for text, places in found)
        self.places = [places for _, places in found]


def _joined(weights: AttentionWeights | None, rows: _Words, columns: _Words) -> AttentionWeights | None:
    if weights is None:
        return None

    def joined(matrix: Matrix) -> Matrix:
        return tuple(
            tuple(
                fsum(matrix[row][column] for row in row_places for column in column_places) / len(row_places)
                for column_places in columns.places
            )
            for row_places in rows.places
        )

    return replace(
        weights,
        rows=rows.tokens,
        columns=columns.tokens,
        mean=joined(weights.mean),
        by_head=weights.by_head and tuple(tuple(map(joined, heads)) for heads in weights.by_head),
    )
