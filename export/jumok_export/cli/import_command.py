"""The command that makes bundles of other projects' models: `jumok import`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jumok_export.cli.command import ExportCommand
from jumok_export.cli.messages import timed, written
from jumok_export.cli.options import (
    alignment_text,
    alignments_option,
    calibration_option,
    optional_out_option,
    overwrite_option,
    precision_option,
    shortlist_options,
    shortlist_plan,
    unverified_option,
)
from jumok_export.installed import need

if TYPE_CHECKING:
    from jumok_export.importers.options import ImportOptions
    from jumok_serve.cache import HubName


def _source(_context: click.Context, _parameter: click.Parameter, value: str) -> "Path | HubName":
    """Read a path or a name; a path that exists is no name."""
    from jumok_serve.cache import EXAMPLE, parse_hub_name  # noqa: PLC0415

    name = None if Path(value).exists() else parse_hub_name(value)
    if name is None and not Path(value).exists():
        raise click.BadParameter(
            f"{value!r} does not exist; a name of the Hugging Face Hub is ORG/NAME, such as {EXAMPLE}"
        )
    return Path(value) if name is None else name


@click.command(cls=ExportCommand, name="import")
@click.argument("source", metavar="SOURCE", callback=_source)
@optional_out_option
@precision_option
@click.option("--source-language", metavar="TAG", help="Default source language of requests.")
@click.option("--target-language", metavar="TAG", help="Default target language of requests.")
@click.option(
    "--max-source-length",
    metavar="N",
    type=click.IntRange(min=1),
    help="Most tokens of a text.  [default: the model's positions; T5, which has none: what memory allows]",
)
@click.option(
    "--max-target-length",
    metavar="N",
    type=click.IntRange(min=1),
    help="Most tokens of a translation.  [default: the model's own maximum; without one, the limit of a text]",
)
@calibration_option
@click.option("--name", help="Name of the model.  [default: the folder's]")
@click.option("--model-version", metavar="VERSION", default="1", show_default=True, help="Version of the model.")
@shortlist_options
@alignments_option
@unverified_option
@overwrite_option
def import_model(
    *,
    source: "Path | HubName",
    out: Path | None,
    precisions: Sequence[str],
    source_language: str | None,
    target_language: str | None,
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
    alignments: tuple[Path, Path] | None,
    unverified: bool,
    overwrite: bool,
) -> None:
    """Import SOURCE, a model of another project, to a verified bundle.

    SOURCE is a file or folder, or a name on the Hugging Face Hub, such as Helsinki-NLP/opus-mt-en-de or
    hf:ORG/NAME@REVISION. A named model is imported once into the cache, which `jumok serve NAME` reads; with --out it
    is written there.

    Imports Hugging Face checkpoints (Marian, M2M100, NLLB, BART, mBART, Pegasus, T5, mT5 and umT5), Marian's own models
    (OPUS-MT originals, students of Firefox and Bergamot), CTranslate2 folders and Argos Translate packages; the format
    is recognised. Nothing in them is executed. The bundle decodes by the model's own settings. Give the languages if
    the model names none.
    """
    from jumok_serve.bundle.bundle import check_target  # noqa: PLC0415

    if out is not None:
        check_target(out, overwrite=overwrite)  # before the imports, which take seconds
    elif isinstance(source, Path):
        raise click.UsageError("Missing option '--out': give the folder of the new bundle")
    from jumok_export.importers.options import ImportOptions  # noqa: PLC0415
    from jumok_export.quantization.calibration import read_calibration  # noqa: PLC0415

    say = timed()
    options = ImportOptions(
        precisions=precisions,
        source_language=source_language,
        target_language=target_language,
        max_source_length=max_source_length,
        max_target_length=max_target_length,
        calibration=None if calibration is None else read_calibration(calibration),
        shortlist=shortlist_plan(
            shortlist_source, shortlist_target, lexical_table, best=shortlist_best, frequent=shortlist_frequent
        ),
        alignment_text=alignment_text(alignments),
        name=name,
        version=model_version,
        unverified=unverified,
        overwrite=overwrite,
        progress=say,
    )
    if isinstance(source, Path):
        assert out is not None
        _import_path(source, out, options)
    else:
        need("filelock", "huggingface_hub")
        _import_named(source, out, options)


def _import_path(source: Path, out: Path, options: "ImportOptions") -> None:
    from jumok_export.importers.recognition import recognise  # noqa: PLC0415
    from jumok_export.parallel import allow_forks  # noqa: PLC0415

    allow_forks()  # other threads wait, for signals or for work of libraries: they hold no lock that tracing takes
    found = recognise(source)
    options["progress"](f"{source} is {found.name}")
    bundle = found.import_model(source, out, **options)
    options["progress"](written(out, bundle))


def _import_named(name: "HubName", out: Path | None, options: "ImportOptions") -> None:
    from jumok_export.importers.hub import download, import_lock  # noqa: PLC0415

    say = options["progress"]
    named = options | {"name": options["name"] or name.name.partition("/")[2]}
    if out is not None:
        _import_path(download(name, say), out, named)
        return
    with import_lock(name, say):
        if name.is_cached() and not options["overwrite"]:
            say(f"{name} is in the cache, in {name.bundle}; --overwrite imports it again")
            return
        name.bundle.parent.mkdir(parents=True, exist_ok=True)
        _import_path(download(name, say), name.bundle, named)
