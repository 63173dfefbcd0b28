"""ONNX Runtime sessions of graphs on a device, and their options."""

import logging
from base64 import b64decode
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from jumok_serve.errors import DeviceError
from jumok_serve.forks import keep_after_fork
from jumok_serve.native import library
from jumok_serve.runtime.device import Device, check_active
from jumok_serve.runtime.graph_checks.device_copies import find_copies, optimized_graph

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
