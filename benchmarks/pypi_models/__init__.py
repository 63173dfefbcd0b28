"""Trained models that packages of PyPI ship: their weights in this project's models, their own output beside."""

from benchmarks.pypi_models import annalog, arabic_names, cn2en, g2p_en, g2p_fa, lemmaturk, netra, tg2fa
from benchmarks.pypi_models.package import Package

PACKAGES: dict[str, Package] = {
    module.PACKAGE.name: module.PACKAGE
    for module in (g2p_en, g2p_fa, cn2en, arabic_names, netra, tg2fa, annalog, lemmaturk)
}
"""Packages by name."""
