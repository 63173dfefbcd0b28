"""Heads of cross-attention that align a translation's tokens with those of its source."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from jumok_serve.manifest.fields import Count, Part, Positive


class AttentionHead(Part):
    """A head of cross-attention: decoder layer and head, from 0."""

    layer: Count
    head: Count


class AlignmentHeads(Part):
    """Heads whose mean attention aligns tokens, for tags and for other spans of a text.

    Attributes:
        origin: "guided" if training taught one head to align, "measured" if the best ones were chosen.
        error_rate: share of aligned target tokens whose most attended source token is none of theirs, from 0 to 1; None
            if it was not measured.
        pairs: sentence pairs that it was measured on; None if it was not measured.
    """

    heads: Annotated[tuple[AttentionHead, ...], Field(min_length=1)]
    origin: Literal["guided", "measured"]
    error_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    pairs: Positive | None = None

    def __str__(self) -> str:
        named = ", ".join(f"layer {one.layer} head {one.head}" for one in self.heads)
        measured = ""
        if self.error_rate is not None and self.pairs is not None:
            measured = f"; error rate {100 * self.error_rate:.1f} % on {self.pairs:,} sentence pairs"
        return f"{named} ({self.origin}{measured})"

    def problems(self, aligners: Mapping[str, tuple[int, int] | None]) -> Iterator[str]:
        """Yield heads that a precision does not have.

        Args:
            aligners: numbers of layers and heads of each precision's aligner; None without an aligner.
        """
        for precision, sizes in aligners.items():
            if sizes is None:
                yield f"alignment: precision {precision} has no aligner"
                continue
            layers, heads = sizes
            for one in self.heads:
                if one.layer >= layers or one.head >= heads:
                    yield (
                        f"alignment: precision {precision} has {layers} layers of {heads} heads, and no "
                        f"layer {one.layer} head {one.head}"
                    )
