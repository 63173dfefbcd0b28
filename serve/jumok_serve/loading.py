"""Graphs in the precision, and on the device, that suit a bundle best."""

import logging
from collections.abc import Sequence

from jumok_serve.bundle import Bundle
from jumok_serve.device import Device
from jumok_serve.errors import DeviceError
from jumok_serve.session import Graphs

logger = logging.getLogger(__name__)

PREFERRED_PRECISIONS = {"cpu": ("int8", "fp32"), "cuda": ("fp16", "fp32")}
"""What precision "auto" takes on each device: the first that the bundle has."""


def load_graphs(
    bundle: Bundle, precision: str, devices: Sequence[Device], *, replicas: int, threads: int, listed: bool = False
) -> tuple[Graphs, Device, str]:
    """The bundle's graphs on the first of the devices that works, with that device and the precision.

    Replicas call the same graphs at the same time. ONNX Runtime runs a call on the thread that makes it and on the
    workers of a pool, which all calls share; so a pool with `threads` - 1 workers a replica has as many threads run as
    if every replica had graphs of its own, without a second copy of the weights. A replica that is alone at work has
    the workers of the others too.

    Args:
        bundle: an opened bundle.
        precision: one of its variants, or "auto": what ``PREFERRED_PRECISIONS`` names first.
        devices: where to run, in this order; at least one.
        replicas: threads that will call the graphs at the same time.
        threads: threads for the operators of each.
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
    pool = replicas * (threads - 1) + 1  # ONNX Runtime counts one caller in
    return Graphs(bundle, precision, device=last, threads=pool, listed=listed), last, precision
