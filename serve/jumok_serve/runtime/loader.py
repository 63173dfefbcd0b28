"""Graphs in the precision, and on the device, that suit a bundle best."""

import logging
import os
from collections.abc import Sequence
from typing import NamedTuple

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.errors import DeviceError
from jumok_serve.runtime.device import CPU, RESIDENT_CPU, Device
from jumok_serve.runtime.graphs import Graphs

logger = logging.getLogger(__name__)

PREFERRED_PRECISIONS = {"cpu": ("int8", "fp32"), "cuda": ("fp16", "fp32")}
"""What precision "auto" takes on each device: the first that the bundle has."""


MAX_REPLICAS = 4
"""Replicas that there are by default on a CPU with at least as many cores, where several are faster."""


ROWS_PER_THREAD = 128
"""Rows that are decoded at once for each thread on a CPU: among more a row costs no less in int8 and 5 % less in fp32,
while memory grows."""


SMALL_WEIGHTS = 16 * 2**20
"""Bytes of weights below which one thread decodes few rows as soon as several: dividing the work costs what it saves.

With 6 MiB it took 7.2 ms a sentence either way with beam size 4, with 60 MiB 130 ms instead of 93."""


SEVERAL_IN_FP32 = 64 * 2**20
"""Bytes of weights in fp32 below which there are several replicas by default there, too.

With 22 MiB two replicas took 2.3 s for 1,000 sentences with beam size 4, one with the threads of both 3.1 s; with 230
MiB they took as long."""


class Loaded(NamedTuple):
    """Graphs, and how they came to be loaded.

    Attributes:
        graphs: for a replica that works alone, with all threads.
        shared: for replicas that work at the same time; the same where there is one replica.
        device: where they run.
        precision: theirs.
        replicas: how many there are to be.
        max_batch_rows: rows that all of them decode best at the same time; None: as many as there is memory for.
        max_alone_rows: rows that one of them decodes best with the threads of all; None: as the engine has it.
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
    """The bundle's graphs on the first of the devices that works.

    Few rows are decoded soonest by one replica with all threads, many by as many replicas as possible, whose threads
    wait for each other less. So there are two sessions where there are several replicas, unless the model is so small
    that a replica never needs the others' threads. Replicas that work at the same
    time call the same one. ONNX Runtime runs a call on the thread that makes it and on the workers of a pool, which all
    calls share; so a pool with `threads` - 1 workers a replica has as many threads run as if every replica had a
    session of its own.

    Args:
        bundle: an opened bundle.
        precision: one of its variants, or "auto": what ``PREFERRED_PRECISIONS`` names first.
        devices: where to run, in this order; at least one.
        replicas: threads that will call the graphs; None: one, but up to `MAX_REPLICAS`, as far as there are cores for
            their threads, on a CPU for int8 and for less than `SEVERAL_IN_FP32`. With more weights in fp32 several
            were not faster with any number of rows.
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
    weights = bundle.manifest.files[bundle.variant(precision).weights].size
    if replicas is None:
        several = last.name == "cpu" and (precision == "int8" or weights < SEVERAL_IN_FP32)
        replicas = min(MAX_REPLICAS, max(1, cores // (threads or 1))) if several else 1
    threads = threads or max(1, cores // replicas)
    pool = replicas * (threads - 1) + 1  # ONNX Runtime counts one caller in
    apart = replicas > 1 and last.name == "cpu" and weights < SMALL_WEIGHTS
    graphs = Graphs(bundle, precision, device=last, threads=pool if apart else replicas * threads, listed=listed)
    name = bundle.manifest.name
    logger.info(
        "%s runs in %s on %s, replicas: %d, threads of each: %d", name, precision, last.providers[0], replicas, threads
    )
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
        shared=graphs if apart or replicas == 1 or last.resident else graphs.with_threads(pool),
        device=last,
        precision=precision,
        replicas=replicas,
        max_batch_rows=ROWS_PER_THREAD * threads * replicas if last.name == "cpu" else None,
        max_alone_rows=1 if apart else None,
    )
