"""The training runs of a plan: merged configurations and results.

A plan is a TOML file: the tables under ``[base]`` apply to every run; ``[models.NAME]`` adds or replaces keys.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jumok_export.training.callbacks import read_metrics
from jumok_export.training.checkpoint import BEST
from jumok_export.training.configuration import Configuration, ConfigurationError, parse_configuration
from jumok_export.training.train import check_run

BUNDLE_PREFIX = "multi30k-en-de"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A model of a plan, and its training folder.

    Attributes:
        name: name of the model.
        folder: folder with checkpoints and metrics.
        text: training configuration, TOML.
        configuration: training configuration.
    """

    name: str
    folder: Path
    text: str
    configuration: Configuration

    @property
    def checkpoint(self) -> Path:
        """The best checkpoint."""
        return self.folder / BEST

    @property
    def epochs(self) -> int:
        """Complete epochs."""
        return max((int(row["epoch"]) for row in read_metrics(self.folder)), default=0)

    @property
    def finished(self) -> bool:
        """True if all epochs are complete."""
        return self.epochs >= self.configuration.training.max_epochs and self.checkpoint.exists()

    @property
    def updates(self) -> int:
        """Weight updates in all epochs."""
        return max((int(row["step"]) for row in read_metrics(self.folder)), default=0)

    @property
    def seconds(self) -> float | None:
        """Seconds of all epochs, or None."""
        seconds = [row.get("seconds") for row in read_metrics(self.folder)]
        return sum(float(each) for each in seconds if each) if seconds and all(seconds) else None


def planned_runs(plan: Path, folder: Path) -> list[Run]:
    """The runs of a plan, each in a folder of its name.

    Args:
        plan: TOML file.
        folder: parent of the runs' folders.

    Raises:
        ConfigurationError: the plan is unreadable or invalid, or a folder has a run with another configuration.
    """
    try:
        tables = tomllib.loads(plan.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{plan} cannot be read: {error}") from error
    runs = []
    for name, changes in tables.get("models", {}).items():
        merged = merge(tables.get("base", {}), changes)
        merged["bundle"] = {"name": f"{BUNDLE_PREFIX}-{name}", **merged.get("bundle", {})}
        text = to_toml(merged)
        configuration = parse_configuration(text, f"{plan}, model {name},")
        check_run(configuration, folder / name)
        runs.append(Run(name=name, folder=folder / name, text=text, configuration=configuration))
    if not runs:
        raise ConfigurationError(f"{plan} has no models: it needs a table [models.NAME] for each")
    return runs


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
