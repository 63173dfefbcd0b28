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


def load_graphs(bundle: Bundle, precision: str, devices: Sequence[Device], threads: int) -> tuple[Graphs, Device, str]:
    """The bundle's graphs on the first of the devices that works, with that device and the precision.

    Args:
        bundle: an opened bundle.
        precision: one of its variants, or "auto": what ``PREFERRED_PRECISIONS`` names first.
        devices: where to run, in this order; at least one.
        threads: threads that one graph's operators share.

    Raises:
        BundleError: the bundle has no such variant, or a graph does not load.
        DeviceError: the last of the devices cannot be used.
    """
    *preferred, last = devices
    for device in preferred:
        try:
            return load_graphs(bundle, precision, [device], threads)
        except DeviceError as error:
            logger.warning("not using %s: %s", device.name, error)
    if precision == "auto":
        present = bundle.manifest.precisions
        precision = next((name for name in PREFERRED_PRECISIONS[last.name] if name in present), next(iter(present)))
    return Graphs(bundle, precision, device=last, threads=threads), last, precision
