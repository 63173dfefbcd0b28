"""Profile of a decoder step by operator."""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.step_tools.weight_products import IN_FLOATS, WEIGHT_INPUTS
from jumok_serve.engine.batch import Batch
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.sessions import GraphFolder, GraphSessions

PROFILED_GRAPHS = ("decoder",)
PROFILED_STEPS = 24
"""Steps of a profile."""
CONTAINERS = ("If", "Loop", "Scan")
"""Operators that contain others' time."""
WEIGHT_PRODUCTS = "weight products"
OWN_PRODUCTS = (
    "Product",
    "ProductQuantized",
    "ProductAddNorm",
    "ProductAddNormQuantized",
    "ThreeProducts",
    "FloatProduct",
    "FloatProductAddNorm",
    "ThreeFloatProducts",
)
"""Native products, with the operators fused into them."""


class ProfiledSessions(GraphSessions):
    """Sessions that profile the operators of decoder and selection.

    Args:
        folder: folder of the profiles.
        others: see `GraphSessions`.
    """

    def __init__(self, *others: Any, folder: Path, **named: Any) -> None:
        self._profile_folder = folder
        super().__init__(*others, **named)

    def _open(self, role: str, layers: Sequence[int] = ()) -> Any:
        self._options.enable_profiling = role in PROFILED_GRAPHS
        self._options.profile_file_prefix = str(self._profile_folder / role)
        return super()._open(role, layers)

    def profiles(self) -> dict[str, list[dict[str, Any]]]:
        """End profiling; returns the events by graph."""
        files = {name: Path(self[name].end_profiling()) for name in PROFILED_GRAPHS}
        return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}


def shares(
    model: GraphFolder, precision: str, threads: int, made_batch: Callable[[Graphs, int], Batch]
) -> dict[str, float]:
    """Percent of a step by operator, the largest first.

    Args:
        model: the graphs.
        precision: precision of the graphs.
        threads: threads of a graph's operators.
        made_batch: makes a batch that can decode a number of steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        opened: list[ProfiledSessions] = []

        def open_sessions(*arguments: Any, **named: Any) -> ProfiledSessions:
            opened.append(ProfiledSessions(*arguments, folder=Path(folder), **named))
            return opened[0]

        graphs = Graphs(model, precision, device=CPU, threads=threads, open_sessions=open_sessions)
        batch = made_batch(graphs, PROFILED_STEPS)
        started = time.perf_counter()
        for _ in range(PROFILED_STEPS):
            batch.step()
        whole = 1e6 * (time.perf_counter() - started)
        profiles = opened[0].profiles()
    spent: Counter[str] = Counter()  # microseconds
    in_runs = 0
    for graph, events in profiles.items():
        runs = [event for event in events if event["name"] == "model_run"][-PROFILED_STEPS:]
        in_runs += sum(run["dur"] for run in runs)
        for event in events:
            if event["name"].endswith("_kernel_time") and event["ts"] >= runs[0]["ts"]:
                spent[_kind(graph, event["args"])] += event["dur"]
    for container in CONTAINERS:
        for graph in PROFILED_GRAPHS:
            del spent[f"{graph}: {container}"]
    spent["between operators"] = in_runs - spent.total()
    spent["outside the graphs"] = round(whole) - in_runs
    return {kind: 100 * duration / whole for kind, duration in spent.most_common()}


def _kind(graph: str, node: Mapping[str, Any]) -> str:
    """The category of an operator: a product with weights, or its type."""
    operator = node["op_name"]
    # A product of activations has two operands with heads, and prepacked weights are not among the inputs at all.
    operands = sum(len(shape) > 2 for value in node["input_type_shape"] for shape in value.values())
    if operator in OWN_PRODUCTS:
        return WEIGHT_PRODUCTS
    if operator in WEIGHT_INPUTS and (operator not in IN_FLOATS or operands < 2):
        return WEIGHT_PRODUCTS
    return f"{graph}: {operator}"
