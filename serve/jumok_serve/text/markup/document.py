"""A document with markup: blocks of text with spans, and all else as it was written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Span:
    """An element inside of a block, or a mark without translated content.

    Attributes:
        start, end: indices of its text in the block's; equal for a mark.
        opening, closing: its tags as they were written.
        content: what stands between the tags, if it is not translated; None: the text.
        children: spans inside of it, in their order.
        after_space: True if white space or nothing stands before it.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    content: str | None = None
    children: "list[Span]" = field(default_factory=list)
    after_space: bool = False

    @property
    def is_mark(self) -> bool:
        """True if it has no text to be placed by."""
        return self.start == self.end

    def add_space(self) -> None:
        """Add a space after the last of its tags."""
        if self.closing:
            self.closing += " "
        else:
            self.opening += " "


@dataclass(eq=False, slots=True)
class Block:
    """Text whose sentences are translated together, with spans.

    Attributes:
        text: plain text, without white space at its ends, and with a space for each white space inside.
        spans: outermost spans, in their order.
        entities: written forms of characters, such as ``&nbsp;``.
        literal: True for text without tags and entities, as in XML's ``<![CDATA[...]]>``.
    """

    text: str
    spans: list[Span]
    entities: dict[str, str] = field(default_factory=dict)
    literal: bool = False
    _table: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self._table = str.maketrans({**_NEEDED, **self.entities})

    def escape(self, text: str) -> str:
        """Write plain text as markup, with the entities of the source where it had them."""
        if self.literal:
            return text.replace("]]>", "]]]]><![CDATA[>")
        if not self.entities:
            return text.replace("&", "&amp;").replace("<", "&lt;")
        return text.translate(self._table)


_NEEDED = {"&": "&amp;", "<": "&lt;"}


@dataclass(frozen=True, slots=True)
class Document:
    """A text with markup.

    Attributes:
        pieces: blocks, and all that is between them as it was written.
    """

    pieces: Sequence[str | Block]

    @property
    def blocks(self) -> list[Block]:
        """The blocks, in their order."""
        return [piece for piece in self.pieces if isinstance(piece, Block)]

    def written(self, write: Callable[[Block], str]) -> str:
        """Return the document with each block as a function writes it."""
        return "".join(piece if isinstance(piece, str) else write(piece) for piece in self.pieces)
