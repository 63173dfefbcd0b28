"""Graphs in the precision, and on the device, that suit a bundle best."""

import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

from jumok_serve.bundle import Bundle
from jumok_serve.device import CPU, RESIDENT_CPU, Device
from jumok_serve.errors import DeviceError
from jumok_serve.session import Graphs

logger = logging.getLogger(__name__)

PREFERRED_PRECISIONS = {"cpu": ("int8", "fp32"), "cuda": ("fp16", "fp32")}
"""What precision "auto" takes on each device: the first that the bundle has."""


MAX_REPLICAS = 4
"""Replicas that int8 has by default on a CPU with at least as many cores."""


class Loaded(NamedTuple):
    """Graphs, and how they came to be loaded.

    Attributes:
        graphs: for a replica that works alone, with all threads.
        shared: for replicas that work at the same time; the same where there is one replica.
        device: where they run.
        precision: theirs.
        replicas: how many there are to be.
    """

    graphs: Graphs
    shared: Graphs
    device: Device
    precision: str
    replicas: int


def load_graphs(
    bundle: Bundle,
    precision: str,
    devices: Sequence[Device],
    *,
    replicas: int | None,
    threads: int | None,
    listed: bool = False,
) -> Loaded:
    """The bundle's graphs on the first of the devices that works.

    Few rows are decoded soonest by one replica with all threads, many by as many replicas as possible, whose threads
    wait for each other less. So there are two sessions where there are several replicas. Replicas that work at the same
    time call the same one. ONNX Runtime runs a call on the thread that makes it and on the workers of a pool, which all
    calls share; so a pool with `threads` - 1 workers a replica has as many threads run as if every replica had a
    session of its own.

    Args:
        bundle: an opened bundle.
        precision: one of its variants, or "auto": what ``PREFERRED_PRECISIONS`` names first.
        devices: where to run, in this order; at least one.
        replicas: threads that will call the graphs; None: one, but up to `MAX_REPLICAS`, as far as there are cores for
            their threads, for int8 on a CPU. In fp32 several were not faster with any number of rows.
        threads: threads for the operators of each; None: as many as make, in all replicas together, one for every core
            that this process may use.
        listed: for texts with shortlists; see `Graphs`.

    Raises:
        BundleError: the bundle has no such variant, or a graph does not load.
        DeviceError: the last of the devices cannot be used.
    """
    *preferred, last = devices
    for device in preferred:
        try:
            return load_graphs(bundle, precision, [device], replicas=replicas, threads=threads, listed=listed)
        except DeviceError as error:
            logger.warning("not using %s: %s", device.name, error)
    if precision == "auto":
        present = bundle.manifest.precisions
        precision = next((name for name in PREFERRED_PRECISIONS[last.name] if name in present), next(iter(present)))
    if last == CPU and bundle.variant(precision).for_devices:
        last = RESIDENT_CPU
    cores = len(os.sched_getaffinity(0))
    if replicas is None:
        several = last.name == "cpu" and precision == "int8"
        replicas = min(MAX_REPLICAS, max(1, cores // (threads or 1))) if several else 1
    threads = threads or max(1, cores // replicas)
    graphs = Graphs(bundle, precision, device=last, threads=replicas * threads, listed=listed)
    pool = replicas * (threads - 1) + 1  # ONNX Runtime counts one caller in
    shared = graphs if replicas == 1 or last.resident else graphs.with_threads(pool)
    if last.name == "cuda":
        logger.info("%s runs in %s on %s", bundle.manifest.name, precision, last.providers[0])
    return Loaded(graphs, shared, last, precision, replicas)
