"""Train models that differ in attention, and measure their quality and their attention.

Trains every run of a plan, or resumes its training. Each is exported to a bundle, which translates the test set of
Multi30k. A page with tables and plots covers all finished runs.

Several processes may train different runs of one plan side by side, each with `--only NAME --train-only`.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.quality_measures.figures import measure, read_tests
from benchmarks.quality_measures.page import page
from benchmarks.quality_measures.plots import save_plots
from benchmarks.quality_measures.runs import DEVICE, Run, collect, planned_comparisons, planned_runs
from benchmarks.quality_measures.translations import translate
from jumok_export.training.train import train
from jumok_proto.errors import JumokError

ROOT = Path(__file__).resolve().parents[1]
PLAN = ROOT / "benchmarks" / "quality.toml"
RUNS = ROOT / "runs" / "quality"
PAGE = ROOT / "docs" / "quality.md"
MULTI30K = os.environ.get("JUMOK_MULTI30K")


def progress(line: str) -> None:
    """Print a progress message."""
    print(line, file=sys.stderr, flush=True)


def train_missing(runs: Sequence[Run], data: Path) -> None:
    """Train the unfinished runs, one after another."""
    for run in runs:
        if run.finished:
            continue
        progress(f"training {run.name}")
        # Beside the run's folder: in it, `train` keeps its own copy.
        configuration = run.folder.with_suffix(".toml")
        configuration.parent.mkdir(parents=True, exist_ok=True)
        configuration.write_text(run.text, encoding="utf-8")
        train(configuration, run.folder, data=data, progress=progress)
        on_gpu = run.configuration.training.accelerator != "cpu" and torch.cuda.is_available()
        device = torch.cuda.get_device_name() if on_gpu else f"{os.cpu_count()} CPU cores"
        record = {"device": f"{device}, {run.configuration.training.precision}", "torch": torch.__version__}
        (run.folder / DEVICE).write_text(json.dumps(record), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, measure, and write the page; returns the exit status."""
    parser = argparse.ArgumentParser(description="Train models that differ in attention, and compare them.")
    parser.add_argument(
        "--data",
        type=Path,
        default=MULTI30K,
        help="folder of Multi30k: train, val and test_2016_flickr, each as .en.gz and .de.gz; default: the variable "
        "JUMOK_MULTI30K",
    )
    parser.add_argument("--plan", type=Path, default=PLAN, help="the models to train; default: %(default)s")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where runs are kept; default: %(default)s")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the plan, only these runs, such as lstm-seed2")
    parser.add_argument("--accelerator", choices=("auto", "cpu", "gpu"), help="where to train; default: the plan's")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed", "16-mixed"), help="default: the plan's")
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--list", action="store_true", help="print the names of the runs, and whether they are finished")
    does.add_argument("--report", action="store_true", help="train nothing: the page of what is finished")
    does.add_argument("--train-only", action="store_true", help="train, without a page")
    does.add_argument(
        "--collect",
        type=Path,
        metavar="FOLDER",
        help="train nothing: copy what a report needs of finished runs, weights in half precision, and translate with "
        "the copies, without a page",
    )
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="the page; its plots are in a folder beside it; default: %(default)s"
    )
    options = parser.parse_args(arguments)
    if options.data is None and not options.list:
        parser.error("name the folder of Multi30k: --data, or the variable JUMOK_MULTI30K")
    training = {key: value for key in ("accelerator", "precision") if (value := getattr(options, key))}
    try:
        runs = planned_runs(options.plan, options.runs, training)
        comparisons = planned_comparisons(options.plan)
        if unknown := set(options.only or ()) - {run.name for run in runs}:
            names = ", ".join(run.name for run in runs)
            parser.error(f"--only {' '.join(sorted(unknown))}: {options.plan} has {names}")
        chosen = [run for run in runs if options.only is None or run.name in options.only]
        if options.list:
            print("\n".join(f"{run.name}{' finished' * run.finished}" for run in chosen))
            return 0
        if not (options.report or options.collect):
            train_missing(chosen, options.data)
        finished = [run for run in chosen if run.finished]
        for run in chosen:
            if run not in finished:
                progress(
                    f"{run.name} is missing: {run.folder} has {run.epochs} of "
                    f"{run.configuration.training.max_epochs} epochs"
                )
        if options.train_only:
            return 0
        if not any(run.first for run in finished) and not options.collect:
            progress("Error: the first seed of no model is finished, so there is nothing to report")
            return 1
        torch.set_num_threads(1)  # the products are so small that threads would only wait for each other
        if options.collect:
            for run in [collect(run, options.collect) for run in finished if run.checkpoint.exists()]:
                translate(run, read_tests(run.configuration, options.data), progress=progress)
            return 0
        figures = measure(finished, comparisons, options.data, progress=progress)
    except JumokError as error:
        progress(f"Error: {error}")
        return 1
    images = options.page.with_suffix("")
    save_plots(figures, images)
    options.page.write_text(page(figures, images.name), encoding="utf-8")
    written = options.runs / "quality.json"
    written.write_text(json.dumps(asdict(figures), indent=2), encoding="utf-8")
    print(f"wrote {options.page} and {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
