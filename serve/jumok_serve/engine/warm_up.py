"""Warm-up: decode made-up sentences with all sessions before real ones."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from jumok_serve.engine.batch import Batch
from jumok_serve.engine.sentence import Sentence
from jumok_serve.runtime.graphs import Graphs


class Shape(NamedTuple):
    """Sentences of a warm-up batch; beam size 0: the model's default."""

    sentences: int
    source_tokens: int
    beam_size: int = 0
    sample: bool = False


SMALLEST = Shape(1, 8)
"""Probe of a failed engine."""

WARM_UP_SHAPES = (SMALLEST, Shape(1, 8, beam_size=1), Shape(8, 32), Shape(1, 8, beam_size=1, sample=True))
"""Warm-up before a model serves: one text, as most requests are; one with greedy search; a batch; and a sample."""


@dataclass(frozen=True, eq=False)
class WarmUp:
    """Decodes made-up sentences in the caller's thread, beside the engine.

    Attributes:
        make_sentence: makes the sentence with a number, from 0, of a batch of some shape.
        read: called with the token ids of each hypothesis; raises if they make no text.
    """

    make_sentence: Callable[[int, Shape], Sentence]
    pad: int
    read: Callable[[Sequence[int]], object]

    def run_all(self, graphs: Iterable[Graphs], *, sample: bool) -> None:
        """Decode a batch of each shape with each of these graphs; ``sample``: draw tokens too. Raises as `run`."""
        shapes = [shape for shape in WARM_UP_SHAPES if sample or not shape.sample]
        for one, shape in product(dict.fromkeys(graphs), shapes):
            self.run(one, shape)

    def run(self, graphs: Graphs, shape: Shape = SMALLEST) -> None:
        """Decode a batch of some shape.

        Raises:
            ModelFailedError: the model computes NaN.
            Exception: any other failure.
        """
        sentences = [self.make_sentence(number, shape) for number in range(shape.sentences)]
        batch = Batch(graphs, sentences[0].rows, self.pad)
        batch.admit(sentences)
        while batch.sentences:
            batch.step()
            for sentence in batch.done:
                if sentence.failure is not None:
                    raise sentence.failure
            batch.remove(batch.done)
        for sentence in sentences:
            for hypothesis in sentence.search.hypotheses():
                self.read(hypothesis.token_ids)
