"""ONNX Runtime's sessions for graphs: which graphs suit a device, and that they run there."""

import logging
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnxruntime

from jumok_serve.errors import DeviceError
from jumok_serve.native import library
from jumok_serve.runtime.device import Device, check_active
from jumok_serve.runtime.device_copies import copies, optimized_graph
from jumok_serve.runtime.saturation import products_saturate

logger = logging.getLogger(__name__)

SLOWER = ["SkipLayerNormFusion"]
"""What ONNX Runtime would do to graphs to make them faster, and does not: on the CPU its normalisation that adds takes
nine times as long as an addition and a normalisation."""


@cache
def _share_memory() -> None:
    """Makes one arena on the CPU for what all sessions that ask for it compute; each would keep one of its own."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(memory, None)


def session_options(threads: int | None, device: Device) -> Any:
    """Options of all sessions with so many threads on a device; None: as many as ONNX Runtime finds cores."""
    options = onnxruntime.SessionOptions()
    if device.name == "cpu":
        operators = library()
        options.add_session_config_entry("session.use_env_allocators", "1")
        if operators is not None:
            options.register_custom_ops_library(str(operators))  # which has an allocator, too
        else:
            _share_memory()
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # shapes change at every step, so no pattern recurs
    options.log_severity_level = 3
    # Encoder, decoder and selection have a thread pool each; one that spins after its run steals the next one's cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if products_saturate():
        options.add_session_config_entry("session.x64quantprecision", "1")  # makes signed weights unsigned
    return options


def open_session(path: Path, device: Device, options: Any, *, checked: bool) -> Any:
    """A session for a graph on a device.

    Args:
        path: of the graph.
        device: where to run.
        options: of the session.
        checked: look for operators that run elsewhere than on a device with memory of its own.

    Raises:
        DeviceError: the device does not start, or some of the graph would run elsewhere and that is not allowed.
        Exception: what ONNX Runtime raises for a graph that it cannot load.
    """
    make = partial(
        onnxruntime.InferenceSession,
        path,
        options,
        providers=device.session_providers(),
        disabled_optimizers=SLOWER,
    )
    found: list[str] = []
    if device.resident and checked:
        with optimized_graph(options) as optimized:
            session = make()
        found = copies(*optimized)
    else:
        session = make()
    check_active(device, session.get_providers())
    if found:
        told = f"{path.name} does not stay on the device: {'; '.join(found)}"
        if not device.allow_copies:
            raise DeviceError(f"{told}; allow that with --gpu-allow-copies, or use --device cpu")
        logger.warning("%s", told)
    return session
