"""Attention of a text and its translation, and the alignment of tokens or words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING

from jumok_proto.attention import AlignedToken, AttentionKind, AttentionWeights, Matrix
from jumok_proto.words import Spelling, spelling, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The attention of a text and its translation, of the requested kinds."""

    target: str
    """The translation."""
    source_tokens: tuple[AlignedToken, ...]
    """The encoder's input tokens, special ones included."""
    target_tokens: tuple[AlignedToken, ...]
    """The tokens of the translation, and its end of sentence if it has one."""
    decoder_tokens: tuple[AlignedToken, ...]
    """The decoder's input tokens: the start token, and all ``target_tokens`` but the last."""
    cross: AttentionWeights | None = None
    """``[target tokens][source tokens]``; row t is the attention of the step that wrote target token t."""
    encoder: AttentionWeights | None = None
    """``[source tokens][source tokens]``."""
    decoder: AttentionWeights | None = None
    """``[target tokens][decoder tokens]``; row t is the attention of the step that wrote target token t."""
    source_truncated: bool
    model: str
    model_version: str

    def attention(self, kind: AttentionKind) -> AttentionWeights:
        """Give the attention of one kind; raise ValueError if it was not requested."""
        by_kind = {"cross": self.cross, "encoder": self.encoder, "decoder": self.decoder}
        if (found := by_kind.get(kind)) is None:
            available = ", ".join(name for name, weights in by_kind.items() if weights is not None)
            raise ValueError(
                f"the result has no attention of kind {kind!r}, only {available or 'none'}: request it with the "
                "argument kinds"
            )
        return found

    def plot(self, kind: AttentionKind = "cross", *, words: bool = False) -> "Figure":
        """Draw attention of one kind: a panel for each head if requested, else the mean.

        Rows attend to columns. `savefig` of the figure writes it as .png, .svg or .pdf; notebooks show it.

        Args:
            kind: kind of attention, which was requested.
            words: True to draw words, as `words` joins them, instead of tokens.

        Raises:
            ImportError: matplotlib is not installed; the extra `plot` brings it.
            ValueError: the kind was not requested.
            FigureError: the text has no tokens, or labels would be too small to read.
        """
        try:
            from jumok_proto.attention_figure import draw  # noqa: PLC0415 - an extra, which takes a second
        except ModuleNotFoundError as error:
            if error.name != "matplotlib":
                raise
            raise ImportError(
                "alignment.plot() needs matplotlib, which is not installed; install it with: pip install 'jumok[plot]'",
                name="matplotlib",
            ) from error
        drawn, unit = (self.words(), "word") if words else (self, "token")
        return draw(self.model, kind, drawn.attention(kind), unit=unit).figure

    def pairs(self, *, special: bool = False) -> tuple[tuple[int, int], ...]:
        """Align each target token with the source token of its highest mean cross-attention.

        Special tokens, such as the end of sentence, are left out on both sides unless ``special`` is set. Among equal
        weights the first counts.

        Returns:
            Indices in ``source_tokens`` and ``target_tokens``, as (source, target), sorted by target; empty for a text
            without tokens.

        Raises:
            ValueError: cross-attention was not requested.
        """
        sources = [index for index, token in enumerate(self.source_tokens) if special or not token.special]
        rows = self.attention("cross").mean if sources else ()
        return tuple(
            (max(sources, key=row.__getitem__), target)
            for target, row in enumerate(rows)
            if special or not self.target_tokens[target].special
        )

    def words(self) -> "Alignment":
        """Join tokens to words, which spaces separate; punctuation belongs to its word.

        The columns of a word's tokens are added, and their rows are averaged. Each row still sums to 1. The spelling of
        tokens marks words, see `jumok_proto.words`. In scripts without spaces, such as Chinese, Japanese and Thai, each
        token is a word. Special tokens stay separate.
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
    """The words of tokens, and the ranges of their tokens."""

    def __init__(self, pieces: Sequence[AlignedToken], kind: Spelling) -> None:
        found = words([piece.text for piece in pieces], [piece.special for piece in pieces], kind)
        self.tokens = tuple(
            AlignedToken(text, pieces[tokens.start].special, any(pieces[token].unknown for token in tokens))
            for text, tokens in found
        )
        self.ranges = [tokens for _, tokens in found]


def _joined(weights: AttentionWeights | None, rows: _Words, columns: _Words) -> AttentionWeights | None:
    if weights is None:
        return None

    def joined(matrix: Matrix) -> Matrix:
        return tuple(
            tuple(
                fsum(matrix[row][column] for row in row_range for column in column_range) / len(row_range)
                for column_range in columns.ranges
            )
            for row_range in rows.ranges
        )

    return replace(
        weights,
        rows=rows.tokens,
        columns=columns.tokens,
        mean=joined(weights.mean),
        by_head=weights.by_head and tuple(tuple(map(joined, heads)) for heads in weights.by_head),
    )
