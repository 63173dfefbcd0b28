"""Options that several commands share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jumok_export.cli.process import collect_rarely, let_threads_sleep

if TYPE_CHECKING:
    from jumok_export.bundles.alignment_heads import AlignmentText
    from jumok_export.shortlists.sources import ShortlistPlan

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def _precisions(_context: click.Context, _parameter: click.Parameter, value: str) -> Sequence[str]:
    let_threads_sleep()  # here PyTorch is imported first
    collect_rarely()
    from jumok_export.bundles.export import PRECISIONS  # noqa: PLC0415

    chosen = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    unknown = [name for name in chosen if name not in PRECISIONS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(PRECISIONS)}")
    return chosen


_OUT = click.Path(path_type=Path)
out_option = click.option("--out", metavar="BUNDLE", required=True, type=_OUT, help="Folder of the new bundle.")
optional_out_option = click.option(
    "--out", metavar="BUNDLE", type=_OUT, help="Folder of the new bundle.  [default: for a name, the cache]"
)
precision_option = click.option(
    "--precision",
    "precisions",
    default="fp32,int8",
    show_default=True,
    metavar="NAMES",
    callback=_precisions,
    help="Precisions to write: fp32, fp16 (for CUDA) and int8 (for CPUs), separated by commas.",
)
calibration_option = click.option(
    "--calibration",
    metavar="FILE",
    type=FILE,
    help="Source sentences, one per line, for the scales of int8 activations and the verification of fp16; a few "
    "hundred are enough.",
)
unverified_option = click.option(
    "--unverified",
    is_flag=True,
    help="Write the bundle even if ONNX Runtime and PyTorch compute different results; the bundle says so.",
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing bundle.")
SHORTLIST_OPTIONS = (
    click.option(
        "--shortlist-source",
        metavar="FILE",
        type=FILE,
        help="Source sentences, one per line, to make a shortlist from: the target tokens that a text may use.",
    ),
    click.option(
        "--shortlist-target", metavar="FILE", type=FILE, help="Translations of --shortlist-source, one per line."
    ),
    click.option(
        "--lexical-table",
        metavar="FILE",
        type=FILE,
        help="Lines of `target source probability` in the model's tokens, to make a shortlist from instead.",
    ),
    click.option(
        "--shortlist-best",
        metavar="N",
        type=click.IntRange(min=1),
        default=100,
        show_default=True,
        help="Target tokens in the list of each source token.",
    ),
    click.option(
        "--shortlist-frequent",
        metavar="N",
        type=click.IntRange(min=0),
        default=100,
        show_default=True,
        help="Most frequent target tokens, which are in every list.",
    ),
)


alignments_option = click.option(
    "--alignments",
    metavar="SOURCE TARGET",
    nargs=2,
    type=FILE,
    help="Sentences and their translations, one per line: the heads of attention that align tokens best are chosen on "
    "them, for markup.  [default: the head that training has guided, else the layer before the last]",
)


def alignment_text(files: tuple[Path, Path] | None) -> "AlignmentText | None":
    """Read the files of `--alignments`."""
    if files is None:
        return None
    from jumok_export.bundles.alignment_heads import AlignmentText  # noqa: PLC0415
    from jumok_serve.evaluation.parallel_text import read_parallel  # noqa: PLC0415

    sources, targets = read_parallel(*files)
    return AlignmentText(sources=sources, targets=targets)


def shortlist_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `shortlist_plan` to a command."""
    for option in reversed(SHORTLIST_OPTIONS):
        command = option(command)
    return command


def shortlist_plan(
    source: Path | None, target: Path | None, table: Path | None, *, best: int, frequent: int
) -> "ShortlistPlan | None":
    """Return the plan of a shortlist that the options describe; None without such options.

    Raises:
        UsageError: options that do not belong together.
    """
    from jumok_export.shortlists.sources import LexicalTable, ParallelText, ShortlistPlan  # noqa: PLC0415
    from jumok_serve.evaluation.parallel_text import read_parallel  # noqa: PLC0415

    if (source is None) != (target is None):
        raise click.UsageError("--shortlist-source and --shortlist-target belong together: give both files")
    if table is not None and source is not None:
        raise click.UsageError("a shortlist is made from --lexical-table or from --shortlist-source: leave one out")
    if table is not None:
        return ShortlistPlan(lexicon=LexicalTable(path=table), best=best, frequent=frequent)
    if source is None or target is None:
        return None
    sources, targets = read_parallel(source, target)
    return ShortlistPlan(lexicon=ParallelText(sources=sources, targets=targets), best=best, frequent=frequent)
