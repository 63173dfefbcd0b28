"""Fixtures of tests of benchmarks: the tiny models."""

from tests.export.conftest import export_tiny, tiny_graphs, tiny_model, vocabulary

__all__ = ["export_tiny", "tiny_graphs", "tiny_model", "vocabulary"]
