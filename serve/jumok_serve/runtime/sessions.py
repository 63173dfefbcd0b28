"""ONNX Runtime's sessions: options, threads, and those of a bundle's graphs."""

import copy
import logging
import os
import threading
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime

from jumok_proto.errors import BundleNotLoadedError
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.errors import BundleError, DeviceError
from jumok_serve.forks import keep_after_fork
from jumok_serve.manifest.manifest import CROSS_ATTENTION, GraphSpec, PrecisionVariant, TensorSpec
from jumok_serve.native import library
from jumok_serve.runtime.device import Device, check_active
from jumok_serve.runtime.graph_checks.contract import (
    EncodedSource,
    check_graph,
    find_copies,
    find_encoded_source,
    layers_part,
    optimized_graph,
    with_encoded_output,
)
from jumok_serve.runtime.graph_checks.onnx_model import read_graph

logger = logging.getLogger(__name__)

SLOWER_ON_CPU = ["SkipLayerNormFusion"]
"""Optimizations of ONNX Runtime that are switched off on the CPU: its fused add and normalization takes nine times as
long there as the two separate operators."""

ERRORS_ONLY = 3
"""Severity of ONNX Runtime's log without its warnings."""

PACKING_OPTIMIZERS = ["ConstantFolding"]
"""Optimizations of ONNX Runtime that copy transposed weights."""

PROBE = (
    "CAo6fQo0CgFhCgFiCgFzCgFzEgF5IhRNYXRNdWxJbnRlZ2VyVG9GbG9hdDoNY29tLm1pY3Jvc29mdBIFcHJvYmVaDwoBYRIKCggIAhIECgAKAFoP"
    "CgFiEgoKCAgDEgQKAAoAWgsKAXMSBgoECAESAGIPCgF5EgoKCAgBEgQKAAoAQgQKABAUQhEKDWNvbS5taWNyb3NvZnQQAQ=="
)
"""An ONNX model in base64: y = MatMulIntegerToFloat(a, b, s, s) of uint8 a, int8 b and float s. A test builds it."""


@cache
def products_saturate() -> bool:
    """True if int8 products saturate at 16 bits, as without VNNI.

    Sessions convert signed weights to unsigned ones then. With VNNI unsigned weights take twice the time, so bundles do
    not store them.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(b64decode(PROBE), options, providers=["CPUExecutionProvider"])
    a, b = np.full((2, 4), 255, np.uint8), np.full((4, 16), 127, np.int8)
    (product,) = session.run(None, {"a": a, "b": b, "s": np.array(1, np.float32)})
    return bool((product != 4 * 255 * 127).any())


@cache
def _share_arena() -> None:
    """Make one CPU arena for all sessions, instead of one for each."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(memory, None)


@dataclass(frozen=True)
class ThreadPlacement:
    """Cores of a session's threads: one for each.

    When idle threads wake together, Linux may put two of them on one core for some milliseconds. Threads of one step
    wait for each other, so both then run at half speed. With a model of 75 MiB on two cores, a translation after a
    second of rest took 55 ms without placement and 33 ms with it; 22 ms back to back (2026-11-25).

    Attributes:
        caller: cores for the thread that calls the session.
        workers: one core for each of the session's own threads; empty: any core.
    """

    caller: frozenset[int]
    workers: tuple[int, ...] = ()

    @property
    def affinities(self) -> str:
        """ONNX Runtime's notation of `workers`, which counts cores from 1."""
        return ";".join(str(core + 1) for core in self.workers)

    def place_caller(self) -> None:
        """Move the calling thread to its cores."""
        with suppress(OSError):  # cores that were taken away since
            os.sched_setaffinity(0, self.caller)


def place_threads(threads: int | None) -> ThreadPlacement:
    """Choose cores for a session with this many threads, the caller included.

    Only a session that uses all cores of the process places its threads. With fewer threads, other processes may use
    the same cores while others are free.
    """
    cores = sorted(os.sched_getaffinity(0))
    if threads != len(cores) or threads == 1:
        return ThreadPlacement(frozenset(cores))
    return ThreadPlacement(frozenset(cores[:1]), tuple(cores[1:]))


def session_options(
    threads: int | None,
    device: Device,
    affinities: str = "",
    *,
    packed: bool = True,
    weights_folder: Path | None = None,
) -> Any:
    """Options of all sessions on a device.

    Args:
        threads: threads of each session; None: as many as ONNX Runtime finds cores.
        affinities: core of each thread but the caller, see `ThreadPlacement`; empty: any core.
        packed: see `open_session`.
        weights_folder: folder of the weights of a graph that is not read from a file.
    """
    options = onnxruntime.SessionOptions()
    if device.name == "cpu":
        operators = library()
        options.add_session_config_entry("session.use_env_allocators", "1")
        if operators is not None:
            options.register_custom_ops_library(str(operators))  # it registers an allocator too
        else:
            _share_arena()
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    if affinities:
        options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
    if not packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if weights_folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights_folder))
    options.enable_mem_pattern = False  # shapes change at every step, so no pattern recurs
    options.log_severity_level = ERRORS_ONLY
    # Each session has a thread pool; a pool that spins after its run takes cores from the next session.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if products_saturate():
        options.add_session_config_entry("session.x64quantprecision", "1")  # makes signed weights unsigned
    return options


def open_session(graph: Path | bytes, device: Device, options: Any, *, checked: bool, packed: bool = True) -> Any:
    """Open a session of a graph on a device.

    Args:
        graph: file of the graph, or its content.
        checked: True to look for operators that run outside a device's own memory.
        packed: False to read weights where their file is mapped, which is slower, instead of packing copies of them.

    Raises:
        DeviceError: a device that does not start, or a graph that leaves the device although copies are not allowed.
        Exception: errors of ONNX Runtime for a graph that it cannot load.
    """
    slower = SLOWER_ON_CPU if device.name == "cpu" else []
    if device.name == "cuda":
        # For each ScatterND of a graph it warns of repeated indices, which ours never are.
        onnxruntime.set_default_logger_severity(ERRORS_ONLY)
    make = partial(
        onnxruntime.InferenceSession,
        graph,
        options,
        providers=device.session_providers(),
        disabled_optimizers=slower if packed else slower + PACKING_OPTIMIZERS,
    )
    found: list[str] = []
    if device.own_memory and checked:
        with optimized_graph(options) as optimized:
            session = make()
        found = find_copies(*optimized)
    else:
        session = make()
    keep_after_fork(session)
    check_active(device, session.get_providers())
    if found:
        problem = (
            f"{graph.name if isinstance(graph, Path) else 'a part'} does not stay on the device: {'; '.join(found)}"
        )
        if not device.allow_copies:
            raise DeviceError(f"{problem}; allow that with --gpu-allow-copies, or use --device cpu")
        logger.warning("%s", problem)
    return session


_ONE_PASS = {"scorer", "aligner"}
"""Graphs outside the step loop, opened at their first use."""


class GraphFolder(Protocol):
    """A folder with graphs: an opened `Bundle`, or one being made."""

    @property
    def path(self) -> Path:
        """The folder that file names are relative to."""

    def variant(self, precision: str) -> PrecisionVariant:
        """The graphs of one precision."""


class GraphSessions:
    """Sessions of graphs by role; safe in any thread.

    Args:
        bundle: an opened bundle, or another folder with graphs.
        graphs: the graphs by role.
        weights: file of the graphs' weights.
        device: device of the sessions.
        threads: threads that the operators of one graph share; None: as many as ONNX Runtime finds cores.
        packed: False to read weights where their file is mapped: slower, in less memory.
        native: True if native operators decode.

    Attributes:
        opened: sessions of the step loop by role, and others by their keys of `on_demand`.
        encoded: the tensor of a native encoder that the aligner can read; None if there is none.
        placement: cores of the threads.

    Raises:
        BundleError: graphs that do not load or differ from the manifest, all of them.
        DeviceError: a device that cannot be used.
    """

    def __init__(
        self,
        bundle: GraphFolder,
        graphs: Mapping[str, GraphSpec],
        weights: str,
        *,
        device: Device,
        threads: int | None,
        packed: bool,
        native: bool,
    ) -> None:
        self._path = bundle.path
        self._pinned = bundle.pinned if isinstance(bundle, Bundle) else None
        self._folder = bundle.path if self._pinned is None else self._pinned.path
        self._weights = weights
        self._graphs = graphs
        self._device = device
        self._packed = packed
        self.placement = place_threads(threads if device.name == "cpu" else None)
        self._options = self._session_options(threads)
        self._lock = threading.Lock()
        self.opened: dict[str, Any] = {}
        self.encoded = self._find_encoded_source() if native else None
        problems: list[str] = []
        # Decoding must not wait for the sampler to load.
        for role in [role for role in graphs if role not in _ONE_PASS]:
            try:
                self.opened[role] = self._open(role)
            except BundleError as error:
                problems += error.problems
        if problems:
            raise BundleError(bundle.path, problems)

    def path(self, role: str) -> Path:
        """Return the file of a graph."""
        return self._folder / self._graphs[role].file

    def on_demand(self, role: str, layers: Sequence[int] = ()) -> Any:
        """Return the session of a graph outside the step loop, opened at its first use.

        Args:
            layers: layers of the aligner whose cross-attention is computed; none: the whole graph.

        Raises:
            BundleNotLoadedError: the graph's files have changed.
        """
        key = " ".join(map(str, (role, *layers)))
        with self._lock:
            if key not in self.opened:
                try:
                    self.opened[key] = self._open(role, layers)
                except BundleError as error:  # not for the caller of a translation, who did not name a bundle
                    raise BundleNotLoadedError(
                        f"bundle {self._path.name} is not as it was opened, load it again: {'; '.join(error.problems)}"
                    ) from error
            return self.opened[key]

    def close(self, role: str) -> None:
        """Close the sessions of a graph outside the step loop; its next use opens it again."""
        assert role in _ONE_PASS
        with self._lock:
            for key in [key for key in self.opened if key.partition(" ")[0] == role]:
                del self.opened[key]

    def with_threads(self, threads: int, roles: Sequence[str]) -> "GraphSessions":
        """Return these sessions, but for new ones of some roles, which use another number of threads.

        The new sessions have a second copy of the weights, except for weights that native operators pack.
        """
        other = copy.copy(self)
        other.placement = place_threads(threads)
        other._options = other._session_options(threads)
        other.opened = {**self.opened, **{role: other._open(role) for role in roles}}
        return other

    def _session_options(self, threads: int | None) -> Any:
        return session_options(
            threads,
            self._device,
            self.placement.affinities,
            packed=self._packed,
            weights_folder=(self._folder / self._weights).parent,
        )

    def _open(self, role: str, layers: Sequence[int] = ()) -> Any:
        """Open a session of a graph, or of the part of the aligner for some layers."""
        spec = self._graphs[role]
        content = self._checked_content(spec.file)
        encoded = self.encoded
        part = layers_part(content, output_spec(spec, CROSS_ATTENTION), layers, encoded) if layers else None
        try:
            checked = role not in _ONE_PASS
            graph = self.path(role) if part is None else part
            if role == "encoder" and encoded is not None:
                graph = with_encoded_output(content, encoded)
            session = open_session(graph, self._device, self._options, checked=checked, packed=self._packed)
        except DeviceError:
            raise
        except Exception as error:
            if self._device.name != "cpu" and "CUDA" in str(error):
                raise DeviceError(f"device {self._device.name!r} cannot be used: {error}") from error
            raise BundleError(self._path, [f"{spec.file}: ONNX Runtime cannot load it: {error}"]) from error
        outputs = [one for one in session.get_outputs() if encoded is None or one.name != encoded.encoder]
        problems = check_graph(spec, session.get_inputs(), outputs) if part is None else []
        if self._pinned is not None:
            problems += self._pinned.changed([spec.file, self._weights])
        if problems:
            raise BundleError(self._path, problems)
        return session

    def _find_encoded_source(self) -> EncodedSource | None:
        """Find what an aligner can read of a native encoder; None if there is nothing, or a graph is damaged."""
        if "aligner" not in self._graphs:
            return None
        try:
            contents = [self._checked_content(self._graphs[role].file) for role in ("encoder", "aligner")]
        except BundleError:  # raised again when the graph is opened
            return None
        return find_encoded_source(*contents)

    def _checked_content(self, file: str) -> bytes:
        """Read a graph, and check that it reads no other file than the weights."""
        try:
            return read_graph(self._folder, file, self._weights)
        except ValueError as error:
            raise BundleError(self._path, [f"{file}: {problem}" for problem in error.args]) from error


def output_spec(graph: GraphSpec, name: str) -> TensorSpec:
    """Return the specification of a graph's output."""
    return next(spec for spec in graph.outputs if spec.name == name)
