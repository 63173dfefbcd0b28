"""The command that makes bundles of other projects' models: `jumok import`."""

from collections.abc import Sequence
from pathlib import Path

import click

from jumok_export.cli.messages import timed, written
from jumok_export.cli.options import (
    calibration_option,
    out_option,
    overwrite_option,
    precision_option,
    shortlist_options,
    shortlist_plan,
    unverified_option,
)


@click.command(name="import")
@click.argument("source", metavar="SOURCE", type=click.Path(exists=True, path_type=Path))
@out_option
@precision_option
@click.option("--source-lang", metavar="TAG", help="Default source language of requests.")
@click.option("--target-lang", metavar="TAG", help="Default target language of requests.")
@click.option(
    "--max-source-length",
    metavar="N",
    type=click.IntRange(min=1),
    help="Most tokens of a text.  [default: the model's positions; for T5, as many as suit its memory]",
)
@click.option(
    "--max-target-length",
    metavar="N",
    type=click.IntRange(min=1),
    help="Most tokens of a translation.  [default: as of a text, or the model's own maximum]",
)
@calibration_option
@click.option("--name", help="Name of the model.  [default: the folder's]")
@click.option("--model-version", metavar="VERSION", default="1", show_default=True, help="Version of the model.")
@shortlist_options
@unverified_option
@overwrite_option
def import_model(
    *,
    source: Path,
    out: Path,
    precisions: Sequence[str],
    source_lang: str | None,
    target_lang: str | None,
    max_source_length: int | None,
    max_target_length: int | None,
    calibration: Path | None,
    name: str | None,
    model_version: str,
    shortlist_source: Path | None,
    shortlist_target: Path | None,
    lexical_table: Path | None,
    shortlist_best: int,
    shortlist_frequent: int,
    unverified: bool,
    overwrite: bool,
) -> None:
    """Import SOURCE, a model of another project, to a verified bundle; its format is recognised.

    Imports Hugging Face checkpoints: Marian, M2M100, NLLB, BART, mBART, Pegasus, T5, mT5 and umT5. Nothing in them is
    executed. The bundle decodes by the model's own settings. Give the languages if the model names none.
    """
    from jumok_export.importers.recognition import recognise  # noqa: PLC0415
    from jumok_export.quantization.calibration import read_calibration  # noqa: PLC0415

    shortlist = shortlist_plan(
        shortlist_source, shortlist_target, lexical_table, best=shortlist_best, frequent=shortlist_frequent
    )
    say = timed()
    found = recognise(source)
    say(f"{source} is {found.name}")
    bundle = found.import_model(
        source,
        out,
        precisions=precisions,
        source_language=source_lang,
        target_language=target_lang,
        max_source_length=max_source_length,
        max_target_length=max_target_length,
        calibration=None if calibration is None else read_calibration(calibration),
        shortlist=shortlist,
        name=name,
        version=model_version,
        unverified=unverified,
        overwrite=overwrite,
        progress=say,
    )
    say(written(out, bundle))
