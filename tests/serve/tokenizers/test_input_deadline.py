"""The deadline of a request is seen while its texts are tokenized."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from jumok_proto.errors import DeadlineExceededError
from jumok_serve import interrupts
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.tokenizers.input_processor import InputProcessor


@pytest.mark.parametrize(
    ("text", "texts"), [("word " * 9000, 12), ("word", 1500)], ids=["a few long texts", "many short texts"]
)
def test_a_deadline_that_passes_ends_the_work(
    toy_bundle: Path, monkeypatch: pytest.MonkeyPatch, text: str, texts: int
) -> None:
    seconds = count()  # each look at the clock takes one
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    bundle = Bundle.open(toy_bundle)
    processor = InputProcessor(bundle.tokenizer, bundle.manifest)
    direction = processor.direction(None, None)
    numbered = [f"{number} {text}" for number in range(texts)]
    with pytest.raises(DeadlineExceededError, match="while the texts were tokenized"):
        processor.sources(numbered, direction, truncate=True, deadline=3.5)
    assert next(seconds) == 5
    found = processor.sources(numbered, direction, truncate=True, deadline=1000)
    assert found == [processor.sources([one], direction, truncate=True, deadline=None)[0] for one in numbered]


def test_a_deadline_that_passes_ends_the_work_on_targets(toy_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(toy_bundle)
    processor = InputProcessor(bundle.tokenizer, bundle.manifest)
    most = bundle.manifest.limits.max_target_length
    targets = ["a " * (most // 2 - 2)] * (4 * 2**15 // most)
    sources = processor.sources(["a man"], processor.direction(None, None), truncate=False, deadline=None) * len(
        targets
    )
    seconds = count()
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    with pytest.raises(DeadlineExceededError, match="while the texts were tokenized"):
        processor.targets(targets, sources, None, deadline=1.5)
    assert next(seconds) == 3
    assert len(processor.targets(targets, sources, None, deadline=1000)) == len(targets)
