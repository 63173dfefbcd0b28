"""The commands of the export room: `jumok train`, `jumok export`, `jumok import-hf` and `jumok add-native`."""

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
    """Raises ``ModuleNotFoundError`` for a package that is not installed, without importing those that are."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


# What the commands need is imported when they run: it takes seconds. That it is there is known right away.
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
    from jumok_export.training.train import train as run_training  # noqa: PLC0415

    _keep_freed_memory()
    run_training(configuration, out, data=data, progress=_say)


def _precisions(_context: click.Context, _parameter: click.Parameter, value: str) -> Sequence[str]:
    from jumok_export.bundles.export import PRECISIONS  # noqa: PLC0415

    chosen = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    unknown = [name for name in chosen if name not in PRECISIONS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(PRECISIONS)}")
    return chosen


out_option = click.option(
    "--out", metavar="BUNDLE", required=True, type=click.Path(path_type=Path), help="The bundle's folder, to be made."
)
precision_option = click.option(
    "--precision",
    "precisions",
    default="fp32,int8",
    show_default=True,
    metavar="NAMES",
    callback=_precisions,
    help="Which variants the bundle gets, of fp32, fp16 (for CUDA) and int8 (for CPUs).",
)
calibration_option = click.option(
    "--calibration",
    metavar="FILE",
    type=FILE,
    help="Source sentences, one a line, to find the scales of int8 activations on, and to verify fp16 on; a few "
    "hundred are enough.",
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace a bundle that is there already.")
SHORTLIST_OPTIONS = (
    click.option(
        "--shortlist-source",
        metavar="FILE",
        type=FILE,
        help="Sentences, one a line, to make a shortlist of: which tokens a text may be translated with.",
    ),
    click.option(
        "--shortlist-target", metavar="FILE", type=FILE, help="Their translations; training text, for example."
    ),
    click.option(
        "--lexical-table",
        metavar="FILE",
        type=FILE,
        help="Lines of `target source probability` over the model's tokens, to make a shortlist of instead.",
    ),
    click.option(
        "--shortlist-best",
        metavar="N",
        type=click.IntRange(min=1),
        default=100,
        show_default=True,
        help="Target tokens that a shortlist has for each source token.",
    ),
    click.option(
        "--shortlist-frequent",
        metavar="N",
        type=click.IntRange(min=0),
        default=100,
        show_default=True,
        help="Frequent target tokens that every text may be translated with.",
    ),
)


def shortlist_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command what `_shortlist` makes a plan of."""
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
        raise click.UsageError("a shortlist is made of --lexical-table or of --shortlist-source: leave one out")
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
    help="Translation quality for the manifest: a list of objects with metric, value, signature, dataset, precision "
    "and beam_size.",
)
@click.option(
    "--data",
    metavar="DIR",
    type=FOLDER,
    help="The training files' folder, to note their SHA-256 again; it is noted when a model is trained.",
)
@shortlist_options
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
    overwrite: bool,
) -> None:
    """Export CHECKPOINT, a run's folder or a file of it, to a verified bundle.

    Of a folder the best checkpoint is taken. Nothing is written if ONNX Runtime does not compute what PyTorch does.
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
        overwrite=overwrite,
        progress=_say,
    )
    _say(_written(out, bundle))


@click.command(name="import-hf")
@click.argument("checkpoint", metavar="CHECKPOINT_DIR", type=FOLDER)
@out_option
@precision_option
@click.option("--source-lang", metavar="TAG", help="Language of texts for which a request names none.")
@click.option("--target-lang", metavar="TAG", help="Language that they are translated into.")
@calibration_option
@click.option("--name", help="The model's name.  [default: the folder's]")
@click.option("--model-version", metavar="VERSION", default="1", show_default=True, help="The model's version.")
@shortlist_options
@overwrite_option
def import_hf(
    *,
    checkpoint: Path,
    out: Path,
    precisions: Sequence[str],
    source_lang: str | None,
    target_lang: str | None,
    calibration: Path | None,
    name: str | None,
    model_version: str,
    shortlist_source: Path | None,
    shortlist_target: Path | None,
    lexical_table: Path | None,
    shortlist_best: int,
    shortlist_frequent: int,
    overwrite: bool,
) -> None:
    """Import CHECKPOINT_DIR, a Hugging Face checkpoint, to a verified bundle that decodes as its settings say.

    Marian, M2M100, NLLB, BART, mBART and T5, from a local folder; nothing in it is executed. The languages must be
    given where the checkpoint does not name its own.
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
        calibration=None if calibration is None else read_calibration(calibration),
        shortlist=shortlist,
        name=name,
        version=model_version,
        overwrite=overwrite,
        progress=say,
    )
    say(_written(out, bundle))


@click.command(name="add-native")
@click.argument("bundle", metavar="BUNDLE", type=FOLDER)
@out_option
@overwrite_option
def add_native(*, bundle: Path, out: Path, overwrite: bool) -> None:
    """Add graphs for native kernels to BUNDLE, which was made where there were none; its weights stay as they are.

    With --overwrite, --out may be the bundle itself. Nothing is written if they do not compute what its graphs do.
    """
    from jumok_export.bundles.add_native import add_native_graphs  # noqa: PLC0415

    _say(_written(out, add_native_graphs(bundle, out, overwrite=overwrite, progress=_say)))


def _written(out: Path, bundle: "Bundle") -> str:
    """What was written where, and how large each precision is."""
    manifest = bundle.manifest
    sizes = (
        f"{precision} {sum(manifest.files[file].size for file in variant.files) / 1e6:.1f} MB"
        for precision, variant in manifest.precisions.items()
    )
    return f"wrote {out}: {manifest.name} {manifest.version}, {', '.join(sizes)}"


def _say(message: str) -> None:
    click.echo(message, err=True)


def _timed() -> Callable[[str], None]:
    """Says messages with the seconds that have passed since now."""
    started = time.monotonic()
    return lambda message: _say(f"{time.monotonic() - started:6.1f} s  {message}")


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
