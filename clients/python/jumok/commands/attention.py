"""``jumok attention``: draw the attention of a model, through a server or a bundle."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from jumok import AttentionKind, Client
from jumok.commands._options import language_options, limit_options, open_target, target_options
from jumok.commands._output import warn, warn_cut, write_line
from jumok_proto.attention import ATTENTION_KINDS

FORMATS = (".png", ".svg", ".pdf")
"""Endings of files, which are their formats."""


@click.command()
@click.argument("text")
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="File to write, .png, .svg or .pdf; an existing file is replaced.",
)
@click.option("--target", metavar="TEXT", help="Translation to align, instead of the model's own.")
@click.option(
    "--kind",
    type=click.Choice(ATTENTION_KINDS),
    default="cross",
    show_default=True,
    help="Cross-attention, or self-attention of the encoder or the decoder.",
)
@click.option("--layer", type=click.IntRange(min=0), help="Draw only this layer, counted from 0.")
@click.option("--head", type=click.IntRange(min=0), help="Draw only this head, counted from 0.")
@click.option("--each-head", is_flag=True, help="Draw one panel for each layer and head, instead of their mean.")
@click.option(
    "--words/--pieces", default=False, help="Draw words, or the pieces of words that are the tokens (default)."
)
@target_options
@language_options
@limit_options
@click.pass_context
def attention(
    context: click.Context,
    /,
    *,
    text: str,
    out: Path,
    target: str | None,
    kind: AttentionKind,
    words: bool,
    server: str,
    bundle: Path | None,
    model: str,
    **settings: Any,
) -> None:
    """Draw the attention of the model while it translates TEXT, and write the translation.

    Rows attend to columns: in cross-attention, tokens of the translation to tokens of the text.
    """
    if out.suffix.lower() not in FORMATS:
        raise click.UsageError(f"--out must end in {', '.join(FORMATS)}, got {str(out)!r}")
    if not out.parent.is_dir():
        raise click.UsageError(f"--out {out}: the folder {out.parent} does not exist; create it, or choose another")
    if find_spec("matplotlib") is None:  # it takes a second to import, so the drawing does
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    with open_target(context, server, bundle) as aligner:
        if isinstance(aligner, Client):
            settings["model"] = model
        (alignment,) = aligner.align([text], [target], kinds=[kind], **settings)
    if alignment.source_truncated:
        warn_cut("the text", len(alignment.source_tokens))
    unknown = sorted({token.text.removeprefix("▁") for token in alignment.source_tokens if token.unknown})
    if unknown:
        warn(f"unknown to the model, which guesses there: {' '.join(unknown)} (red)")
    lacking = sum(token.unknown for token in alignment.target_tokens)
    if lacking:
        of_all = f"{lacking} of {len(alignment.target_tokens)}"
        warn(f"{of_all} tokens of the translation are unknown to the model (red)")
    from jumok_proto.attention_figure import draw  # noqa: PLC0415 - takes a second

    drawn = alignment.words() if words else alignment
    drawing = draw(alignment.model, kind, drawn.attention(kind), unit="word" if words else "token")
    if drawing.missing:
        warn(
            f"no installed font has {' '.join(drawing.missing)}: drawn as boxes; install one, such as Noto Sans of "
            "that script, or Noto Emoji (fonts of coloured pictures cannot be drawn)"
        )
    drawing.save(out)
    write_line(" ".join(alignment.target.splitlines()))
