"""Figures of attention: all labels are inside the figure and do not overlap."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder  # type: ignore[import-untyped]
from fontTools.pens.ttGlyphPen import TTGlyphPen  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.image import imread
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from jumok_proto import attention_figure
from jumok_proto.alignments import Alignment
from jumok_proto.attention import AlignedToken, AttentionKind, AttentionWeights, Matrix
from jumok_proto.attention_figure import DEFAULT_FONT, UNKNOWN_COLOUR, Drawing, FigureError, families_for
from jumok_proto.attention_figure import draw as draw_weights

WORDS = ["▁A", "▁man", "▁in", "▁overalls", "▁photographs", "ing", "▁Straßenbahnhaltestelle", "$5", "^_^", "<unk>"]


def tokens(count: int, words: list[str] = WORDS) -> tuple[AlignedToken, ...]:
    pieces = [AlignedToken(words[place % len(words)]) for place in range(count - 1)]
    return (*pieces, AlignedToken("</s>", special=True))


def matrix(rows: int, columns: int) -> Matrix:
    """Most weight near the diagonal."""
    raw = [[1 / (1 + 9 * abs(row / rows - column / columns)) for column in range(columns)] for row in range(rows)]
    return tuple(tuple(weight / sum(row) for weight in row) for row in raw)


def alignment(
    source: tuple[AlignedToken, ...], target: tuple[AlignedToken, ...], *, layers: int = 1, heads: int = 1
) -> Alignment:
    def weights(rows: tuple[AlignedToken, ...], columns: tuple[AlignedToken, ...]) -> AttentionWeights:
        mean = matrix(len(rows), len(columns))
        by_head = ((mean,) * heads,) * layers if layers * heads > 1 else None
        places = tuple(range(layers)), tuple(range(heads))
        return AttentionWeights(
            rows=rows, columns=columns, layers=places[0], heads=places[1], mean=mean, by_head=by_head
        )

    read = (AlignedToken("<s>", special=True), *target[:-1])
    return Alignment(
        target="",
        source_tokens=source,
        target_tokens=target,
        decoder_tokens=read,
        cross=weights(target, source),
        encoder=weights(source, source),
        decoder=weights(target, read),
        source_truncated=False,
        model="a-model",
        model_version="1",
    )


def draw(drawn: Alignment, kind: AttentionKind, *, unit: str = "token") -> Drawing:
    return draw_weights(drawn.model, kind, drawn.attention(kind), unit=unit)


def placed_texts(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text that is drawn, with its place in dots."""
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw(renderer)
    bar = figure.axes[-1]
    low, high = bar.get_ylim()
    ticks = zip(bar.get_yticklabels(), bar.get_yticks(), strict=True)
    beyond = [label for label, at in ticks if not low <= at <= high]  # which matplotlib keeps and does not draw
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible()]
    return [
        (text.get_text(), text.get_window_extent(renderer))
        for text in texts
        if text.get_text() and not any(text is label for label in beyond)
    ]


def check_readable(figure: Figure) -> list[str]:
    """Give the texts of a figure, which lie inside it, beside the panels, and apart from one another."""
    placed = placed_texts(figure)
    names = [text for text, _ in placed]
    texts = np.array([extent.extents for _, extent in placed])  # [texts, 4]: left, bottom, right, top
    assert (texts[:, :2] >= 0).all()
    assert (texts[:, 2:] <= figure.bbox.size).all()
    touching = overlaps(texts, texts) & ~np.eye(len(texts), dtype=bool)
    assert [(names[one], names[other]) for one, other in np.argwhere(touching)] == []
    panels = np.array([axes.get_window_extent().extents for axes in figure.axes])
    assert [names[text] for text, _ in np.argwhere(overlaps(texts, panels))] == []
    return names


def overlaps(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """True for boxes [N, 4] and [M, 4] that share a point; [N, M]."""
    first, second = some[:, None], others[None]
    low, high = np.maximum(first[..., :2], second[..., :2]), np.minimum(first[..., 2:], second[..., 2:])
    return np.asarray((low <= high).all(axis=-1))


def shown_tokens(axes: Axes) -> tuple[list[str], list[str]]:
    rows, columns = axes.get_yticklabels(), axes.get_xticklabels()
    return [text for label in rows if (text := label.get_text())], [
        text for label in columns if (text := label.get_text())
    ]


@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
@pytest.mark.parametrize(("source", "target"), [(5, 6), (14, 11), (60, 57)])
def test_labels_are_complete_and_do_not_overlap(kind: AttentionKind, source: int, target: int, tmp_path: Path) -> None:
    drawn = alignment(tokens(source), tokens(target))
    drawing = draw(drawn, kind)
    check_readable(drawing.figure)
    weights = drawn.attention(kind)
    panel, bar = drawing.figure.axes
    assert shown_tokens(panel) == (list(map(str, weights.rows)), list(map(str, weights.columns)))
    (image,) = panel.get_images()
    array = image.get_array()
    assert array is not None
    assert [tuple(row) for row in array.tolist()] == list(weights.mean)
    assert image.get_clim() == (0.0, max(map(max, weights.mean)))
    assert bar.get_ylabel() == "attention weight"
    width, height = panel.get_window_extent().size
    assert width / len(weights.columns) == pytest.approx(height / len(weights.rows))
    drawing.save(tmp_path / "a.png")
    assert imread(tmp_path / "a.png").shape[:2] == tuple(int(side) for side in reversed(drawing.figure.bbox.size))


@pytest.mark.parametrize(("source", "target"), [(1, 1), (2, 60), (60, 2), (100, 90)])
def test_odd_shapes_are_readable_too(source: int, target: int) -> None:
    check_readable(draw(alignment(tokens(source), tokens(target)), "cross", unit="word").figure)


@pytest.mark.parametrize(("length", "layers", "heads"), [(5, 3, 4), (20, 2, 2), (9, 1, 2), (1, 2, 1)])
def test_each_head_has_a_panel_with_its_name(length: int, layers: int, heads: int) -> None:
    figure = draw(alignment(tokens(length), tokens(length + 1), layers=layers, heads=heads), "cross").figure
    shown = check_readable(figure)
    names = [f"layer {layer}, head {head}" for layer in range(layers) for head in range(heads)]
    assert [text for text in shown if text in names] == names
    assert len(figure.axes) == layers * heads + 1
    rows, columns = [str(token) for token in tokens(length + 1)], [str(token) for token in tokens(length)]
    for index, panel in enumerate(figure.axes[:-1]):
        assert shown_tokens(panel) == (rows if index % heads == 0 else [], columns if index < heads else [])


def test_the_title_says_what_is_averaged() -> None:
    drawn = alignment(tokens(5), tokens(5), layers=3, heads=4)

    def title(**changes: object) -> str:
        weights = replace(drawn.attention("encoder"), **changes)  # type: ignore[arg-type]
        return placed_texts(draw(replace(drawn, encoder=weights), "encoder").figure)[-3][0]

    name = "Self-attention of the encoder of a-model,\n"
    assert title() == f"{name}3 layers and 4 heads"
    assert title(by_head=None) == f"{name}mean over 3 layers and 4 heads"
    assert title(by_head=None, layers=(1,)) == f"{name}layer 1, mean over 4 heads"
    assert title(by_head=None, layers=(1,), heads=(2,)) == f"{name}layer 1, head 2"


def test_the_same_picture_comes_out_every_time(tmp_path: Path) -> None:
    for name in ("one.png", "other.png"):
        draw(alignment(tokens(9), tokens(8)), "cross").save(tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()


def test_a_character_is_drawn_with_a_font_that_has_it(tmp_path: Path) -> None:
    rare = chr(0x20DD)  # that matplotlib brings in one of its fonts, and not in the usual one
    default, other = (FT2Font(findfont(name)).get_charmap() for name in ("DejaVu Sans", "STIXGeneral"))
    assert ord(rare) not in default
    assert ord(rare) in other
    drawing = draw(alignment(tokens(3, ["▁a", f"x{rare}"]), tokens(3)), "cross")
    assert drawing.missing == ""
    label = drawing.figure.axes[0].get_xticklabels()[1]
    (first, *others) = label.get_fontfamily()
    assert first == "DejaVu Sans"
    assert any(ord(rare) in FT2Font(findfont(name)).get_charmap() for name in others)
    drawing.save(tmp_path / "a.png")


@pytest.mark.filterwarnings("ignore:Glyph")  # of the drawing that this test makes itself
def test_characters_without_a_font_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [font for font in fontManager.ttflist if Path(font.fname).is_relative_to(matplotlib.get_data_path())]
    monkeypatch.setattr(attention_figure, "fontManager", SimpleNamespace(ttflist=own))
    drawing = draw(alignment(tokens(6, ["▁ok", "주목", "שלום", "مرحبا", "a\nb"]), tokens(4)), "cross")
    assert drawing.missing == "".join(sorted("주목"))
    check_readable(drawing.figure)
    assert shown_tokens(drawing.figure.axes[0])[1][4] == "a�b"
    drawing.save(tmp_path / "a.png")


def test_long_words_are_shortened() -> None:
    word = "Rindfleischetikettierungsüberwachungsaufgabe"
    rows, _ = shown_tokens(draw(alignment(tokens(2), tokens(2, [word])), "cross").figure.axes[0])
    assert rows[0] == f"{word[:23]}…"


def test_undrawable_figures_are_refused() -> None:
    empty = alignment(tokens(2), tokens(2))
    nothing = replace(empty.attention("cross"), rows=(), mean=())
    with pytest.raises(FigureError, match="the text has no content"):
        draw(replace(empty, cross=nothing), "cross")
    with pytest.raises(FigureError, match="384 panels of 60 by 60 cells is too large: name a --layer"):
        draw(alignment(tokens(60), tokens(60), layers=24, heads=16), "cross")


def test_fonts_of_coloured_pictures_are_left_out(tmp_path: Path) -> None:
    """As with Noto Color Emoji installed: its glyphs would be drawn empty, or not at all."""

    def font(name: str, *, coloured: bool) -> Path:
        builder = FontBuilder(1000, isTTF=True)
        builder.setupGlyphOrder([".notdef", "grin"])
        builder.setupCharacterMap({0x10F123: "grin"})
        pen = TTGlyphPen(None)
        for point in ((0, 0), (500, 0), (500, 700)):
            (pen.lineTo if point != (0, 0) else pen.moveTo)(point)
        pen.closePath()
        builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "grin": pen.glyph()})
        builder.setupHorizontalMetrics({".notdef": (500, 0), "grin": (500, 0)})
        builder.setupHorizontalHeader(ascent=800, descent=-200)
        builder.setupNameTable({"familyName": name, "styleName": "Regular"})
        builder.setupOS2()
        builder.setupPost()
        if coloured:
            builder.setupCOLR({"grin": [("grin", 0)]})
            builder.setupCPAL([[(1.0, 0.0, 0.0, 1.0)]])
        path = tmp_path / f"{name}.ttf"
        builder.save(path)
        return path

    before = list(fontManager.ttflist)
    try:
        fontManager.addfont(font("A Coloured Font", coloured=True))
        assert families_for(["\U0010f123"]) == ([DEFAULT_FONT], {"\U0010f123"})
        fontManager.addfont(font("B Plain Font", coloured=False))
        assert families_for(["\U0010f123"]) == ([DEFAULT_FONT, "B Plain Font"], set())
    finally:
        fontManager.ttflist[:] = before


def test_an_alignment_draws_itself(tmp_path: Path) -> None:
    drawn = alignment(tokens(5), tokens(6))
    figure = drawn.plot()
    check_readable(figure)
    assert shown_tokens(figure.axes[0]) == shown_tokens(draw(drawn, "cross").figure.axes[0])
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        figure.savefig(tmp_path / f"a{ending}")
        assert (tmp_path / f"a{ending}").read_bytes().startswith(start)
    words = drawn.plot("encoder", words=True)
    assert shown_tokens(words.axes[0])[0] == [str(token) for token in drawn.words().source_tokens]
    assert "source words" in check_readable(words)
    with pytest.raises(ValueError, match="no attention of kind 'cross'"):
        replace(drawn, cross=None).plot()


def test_without_the_extra_plotting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "jumok_proto.attention_figure")
    with pytest.raises(ImportError, match=r"alignment.plot\(\) needs matplotlib.*pip install 'jumok\[plot\]'"):
        alignment(tokens(2), tokens(2)).plot()


def test_labels_of_unknown_tokens_are_red() -> None:
    source = (AlignedToken("▁the"), AlignedToken("▁Ǆ", unknown=True), AlignedToken("</s>", special=True))
    panel = draw(alignment(source, tokens(4)), "cross").figure.axes[0]
    assert [to_hex(label.get_color()) for label in panel.get_xticklabels()] == [
        to_hex(color) for color in ("black", UNKNOWN_COLOUR, "black")
    ]
    assert {to_hex(label.get_color()) for label in panel.get_yticklabels()} == {to_hex("black")}
