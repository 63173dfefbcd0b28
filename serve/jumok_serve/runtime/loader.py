"""Load a bundle's graphs in the best precision on the best device."""

import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.errors import DeviceError
from jumok_serve.runtime.device import (
    CPU,
    CPU_AS_DEVICE,
    Device,
    automatic_precision,
    describe_agreement,
    warn_of_failed_checks,
)
from jumok_serve.runtime.graphs import Graphs

logger = logging.getLogger(__name__)

MAX_REPLICAS = 4
"""Most replicas by default on a CPU, if several are faster."""

ROWS_PER_THREAD = 128
"""Rows in a step for each thread on a CPU: with more rows, a row costs as much in int8 and 5 % less in fp32, while
memory grows."""

SMALL_WEIGHTS = 16 * 2**20
"""Bytes of weights below which one thread decodes few rows as fast as several threads do.

With beam size 4 a sentence took 7.2 ms either way with 6 MiB, and 130 ms instead of 93 with 60 MiB.
"""

SEVERAL_IN_FP32 = 64 * 2**20
"""Bytes of fp32 weights below which several replicas are the default in fp32 too.

With beam size 4 and 22 MiB 1,000 sentences took 2.3 s with two replicas, 3.1 s with one replica that had the threads of
both. With 230 MiB they took the same time.
"""


class Loaded(NamedTuple):
    """Loaded graphs and the settings of the engine that suit them.

    Attributes:
        graphs: graphs for a replica that works alone, with all threads.
        shared: graphs for replicas that work at the same time; `graphs` if there is one replica.
        max_batch_rows: most rows in the steps of all replicas together; None: bounded by memory only.
        max_alone_rows: most rows in a step of one replica with all threads; None: the engine's default.
    """

    graphs: Graphs
    shared: Graphs
    device: Device
    precision: str
    replicas: int
    max_batch_rows: int | None
    max_alone_rows: int | None


def load_graphs(
    bundle: Bundle,
    precision: str,
    devices: Sequence[Device],
    *,
    replicas: int | None,
    threads: int | None,
    listed: bool = False,
) -> Loaded:
    """Load a bundle's graphs on the first device that works.

    Small batches run on one replica with all threads; large ones are split, as the threads of several replicas wait for
    each other less. So several replicas have two sets of sessions: one with all threads, and one that they share. A
    model that is too small to need other replicas' threads has the shared set only, and one thread for few rows.

    ONNX Runtime runs a call on the calling thread and on a session's pool of workers, which all calls share. So a pool
    with `threads` - 1 workers for each replica runs as many threads as a session for each replica would.

    Args:
        precision: one of the bundle's variants, or "auto": see `automatic_precision`.
        devices: devices to try in this order; at least one.
        replicas: threads that will call the graphs; None: up to `MAX_REPLICAS` on a CPU in int8, or in fp32 below
            `SEVERAL_IN_FP32`, if there are cores for their threads, else one.
        threads: operator threads of each replica; None: the cores that this process may use, divided by replicas.
        listed: True for texts with shortlists; see `Graphs`.

    Raises:
        BundleError: a bundle without such a variant, or with a graph that does not load.
        DeviceError: a last device that cannot be used.
    """
    *preferred, last = devices
    for device in preferred:
        try:
            return load_graphs(bundle, precision, [device], replicas=replicas, threads=threads, listed=listed)
        except DeviceError as error:
            logger.warning("not using %s: %s", device.name, error)
    if precision == "auto":
        precision = automatic_precision(bundle.manifest, last.name)
    if last == CPU and bundle.variant(precision).for_devices:
        last = CPU_AS_DEVICE
    cores = len(os.sched_getaffinity(0))
    weights = bundle.manifest.files[bundle.variant(precision).weights].size
    if replicas is None:
        several = last.name == "cpu" and (precision == "int8" or weights < SEVERAL_IN_FP32)
        replicas = min(MAX_REPLICAS, max(1, cores // (threads or 1))) if several else 1
    threads = threads or max(1, cores // replicas)
    pool = replicas * (threads - 1) + 1  # ONNX Runtime counts one caller in
    is_small = last.name == "cpu" and weights < SMALL_WEIGHTS
    small = replicas > 1 and is_small
    graphs = Graphs(bundle, precision, device=last, threads=pool if small else replicas * threads, listed=listed)
    if is_small and threads > 1:
        graphs.few = graphs.with_threads(1, ("decoder",))
    name = bundle.manifest.name
    agreement = describe_agreement(bundle.manifest, precision)
    logger.info(
        "%s runs in %s%s on %s, replicas: %d, threads of each: %d",
        name,
        precision,
        f" ({agreement})" if agreement else "",
        last.providers[0],
        replicas,
        threads,
    )
    warn_of_failed_checks(bundle.manifest, precision)
    if replicas * threads > cores:
        logger.warning(
            "%s has more threads than there are cores, so that they wait for each other; replicas: %d, "
            "threads of each: %d, cores that this process may use: %d",
            name,
            replicas,
            threads,
            cores,
        )
    return Loaded(
        graphs=graphs,
        shared=graphs if small or replicas == 1 or last.own_memory else graphs.with_threads(pool),
        device=last,
        precision=precision,
        replicas=replicas,
        max_batch_rows=ROWS_PER_THREAD * threads * replicas if last.name == "cpu" else None,
        max_alone_rows=1 if small else None,
    )
