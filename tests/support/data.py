"""Committed data of the tests."""

from pathlib import Path

from jumok_serve.evaluation.parallel_text import read_lines

DATA = Path(__file__).parents[1] / "data"
MODELS = DATA / "models"

Sentences = tuple[list[str], list[str]]


def read_sentences() -> Sentences:
    """Read the English sentences of the test data and their German translations."""
    return read_lines(DATA / "train.en"), read_lines(DATA / "train.de")
