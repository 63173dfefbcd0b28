"""Commands that make bundles: `jumok train`, `export`, `import-hf` and `add-native`."""

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from jumok_export.shortlists.sources import ShortlistPlan
    from jumok_serve.bundle.bundle import Bundle


def _need(*packages: str) -> None:
    """Raise ``ModuleNotFoundError`` for a package that is not installed, without importing packages."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


# Commands import these packages when they run, because that takes seconds; missing ones are reported at once.
_need("torch", "lightning", "onnx", "onnxscript", "matplotlib", "sacrebleu")

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
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

    _reuse_freed_memory()
    run_training(configuration, out, data=data, progress=_say)


def _precisions(_context: click.Context, _parameter: click.Parameter, value: str) -> Sequence[str]:
    from jumok_export.bundles.export import PRECISIONS  # noqa: PLC0415

    chosen = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    unknown = [name for name in chosen if name not in PRECISIONS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(PRECISIONS)}")
    return chosen


out_option = click.option(
    "--out", metavar="BUNDLE", required=True, type=click.Path(path_type=Path), help="Folder of the new bundle."
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


def shortlist_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `_shortlist` to a command."""
    for option in reversed(SHORTLIST_OPTIONS):
        command = option(command)
    return command


def _shortlist(
    source: Path | None, target: Path | None, table: Path | None, *, best: int, frequent: int
) -> "ShortlistPlan | None":
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


@click.command()
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
    unverified: bool,
    overwrite: bool,
) -> None:
    """Export CHECKPOINT, a run's folder or a checkpoint file, to a verified bundle.

    A folder's best checkpoint is exported. Nothing is written if ONNX Runtime and PyTorch compute different results.
    """
    from jumok_export.quantization.calibration import read_calibration  # noqa: PLC0415
    from jumok_export.training.checkpoint import load_checkpoint  # noqa: PLC0415
    from jumok_export.training.datamodule import corpus_files  # noqa: PLC0415
    from jumok_export.training.export import export_checkpoint, read_scores  # noqa: PLC0415

    measured = () if scores is None else read_scores(scores)
    shortlist = _shortlist(
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
        unverified=unverified,
        overwrite=overwrite,
        progress=_say,
    )
    _say(_written(out, bundle))


@click.command(name="import-hf")
@click.argument("checkpoint", metavar="CHECKPOINT_DIR", type=FOLDER)
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
    help="Most tokens of a translation.  [default: as of a text, or the checkpoint's own maximum]",
)
@calibration_option
@click.option("--name", help="Name of the model.  [default: the folder's]")
@click.option("--model-version", metavar="VERSION", default="1", show_default=True, help="Version of the model.")
@shortlist_options
@unverified_option
@overwrite_option
def import_hf(
    *,
    checkpoint: Path,
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
    """Import CHECKPOINT_DIR, a Hugging Face checkpoint, to a verified bundle.

    Imports Marian, M2M100, NLLB, BART, mBART, Pegasus, T5, mT5 and umT5 from a local folder and executes nothing in it.
    The bundle decodes by the checkpoint's generation settings. Give the languages if the checkpoint names none.
    """
    _need("safetensors", "transformers")
    from jumok_export.importers.huggingface.importing import import_checkpoint  # noqa: PLC0415
    from jumok_export.quantization.calibration import read_calibration  # noqa: PLC0415

    shortlist = _shortlist(
        shortlist_source, shortlist_target, lexical_table, best=shortlist_best, frequent=shortlist_frequent
    )
    say = _timed()
    bundle = import_checkpoint(
        checkpoint,
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
    say(_written(out, bundle))


@click.command(name="add-native")
@click.argument("bundle", metavar="BUNDLE", type=FOLDER)
@out_option
@overwrite_option
def add_native(*, bundle: Path, out: Path, overwrite: bool) -> None:
    """Add graphs for native kernels to BUNDLE, which was exported without them; its weights stay.

    With --overwrite, --out may be the bundle itself. Nothing is written if the new graphs and those of the bundle
    compute different results.
    """
    from jumok_export.bundles.add_native import add_native_graphs  # noqa: PLC0415

    _say(_written(out, add_native_graphs(bundle, out, overwrite=overwrite, progress=_say)))


def _written(out: Path, bundle: "Bundle") -> str:
    from jumok_serve.runtime.precision import describe_agreement  # noqa: PLC0415

    manifest = bundle.manifest
    sizes = (
        f"{precision} {sum(manifest.files[file].size for file in variant.files) / 1e6:.1f} MB"
        for precision, variant in manifest.precisions.items()
    )
    agreement = "".join(f"; {name} {describe_agreement(manifest, name)}" for name in manifest.agreement)
    failed = [precision for precision, report in manifest.verification.items() if not report.passed]
    warning = f"; its verification FAILED in {', '.join(failed)}: see `jumok inspect --all {out}`" if failed else ""
    return f"wrote {out}: {manifest.name} {manifest.version}, {', '.join(sizes)}{agreement}{warning}"


def _say(message: str) -> None:
    click.echo(message, err=True)


def _timed() -> Callable[[str], None]:
    """Return a function that prints messages with the seconds since this call."""
    started = time.monotonic()
    return lambda message: _say(f"{time.monotonic() - started:6.1f} s  {message}")


def _reuse_freed_memory() -> None:
    """Have the C library keep freed memory for reuse.

    A training step on a CPU allocates and frees hundreds of megabytes; else page faults take half of its time.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc; other C libraries have no such call
        m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
        mallopt(m_top_pad, 64 * 2**20)
