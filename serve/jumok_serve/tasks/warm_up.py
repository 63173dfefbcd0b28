"""Warm-up: decode made-up sentences with all sessions before real ones."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from jumok_serve.engine.batch import Batch
from jumok_serve.engine.sentence import Sentence
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.search.options import DecodingOptions
from jumok_serve.search.plan import SearchPlan
from jumok_serve.tasks.model import TaskModel


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

STEPS = 8
"""Tokens of every hypothesis, or fewer if the model's limit is lower."""


@dataclass(frozen=True, eq=False)
class WarmUp:
    """Decodes made-up sentences in the caller's thread, beside the engine."""

    model: TaskModel

    def run_all(self, graphs: Iterable[Graphs]) -> None:
        """Decode a batch of each shape with each of these graphs, if they have what it needs. Raises as `run`."""
        shapes = [shape for shape in WARM_UP_SHAPES if self.model.can_sample or not shape.sample]
        for one, shape in product(dict.fromkeys(graphs), shapes):
            self.run(one, shape)

    def run(self, graphs: Graphs, shape: Shape = SMALLEST) -> None:
        """Decode a batch of some shape, and make texts of the tokens.

        Raises:
            ModelFailedError: the model computes NaN.
            Exception: any other failure.
        """
        sentences = [self._sentence(number, shape) for number in range(shape.sentences)]
        batch = Batch(graphs, sentences[0].rows, self.model.manifest.special_tokens.pad)
        batch.admit(sentences)
        while batch.sentences:
            batch.step()
            for sentence in batch.done:
                if sentence.failure is not None:
                    raise sentence.failure
            batch.remove(batch.done)
        for sentence in sentences:
            for hypothesis in sentence.search.hypotheses():
                self.model.tokenizer.decode(hypothesis.token_ids)

    def _sentence(self, number: int, shape: Shape) -> Sentence:
        """Make a sentence of random source tokens in the model's first direction."""
        manifest = self.model.manifest
        limits = manifest.limits
        direction = manifest.languages.direction(*next(iter(manifest.languages.all_pairs)))
        steps = min(STEPS, limits.max_target_length)
        options = DecodingOptions(
            beam_size=shape.beam_size or (1 if manifest.generation.sample else None),
            num_hypotheses=1,
            min_length=steps,
            max_length=steps,
            sample=shape.sample,
            seed=number if shape.sample else None,
        )
        around = (*direction.source_prefix, *direction.source_suffix)
        size = max(1, min(shape.source_tokens, limits.max_source_length) - len(around))
        tokens = np.random.default_rng(number).integers(manifest.tokenizer.source_vocab_size, size=size).tolist()
        source = (*direction.source_prefix, *tokens, *direction.source_suffix)
        search = self.model.resolve(options, direction.forced_first, ())
        return Sentence(
            source_ids=source,
            plan=SearchPlan(search, self.model.inputs.start(direction), (), source),
            allowed_tokens=self.model.shortlist_columns(source, direction),
        )
