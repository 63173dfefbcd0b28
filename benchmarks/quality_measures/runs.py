"""The training runs of a plan: merged configurations and results.

A plan is a TOML file: the tables under ``[base]`` apply to every run; ``[models.NAME]`` adds or replaces keys, and may
name a number of `seeds`. Each of ``[[comparisons]]`` names two models: `of`, `with` and a `title`.
"""

import json
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from jumok_export.training.callbacks import METRICS, read_metrics
from jumok_export.training.checkpoint import BEST
from jumok_export.training.configuration import Configuration
from jumok_export.training.configuration_file import ConfigurationError, parse_configuration
from jumok_export.training.train import CONFIGURATION, check_run

BUNDLE_PREFIX = "multi30k-en-de"
DEVICE = "device.json"
"""Name and PyTorch version of the device that trained a run."""
SEED_STEP = 1000
"""Difference of the seeds of a model's runs; epochs count on from a seed."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A model of a plan with one seed, and its training folder.

    Attributes:
        name: name of the run: the model's, with the number of the seed after the first.
        model: name of the model.
        folder: folder with checkpoints and metrics.
        text: training configuration, TOML.
        configuration: training configuration.
    """

    name: str
    model: str
    folder: Path
    text: str
    configuration: Configuration

    @property
    def checkpoint(self) -> Path:
        """The best checkpoint."""
        return self.folder / BEST

    @property
    def translations(self) -> Path:
        """The translations of the test set."""
        return self.folder / "translations.json"

    @property
    def epochs(self) -> int:
        """Complete epochs."""
        return max((int(row["epoch"]) for row in read_metrics(self.folder)), default=0)

    @property
    def finished(self) -> bool:
        """True if all epochs are complete, and the checkpoint or its translations are there."""
        complete = self.epochs >= self.configuration.training.max_epochs
        return complete and (self.checkpoint.exists() or self.translations.exists())

    @property
    def updates(self) -> int:
        """Weight updates in all epochs."""
        return max((int(row["step"]) for row in read_metrics(self.folder)), default=0)

    @property
    def validation_scores(self) -> list[float]:
        """Score of each validation, in the order of epochs."""
        found = (row.get(self.configuration.validation_score) for row in read_metrics(self.folder))
        return [float(each) for each in found if each]

    @property
    def seconds(self) -> float | None:
        """Seconds of all epochs, or None."""
        seconds = [row.get("seconds") for row in read_metrics(self.folder)]
        return sum(float(each) for each in seconds if each) if seconds and all(seconds) else None

    @property
    def first(self) -> bool:
        """True for the model's first seed."""
        return self.name == self.model

    @property
    def device(self) -> str:
        """The device that trained it; "" if unknown."""
        path = self.folder / DEVICE
        return str(json.loads(path.read_text(encoding="utf-8"))["device"]) if path.exists() else ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two models of a plan whose difference is reported.

    Attributes:
        title: what `model` has and `other` has not.
    """

    title: str
    model: str
    other: str


def planned_runs(plan: Path, folder: Path, training: Mapping[str, Any] | None = None) -> list[Run]:
    """The runs of a plan, each in a folder of its name.

    Args:
        plan: TOML file.
        folder: parent of the runs' folders.
        training: keys of `[training]` for all runs, instead of the plan's.

    Raises:
        ConfigurationError: the plan is unreadable or invalid, or a folder has a run with another configuration.
    """
    tables = _read(plan)
    runs = []
    for model, changes in tables.get("models", {}).items():
        merged = merge(merge(tables.get("base", {}), changes), {"training": training or {}})
        seeds = merged.pop("seeds", 1)
        if not isinstance(seeds, int) or seeds < 1:
            raise ConfigurationError(f"{plan}, model {model}: seeds must be a positive number, got {seeds!r}")
        for number in range(seeds):
            name = f"{model}-seed{number + 1}" if number else model
            seed = merged["training"].get("seed", 1) + SEED_STEP * number
            values = merge(merged, {"training": {"seed": seed}})
            values["bundle"] = {"name": f"{BUNDLE_PREFIX}-{name}", **merged.get("bundle", {})}
            text = to_toml(values)
            configuration = parse_configuration(text, f"{plan}, model {name},")
            check_run(configuration, folder / name)
            runs.append(Run(name=name, model=model, folder=folder / name, text=text, configuration=configuration))
    if not runs:
        raise ConfigurationError(f"{plan} has no models: it needs a table [models.NAME] for each")
    return runs


def planned_comparisons(plan: Path) -> list[Comparison]:
    """The comparisons of a plan.

    Raises:
        ConfigurationError: the plan is unreadable, or a comparison names no two models of it.
    """
    tables = _read(plan)
    found = []
    for each in tables.get("comparisons", []):
        if set(each) != {"of", "with", "title"} or not {each["of"], each["with"]} <= tables.get("models", {}).keys():
            raise ConfigurationError(f"{plan}: comparisons have title, of and with, two models of the plan, got {each}")
        found.append(Comparison(title=each["title"], model=each["of"], other=each["with"]))
    return found


def _read(plan: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(plan.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{plan} cannot be read: {error}") from error


def collect(run: Run, folder: Path) -> Run:
    """Copy what a report needs of a finished run, its weights in half precision.

    Args:
        folder: parent of the copy's folder.

    Returns:
        The copy, which cannot be resumed.
    """
    to = folder / run.name
    to.mkdir(parents=True, exist_ok=True)
    for name in (CONFIGURATION, METRICS, DEVICE):
        if (run.folder / name).exists():
            shutil.copy(run.folder / name, to / name)
    content = torch.load(run.checkpoint, map_location="cpu", weights_only=True)
    kept = {name: content[name] for name in ("epoch", "jumok")}
    halves: dict[int, torch.Tensor] = {}  # by storage, so that a tied weight is written once
    kept["state_dict"] = {
        name: halves.setdefault(value.data_ptr(), value.half()) if value.is_floating_point() else value
        for name, value in content["state_dict"].items()
    }
    kept["callbacks"] = {
        name: {"best_model_score": state["best_model_score"]}
        for name, state in content["callbacks"].items()
        if "best_model_score" in state
    }
    torch.save(kept, to / BEST)
    return replace(run, folder=to)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `changes` into `base`, tables recursively."""
    merged = dict(base)
    for key, value in changes.items():
        before = merged.get(key)
        tables = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(before or {}, value) if tables else value
    return merged


def to_toml(table: Mapping[str, Any], path: str = "") -> str:
    """A table as TOML; values are strings, numbers, booleans, lists of these, and tables."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in plain.items())
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    return lines + "".join(f"\n[{path}{key}]\n{to_toml(value, f'{path}{key}.')}" for key, value in tables.items())
