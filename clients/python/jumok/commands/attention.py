"""``jumok attention``: a picture of what a model looked at, through a server or a bundle."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click

from jumok import Alignment, AttentionKind, Client
from jumok.commands._options import language_options, limit_options, open_place, place_options
from jumok.commands._output import write_line
from jumok_proto.alignments import ATTENTION_KINDS

# What draws is imported when the command runs: it takes a second. That it is there is known right away.
if find_spec("matplotlib") is None:
    raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")


@click.command()
@click.argument("text")
@click.option(
    "--out",
    metavar="FILE.png",
    required=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="File to write; one that is there is replaced.",
)
@click.option("--target", metavar="TEXT", help="Translation to look at, instead of the model's own best one.")
@click.option(
    "--kind",
    type=click.Choice(ATTENTION_KINDS),
    default="cross",
    show_default=True,
    help="From the translation to the text (cross), or self-attention in the encoder or the decoder.",
)
@click.option("--layer", type=click.IntRange(min=0), help="One layer alone, counted from 0.")
@click.option("--head", type=click.IntRange(min=0), help="One head alone, counted from 0.")
@click.option("--each-head", is_flag=True, help="Draw a panel for each layer and head, instead of the mean over them.")
@click.option("--words/--pieces", default=False, help="Join the pieces of words, or draw them as they are (default).")
@place_options
@language_options
@limit_options
@click.pass_context
def attention(
    context: click.Context,
    *,
    text: str,
    out: Path,
    target: str | None,
    kind: AttentionKind,
    layer: int | None,
    head: int | None,
    each_head: bool,
    words: bool,
    server: str,
    bundle: Path | None,
    model: str,
    source_language: str | None,
    target_language: str | None,
    truncate: bool,
    timeout_s: float,
) -> None:
    """Draw what the model attends to while it translates TEXT, as a PNG; write the translation.

    What is attended to is in columns, what attends in rows: in cross-attention the tokens of the text, and those of the
    translation.
    """
    if out.suffix.lower() != ".png":
        raise click.UsageError(f"--out must end in .png, got {str(out)!r}")
    if not out.parent.is_dir():
        raise click.UsageError(f"--out {out}: there is no folder {out.parent}; make it, or choose another")
    with open_place(context, server, bundle) as aligner:
        align = partial(
            aligner.align,
            kinds=[kind],
            layer=layer,
            head=head,
            each_head=each_head,
            source_language=source_language,
            target_language=target_language,
            truncate=truncate,
            timeout_s=timeout_s,
        )
        if isinstance(aligner, Client):
            align = partial(align, model=model)
        (alignment,) = align([text], [target])
    if alignment.source_truncated:
        kept = len(alignment.source_tokens)
        click.echo(f"Warning: the text: too long for the model, cut to {kept} tokens", err=True)
    _draw(alignment.words() if words else alignment, kind, out, unit="word" if words else "token")
    write_line(" ".join(alignment.target.splitlines()))


def _draw(alignment: Alignment, kind: AttentionKind, out: Path, *, unit: str) -> None:
    from jumok.commands._attention_figure import draw  # noqa: PLC0415 - takes a second

    drawing = draw(alignment, kind, unit=unit)
    if drawing.missing:
        click.echo(
            f"Warning: no installed font has {' '.join(drawing.missing)}: drawn as boxes; install one that has, such "
            "as Noto Sans of that script",
            err=True,
        )
    drawing.save(out)
