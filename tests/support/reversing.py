"""A language whose translation reverses the words: a corpus with a known alignment, and a run that learned it."""

import random
from pathlib import Path

from jumok_export.training.train import train

WORDS = [f"{first}{last}" for first in "bdfgklmnpt" for last in ("a", "ei")]
LETTERS = str.maketrans("bdfgklmnptaei", "vwxzqrshcjouy")

CONFIGURATION = """
[data]
source_language = "en"
target_language = "de"
train_source = ["train.en"]
train_target = ["train.de"]
validation_source = "train.en"
validation_target = "train.de"

[tokenizer]
vocabulary_size = 64
sampling_alpha = 0.5

[model]
width = 32
heads = 2
feed_forward = 64
encoder_layers = 1
decoder_layers = 2
dropout = 0.0

[training]
max_epochs = {epochs}
batch_tokens = 800
learning_rate = 1e-2
warmup_steps = 5
schedule = "cosine"
accelerator = "cpu"
devices = 1
validate_every_epochs = {epochs}

[training.guided_alignment]
weight = 1.0
head = 1

[bundle]
name = "reversing"

[bundle.limits]
max_source_length = 40
max_target_length = 40

[bundle.generation]
max_length = 20
"""
GUIDED = (0, 1)
"""Layer and head that the configuration guides."""


def translated(text: str) -> str:
    """Translate a text: its words in reverse, in other letters."""
    return " ".join(text.split()[::-1]).translate(LETTERS)


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of four different words each."""
    chosen = random.Random(seed)
    return [" ".join(chosen.sample(WORDS, 4)) for _ in range(count)]


def train_reversing(folder: Path, epochs: int = 40) -> None:
    """Train on the language in `folder`/run."""
    texts = sentences(400, seed=3)
    (folder / "train.en").write_text("".join(f"{text}\n" for text in texts))
    (folder / "train.de").write_text("".join(f"{translated(text)}\n" for text in texts))
    (folder / "config.toml").write_text(CONFIGURATION.format(epochs=epochs))
    train(folder / "config.toml", folder / "run", data=folder)
