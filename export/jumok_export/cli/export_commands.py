"""Commands that make bundles of one's own models: `jumok train`, `export`, `ensemble` and `add-native`."""

from collections.abc import Sequence
from pathlib import Path

import click

from jumok_export.cli.command import ExportCommand
from jumok_export.cli.messages import say, written
from jumok_export.cli.options import (
    FILE,
    FOLDER,
    alignment_text,
    alignments_option,
    calibration_option,
    out_option,
    overwrite_option,
    precision_option,
    shortlist_options,
    shortlist_plan,
    unverified_option,
)
from jumok_export.cli.process import let_threads_sleep, reuse_freed_memory


@click.command(cls=ExportCommand)
@click.argument("configuration", metavar="CONFIG.toml", type=FILE)
@click.option(
    "--out",
    metavar="DIR",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the run: checkpoints, metrics and curves.",
)
@click.option(
    "--data",
    metavar="DIR",
    type=FOLDER,
    help="Folder of the training files that the configuration names.  [default: the configuration's folder]",
)
def train(*, configuration: Path, out: Path, data: Path | None) -> None:
    """Train a translation model by CONFIG.toml, or resume the run in the folder.

    Ctrl-C stops training; the same command resumes it from the last complete epoch.
    """
    from jumok_export.training.train import train as run_training  # noqa: PLC0415

    reuse_freed_memory()
    run_training(configuration, out, data=data, progress=say)


@click.command(cls=ExportCommand)
@click.argument("checkpoint", metavar="CHECKPOINT", type=click.Path(exists=True, path_type=Path))
@out_option
@precision_option
@calibration_option
@click.option(
    "--scores",
    metavar="FILE.json",
    type=FILE,
    help="Quality scores for the manifest: a list of objects with metric, value, signature, dataset, precision and "
    "beam_size.",
)
@click.option(
    "--data",
    metavar="DIR",
    type=FOLDER,
    help="Folder of the training files, to note their SHA-256 in the manifest.  [default: as noted by training]",
)
@shortlist_options
@alignments_option
@unverified_option
@overwrite_option
def export(
    *,
    checkpoint: Path,
    out: Path,
    precisions: Sequence[str],
    calibration: Path | None,
    scores: Path | None,
    data: Path | None,
    shortlist_source: Path | None,
    shortlist_target: Path | None,
    lexical_table: Path | None,
    shortlist_best: int,
    shortlist_frequent: int,
    alignments: tuple[Path, Path] | None,
    unverified: bool,
    overwrite: bool,
) -> None:
    """Export CHECKPOINT, a run's folder or a checkpoint file, to a verified bundle.

    A folder's best checkpoint is exported. Nothing is written if ONNX Runtime and PyTorch compute different results.
    """
    from jumok_serve.bundle.bundle import check_target  # noqa: PLC0415

    check_target(out, overwrite=overwrite)  # before the imports, which take seconds
    from jumok_export.quantization.calibration import read_calibration  # noqa: PLC0415
    from jumok_export.training.checkpoint import load_checkpoint  # noqa: PLC0415
    from jumok_export.training.datamodule import corpus_files  # noqa: PLC0415
    from jumok_export.training.export import export_checkpoint, read_scores  # noqa: PLC0415

    measured = () if scores is None else read_scores(scores)
    shortlist = shortlist_plan(
        shortlist_source, shortlist_target, lexical_table, best=shortlist_best, frequent=shortlist_frequent
    )
    loaded = load_checkpoint(checkpoint)
    bundle = export_checkpoint(
        loaded,
        out,
        precisions=precisions,
        calibration=None if calibration is None else read_calibration(calibration),
        scores=measured,
        files=None if data is None else corpus_files(loaded.configuration, data),
        shortlist=shortlist,
        alignment_text=alignment_text(alignments),
        unverified=unverified,
        overwrite=overwrite,
        progress=say,
    )
    say(written(out, bundle))


@click.command(cls=ExportCommand, name="add-native")
@click.argument("bundle", metavar="BUNDLE", type=FOLDER)
@out_option
@overwrite_option
def add_native(*, bundle: Path, out: Path, overwrite: bool) -> None:
    """Add graphs for native kernels to BUNDLE, which was exported without them; its weights stay.

    With --overwrite, --out may be the bundle itself. Nothing is written if the new graphs and those of the bundle
    compute different results.
    """
    let_threads_sleep()
    from jumok_export.bundles.add_native import add_native_graphs  # noqa: PLC0415

    say(written(out, add_native_graphs(bundle, out, overwrite=overwrite, progress=say)))


@click.command(cls=ExportCommand)
@click.argument("bundles", metavar="BUNDLE BUNDLE...", nargs=-1, required=True, type=FOLDER)
@out_option
@click.option("--name", help="Name of the model.  [default: the folder's]")
@click.option("--model-version", metavar="VERSION", default="1", show_default=True, help="Version of the model.")
@overwrite_option
def ensemble(*, bundles: Sequence[Path], out: Path, name: str | None, model_version: str, overwrite: bool) -> None:
    """Make one bundle of two or more BUNDLEs, which averages the log-probabilities of their models.

    The bundles have one tokenizer, the same special tokens and the same languages: train them with one configuration,
    and change the seed. Nothing is written if the new graphs compute anything else than the mean of the bundles.
    """
    from jumok_serve.bundle.bundle import check_target  # noqa: PLC0415

    check_target(out, overwrite=overwrite)  # before the imports, which take seconds
    let_threads_sleep()
    from jumok_export.bundles.ensemble import make_ensemble  # noqa: PLC0415

    made = make_ensemble(bundles, out, name=name, version=model_version, overwrite=overwrite, progress=say)
    say(written(out, made))
