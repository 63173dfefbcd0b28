"""The commands of the export room: `jumok train` and `jumok export`."""

import ctypes
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

# What the commands need is imported when they run: it takes seconds. That it is there is known right away.
for _package in ("torch", "lightning", "onnx", "onnxscript", "matplotlib", "sacrebleu"):
    if find_spec(_package) is None:
        raise ModuleNotFoundError(f"No module named {_package!r}", name=_package)

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("configuration", metavar="CONFIG.toml", type=FILE)
@click.option(
    "--out",
    metavar="DIR",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The run's folder: checkpoints, metrics and curves.",
)
@click.option(
    "--data",
    metavar="DIR",
    type=FOLDER,
    help="What the configuration's file names are relative to.  [default: the configuration's folder]",
)
def train(*, configuration: Path, out: Path, data: Path | None) -> None:
    """Train a translation model as CONFIG.toml says; go on where it stopped if the folder holds a run.

    Ctrl-C stops it; the same command goes on from the last complete epoch.
    """
    from jumok_export.training import train as run_training  # noqa: PLC0415

    _keep_freed_memory()
    run_training(configuration, out, data=data, progress=_say)


def _precisions(_context: click.Context, _parameter: click.Parameter, value: str) -> Sequence[str]:
    from jumok_export.bundle import PRECISIONS  # noqa: PLC0415

    chosen = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    unknown = [name for name in chosen if name not in PRECISIONS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(PRECISIONS)}")
    return chosen


@click.command()
@click.argument("checkpoint", metavar="CHECKPOINT", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out", metavar="BUNDLE", required=True, type=click.Path(path_type=Path), help="The bundle's folder, to be made."
)
@click.option(
    "--precision",
    "precisions",
    default="fp32,int8",
    show_default=True,
    metavar="NAMES",
    callback=_precisions,
    help="Which variants the bundle gets: fp32, int8 or both.",
)
@click.option(
    "--scores",
    metavar="FILE.json",
    type=FILE,
    help="Translation quality for the manifest: a list of objects with metric, value, signature, dataset, precision "
    "and beam_size.",
)
@click.option(
    "--data",
    metavar="DIR",
    type=FOLDER,
    help="The training files' folder, to note their SHA-256 again; it is noted when a model is trained.",
)
@click.option("--overwrite", is_flag=True, help="Replace a bundle that is there already.")
def export(
    *,
    checkpoint: Path,
    out: Path,
    precisions: Sequence[str],
    scores: Path | None,
    data: Path | None,
    overwrite: bool,
) -> None:
    """Export CHECKPOINT, a run's folder or a file of it, to a verified bundle.

    Of a folder the best checkpoint is taken. Nothing is written if ONNX Runtime does not compute what PyTorch does.
    """
    from jumok_export.checkpoint import load_checkpoint  # noqa: PLC0415
    from jumok_export.datamodule import corpus_files  # noqa: PLC0415
    from jumok_export.trained import export_checkpoint, read_scores  # noqa: PLC0415

    measured = () if scores is None else read_scores(scores)
    loaded = load_checkpoint(checkpoint)
    bundle = export_checkpoint(
        loaded,
        out,
        precisions=precisions,
        scores=measured,
        files=None if data is None else corpus_files(loaded.configuration, data),
        overwrite=overwrite,
        progress=_say,
    )
    size = sum(entry.size for entry in bundle.manifest.files.values())
    _say(f"wrote {out}: {bundle.manifest.name} {bundle.manifest.version}, {', '.join(precisions)}, {size / 1e6:.1f} MB")


def _say(message: str) -> None:
    click.echo(message, err=True)


def _keep_freed_memory() -> None:
    """Asks the C library to keep freed memory for reuse instead of giving it back to the system.

    A training step on a CPU frees and takes hundreds of megabytes; page faults were half of its time.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc; other C libraries have no such call
        m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
        mallopt(m_top_pad, 64 * 2**20)
