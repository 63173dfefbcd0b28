"""Train models that differ in attention, and measure their quality and their attention.

Trains every model of a plan, or resumes its training. Each is exported to a bundle, which translates the test set of
Multi30k. A page with tables and plots covers all finished models.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.quality_measures.figures import measure
from benchmarks.quality_measures.page import page
from benchmarks.quality_measures.plots import save_plots
from benchmarks.quality_measures.runs import Run, planned_runs
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
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the plan, only these models")
    parser.add_argument("--report", action="store_true", help="train nothing: the page of what is finished")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="the page; its plots are in a folder beside it; default: %(default)s"
    )
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("name the folder of Multi30k: --data, or the variable JUMOK_MULTI30K")
    try:
        runs = planned_runs(options.plan, options.runs)
        if unknown := set(options.only or ()) - {run.name for run in runs}:
            names = ", ".join(run.name for run in runs)
            parser.error(f"--only {' '.join(sorted(unknown))}: {options.plan} has {names}")
        chosen = [run for run in runs if options.only is None or run.name in options.only]
        if not options.report:
            train_missing(chosen, options.data)
        finished = [run for run in chosen if run.finished]
        for run in chosen:
            if run not in finished:
                progress(
                    f"{run.name} is missing: {run.folder} has {run.epochs} of "
                    f"{run.configuration.training.max_epochs} epochs"
                )
        if not finished:
            progress("Error: no model is finished, so there is nothing to report")
            return 1
        torch.set_num_threads(1)  # the products are so small that threads would only wait for each other
        figures = measure(finished, options.data, progress=progress)
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
