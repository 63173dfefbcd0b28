"""Sessions of a bundle's graphs, opened from files that are checked against the manifest."""

import copy
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jumok_proto.errors import BundleNotLoadedError
from jumok_serve.bundle.bundle import Bundle, check_graph
from jumok_serve.errors import BundleError, DeviceError
from jumok_serve.manifest.manifest import GraphSpec, PrecisionVariant, TensorSpec
from jumok_serve.runtime.device import Device
from jumok_serve.runtime.graph_checks.aligner_layers import layers_part
from jumok_serve.runtime.graph_checks.encoded_source import EncodedSource, find_encoded_source, with_encoded_output
from jumok_serve.runtime.graph_checks.external_data import read_graph
from jumok_serve.runtime.sessions import open_session, session_options
from jumok_serve.runtime.thread_placement import place_threads

CROSS_ATTENTION = "cross_attention"
"""The aligner's output of cross-attention."""

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
        self._opened: dict[str, Any] = {}
        self.encoded = self._find_encoded_source() if native else None
        problems: list[str] = []
        # Decoding must not wait for the sampler to load.
        for role in [role for role in graphs if role not in _ONE_PASS]:
            try:
                self._opened[role] = self._open(role)
            except BundleError as error:
                problems += error.problems
        if problems:
            raise BundleError(bundle.path, problems)

    def path(self, role: str) -> Path:
        """Return the file of a graph."""
        return self._folder / self._graphs[role].file

    def __getitem__(self, role: str) -> Any:
        """Session of a graph of the step loop."""
        return self._opened[role]

    def get(self, role: str) -> Any | None:
        """Return the session of a graph of the step loop; None if there is no such graph."""
        return self._opened.get(role)

    def on_demand(self, role: str, layers: Sequence[int] = ()) -> Any:
        """Return the session of a graph outside the step loop, opened at its first use.

        Args:
            layers: layers of the aligner whose cross-attention is computed; none: the whole graph.

        Raises:
            BundleNotLoadedError: the graph's files have changed.
        """
        key = " ".join(map(str, (role, *layers)))
        with self._lock:
            if key not in self._opened:
                try:
                    self._opened[key] = self._open(role, layers)
                except BundleError as error:  # not for the caller of a translation, who did not name a bundle
                    raise BundleNotLoadedError(
                        f"bundle {self._path.name} is not as it was opened, load it again: {'; '.join(error.problems)}"
                    ) from error
            return self._opened[key]

    def close(self, role: str) -> None:
        """Close the sessions of a graph outside the step loop; its next use opens it again."""
        assert role in _ONE_PASS
        with self._lock:
            for key in [key for key in self._opened if key.partition(" ")[0] == role]:
                del self._opened[key]

    def with_threads(self, threads: int, roles: Sequence[str]) -> "GraphSessions":
        """Return these sessions, but for new ones of some roles, which use another number of threads.

        The new sessions have a second copy of the weights, except for weights that native operators pack.
        """
        other = copy.copy(self)
        other.placement = place_threads(threads)
        other._options = other._session_options(threads)
        other._opened = {**self._opened, **{role: other._open(role) for role in roles}}
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
