"""A figure of attention: a cell per token pair, panels by head, and fonts that have all characters."""

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.ft2font import FT2Font

from jumok_proto.attention import AttentionKind, AttentionWeights, Matrix
from jumok_proto.errors import JumokError

TITLES: dict[AttentionKind, str] = {
    "cross": "Cross-attention",
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
}
AXES: dict[AttentionKind, tuple[str, str]] = {
    "cross": ("source {}s", "target {}s"),
    "encoder": ("source {}s attended to", "source {}s"),
    "decoder": ("target {}s read", "target {}s written"),
}
"""Labels of columns and rows, by kind."""
BAR_LABEL = "attention weight"
UNKNOWN_COLOUR = "tab:red"
"""Colour of the labels of unknown tokens."""

DOTS_PER_INCH = 150.0
MIN_DOTS_PER_INCH = 60.0
"""The lowest resolution with readable labels."""
MAX_DOTS = 40e6
MAX_DOTS_A_SIDE = 60_000
"""Limit of the renderer: less than 2 ** 16."""
LONGEST_LABEL = 24
SPACE = 0.12
"""Inches between parts."""
BAR = 0.18
"""Width of the colour bar in inches."""

DEFAULT_FONT = "DejaVu Sans"
"""The font that comes with matplotlib."""
_BOXES = "Last Resort"
"""Fonts with a box for every character, and no letters."""

_COLOURED = frozenset({b"CBDT", b"COLR", b"SVG ", b"sbix"})
"""Tables of coloured glyphs, which matplotlib cannot draw, or draws empty."""


class FigureError(JumokError):
    """The attention cannot be drawn."""


@dataclass(frozen=True)
class Drawing:
    """A figure, and the characters without a font, drawn as boxes."""

    figure: Figure
    missing: str

    def save(self, file: Path) -> None:
        """Write the figure in the format of the file's ending."""
        with _quiet(), rc_context({"svg.fonttype": "path", "pdf.fonttype": 42}):
            self.figure.savefig(file, format=file.suffix.lower().removeprefix("."))


def draw(model: str, kind: AttentionKind, weights: AttentionWeights, *, unit: str = "token") -> Drawing:
    """Draw attention of one kind: each head if available, else the mean.

    Rows attend to columns, as in Bahdanau, Cho and Bengio (2015), figure 3. All panels share one colour scale, from 0
    to the largest weight. Labels of unknown tokens are red.

    Args:
        model: name of the model, for the title.
        weights: attention of this kind.
        unit: name of a token in labels.

    Raises:
        FigureError: the text has no tokens, or labels would be too small to read.
    """
    if not weights.rows or not weights.columns:
        raise FigureError("the text has no content: there is no attention to draw")
    with _quiet():
        return _Layout(model, kind, weights, unit).draw()


class _Layout:
    """Place all parts of a figure, in inches from the top left, without overlap."""

    def __init__(self, model: str, kind: AttentionKind, weights: AttentionWeights, unit: str) -> None:
        self._panels = _panels(weights)
        self._rows = [_label(token.text) for token in weights.rows]
        self._columns = [_label(token.text) for token in weights.columns]
        self._tokens = weights.columns, weights.rows
        self._x_label, self._y_label = (label.format(unit) for label in AXES[kind])
        self._title = f"{TITLES[kind]} of {model},\n{_described(weights)}"
        self._families, self._missing = families_for([*self._rows, *self._columns, *self._title.split("\n")])
        self._figure = Figure(dpi=DOTS_PER_INCH)
        self._renderer = FigureCanvasAgg(self._figure).get_renderer()  # type: ignore[no-untyped-call]
        self._inches = (1.0, 1.0)
        tokens = max(len(self._rows), len(self._columns))
        self._grid = len(self._panels) * len(self._panels[0]) > 1
        self._points = 8.0 if self._grid or tokens > 25 else 10.0 if tokens > 10 else 12.0
        self._cell = max(1.6 * self._points / 72, (1.6 if self._grid else 3.2) / tokens)  # more than a label is high
        self._size = cache(self._measured)

    def draw(self) -> Drawing:
        """Measure all texts, place all parts and draw them."""
        line = self._size("lp")[1]
        title_width, title_height = self._size(self._title)
        row_labels = max(self._size(label)[0] for label in self._rows)
        column_labels = max(self._size(label)[0] for label in self._columns)
        width, height = self._cell * len(self._columns), self._cell * len(self._rows)  # of a panel
        name_width, name_height = 0.0, 0.0
        if self._grid:
            name_width = max(self._size(name)[0] for panels in self._panels for name, _ in panels)
            name_height = line + SPACE
        step_x, step_y = max(width, name_width) + 2 * SPACE, height + name_height + 2 * SPACE
        # Size of all panels, or more if the labels at their sides need it.
        all_width = max(step_x * len(self._panels[0]), self._size(self._x_label)[0])
        all_height = max(step_y * len(self._panels), self._size(self._y_label)[0], self._size(BAR_LABEL)[0])

        title_y = SPACE + title_height / 2
        x_label_y = title_y + title_height / 2 + SPACE + line / 2
        top = x_label_y + line / 2 + SPACE + column_labels + SPACE
        left = SPACE + line + SPACE + row_labels + SPACE
        right = BAR + SPACE + self._size("0.000")[0] + 2 * SPACE + line + SPACE
        margin = max(0.0, title_width + 2 * SPACE - left - all_width - right) / 2
        left += margin
        self._set_size(left + all_width + right + margin, top + all_height + SPACE)

        largest = max(max(map(max, matrix)) for panels in self._panels for _, matrix in panels)
        for y, panels in enumerate(self._panels):
            for x, (name, matrix) in enumerate(panels):
                axes = self._axes(left + x * step_x, top + y * step_y, width, height)
                image = axes.imshow(
                    matrix, cmap="Blues", vmin=0.0, vmax=largest, aspect="auto", interpolation="nearest"
                )
                self._label_axes(axes, first_row=y == 0, first_column=x == 0)
                if self._grid:
                    middle = left + x * step_x + width / 2
                    self._text(middle, top + y * step_y + height + name_height / 2, name)
        bar_height = step_y * len(self._panels) - name_height - 2 * SPACE
        bar_axes = self._axes(left + all_width, top, BAR, max(bar_height, self._size(BAR_LABEL)[0]))
        bar = self._figure.colorbar(image, cax=bar_axes)
        bar.ax.tick_params(labelsize=self._points)
        bar.set_label(BAR_LABEL, fontsize=self._points)
        self._text(self._inches[0] / 2, title_y, self._title)
        self._text(left + step_x * len(self._panels[0]) / 2 - SPACE, x_label_y, self._x_label)
        row_middle = top + step_y * len(self._panels) / 2 - SPACE
        self._text(margin + SPACE + line / 2, row_middle, self._y_label, rotation=90)
        return Drawing(self._figure, "".join(sorted(self._missing)))

    def _measured(self, text: str) -> tuple[float, float]:
        """Measure a text in inches, with a margin for rounding at other resolutions."""
        drawn = self._figure.text(0, 0, text, fontsize=self._points, fontfamily=self._families, parse_math=False)
        extent = drawn.get_window_extent(self._renderer)
        drawn.remove()
        return 1.03 * extent.width / DOTS_PER_INCH, 1.03 * extent.height / DOTS_PER_INCH

    def _set_size(self, width: float, height: float) -> None:
        self._inches = (width, height)
        dots = min(DOTS_PER_INCH, math.sqrt(MAX_DOTS / (width * height)), MAX_DOTS_A_SIDE / max(width, height))
        if dots < MIN_DOTS_PER_INCH:
            raise FigureError(
                f"a picture of {len(self._panels) * len(self._panels[0])} panels of {len(self._rows)} by "
                f"{len(self._columns)} cells is too large: name a --layer or a --head, or take a shorter text"
            )
        self._figure.set_size_inches(width, height)
        self._figure.set_dpi(dots)

    def _axes(self, left: float, top: float, width: float, height: float) -> Axes:
        all_width, all_height = self._inches
        bottom = all_height - top - height
        bounds = (left / all_width, bottom / all_height, width / all_width, height / all_height)
        return self._figure.add_axes(bounds)

    def _text(self, x: float, y: float, text: str, *, rotation: float = 0) -> None:
        """Write a text centred on a point."""
        width, height = self._inches
        self._figure.text(
            x / width,
            1 - y / height,
            text,
            rotation=rotation,
            ha="center",
            va="center",
            fontsize=self._points,
            fontfamily=self._families,
            parse_math=False,
        )

    def _label_axes(self, axes: Axes, *, first_row: bool, first_column: bool) -> None:
        """Write the tokens beside the first panels."""
        style: dict[str, Any] = {"fontsize": self._points, "fontfamily": self._families, "parse_math": False}
        axes.tick_params(length=0)
        axes.xaxis.tick_top()
        axes.set_xticks(range(len(self._columns)), self._columns if first_row else [], rotation=90, **style)
        axes.set_yticks(range(len(self._rows)), self._rows if first_column else [], **style)
        for tokens, axis in zip(self._tokens, (axes.xaxis, axes.yaxis), strict=True):
            for token, label in zip(tokens, axis.get_ticklabels(), strict=True):
                if token.unknown:
                    label.set_color(UNKNOWN_COLOUR)


def _panels(weights: AttentionWeights) -> list[list[tuple[str, Matrix]]]:
    """Arrange named matrices in rows of layers and columns of heads."""
    if weights.by_head is None:
        return [[("", weights.mean)]]
    return [
        [(f"layer {layer}, head {head}", matrix) for head, matrix in zip(weights.heads, matrices, strict=True)]
        for layer, matrices in zip(weights.layers, weights.by_head, strict=True)
    ]


def _described(weights: AttentionWeights) -> str:
    """Describe the layers and heads of the weights."""
    counted = (("layer", weights.layers), ("head", weights.heads))
    named = [f"{name} {numbers[0]}" for name, numbers in counted if len(numbers) == 1]
    several = [f"{len(numbers)} {name}s" for name, numbers in counted if len(numbers) > 1]
    over = "mean over " if weights.by_head is None else ""
    return ", ".join([*named, *([over + " and ".join(several)] if several else [])])


def _label(text: str) -> str:
    """Make a label of a token: printable and short."""
    shown = "".join(character if character.isprintable() else "�" for character in text)
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 1]}…"


def families_for(texts: Iterable[str]) -> tuple[list[str], set[str]]:
    """Choose fonts for texts, and return the characters that no installed font has.

    Each added font has most of the characters that are still missing. Of equal fonts the first by name counts.
    """
    left = {character for text in texts for character in text} - _characters(
        findfont(FontProperties(family=[DEFAULT_FONT]))
    )
    families = [DEFAULT_FONT]
    others = sorted({(font.name, font.fname) for font in fontManager.ttflist if not font.name.startswith(_BOXES)})
    while left:
        name, file = max(others, key=lambda font: len(left & _characters(font[1])), default=("", ""))
        if not file or not left & _characters(file):
            break
        families.append(name)
        left -= _characters(findfont(FontProperties(family=[name])))
        others.remove((name, file))
    return families, left


@cache
def _characters(file: str) -> frozenset[str]:
    """Give the characters of a font; none if it cannot be read or its glyphs are coloured pictures."""
    if not Path(file).is_file() or _tables(file) & _COLOURED:
        return frozenset()
    try:
        return frozenset(map(chr, FT2Font(file).get_charmap()))
    except RuntimeError:
        return frozenset()


def _tables(file: str) -> frozenset[bytes]:
    """Give the names of a font's tables; none if it is no TrueType or OpenType font."""
    with open(file, "rb") as stream:
        head = stream.read(16)
        if head[:4] == b"ttcf":  # a collection begins with the places of its fonts
            stream.seek(int.from_bytes(head[12:16], "big"))
            head = stream.read(12)
        else:
            stream.seek(12)
        records = stream.read(16 * int.from_bytes(head[4:6], "big"))
    return frozenset(records[start : start + 4] for start in range(0, len(records), 16))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence matplotlib's warnings about missing glyphs; `Drawing.missing` lists them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield
