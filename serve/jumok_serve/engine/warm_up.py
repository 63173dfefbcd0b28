"""Trial decoding: made-up sentences through all graphs, to see that a model works before anybody relies on it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jumok_serve.engine.batch import Batch, Sentence
from jumok_serve.manifest.languages import Direction
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.runtime.graphs import Graphs, Integers
from jumok_serve.search import make_search
from jumok_serve.search.options import DecodingOptions, SearchOptions
from jumok_serve.tokenizers.tokenizer import Tokenizer

STEPS = 8
"""Tokens that every hypothesis of a trial has, or as many as the model's limit allows."""


class Shape(NamedTuple):
    """What a trial decodes together; a beam size of 0 is the model's default."""

    sentences: int
    source_tokens: int
    beam_size: int = 0
    sample: bool = False


SMALLEST = Shape(1, 8)
"""What is tried when an engine is started anew."""

WARM_UP = (SMALLEST, Shape(1, 8, beam_size=1), Shape(8, 32), Shape(1, 8, beam_size=1, sample=True))
"""What is tried before a model serves: a text alone, as most come, greedily too, a batch, and a sample."""


Resolve = Callable[[DecodingOptions, int | None, tuple[int, ...]], SearchOptions]
"""Resolves options: these, the first token that a direction forces, and a target prefix."""


class Trial:
    """Decodes sentences of a model in the caller's thread, beside its engine.

    Args:
        manifest: of the model.
        tokenizer: of the model.
        resolve: resolves options for it.
        listed: the tokens that a source may be translated with; None: all.
    """

    def __init__(
        self,
        manifest: Manifest,
        tokenizer: Tokenizer,
        *,
        resolve: Resolve,
        listed: Callable[[Sequence[int], Direction], Integers | None],
    ) -> None:
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._resolve = resolve
        self._listed = listed
        self._direction = manifest.languages.direction(*next(iter(manifest.languages.all_pairs)))

    def run(self, graphs: Graphs, shape: Shape = SMALLEST) -> None:
        """Decodes sentences of a shape.

        Raises:
            ModelFailedError: the model computes no numbers.
            Exception: whatever else fails.
        """
        sentences = [self._sentence(number, shape) for number in range(shape.sentences)]
        batch = Batch(graphs, sentences[0].search.beam_size, self._manifest.special_tokens.pad)
        batch.admit(sentences)
        while batch.sentences:
            batch.step()
            for sentence in batch.done:
                if sentence.failure is not None:
                    raise sentence.failure
            batch.remove(batch.done)
        for sentence in sentences:
            for hypothesis in sentence.search.hypotheses():
                self._tokenizer.decode(hypothesis.token_ids)

    def _sentence(self, number: int, shape: Shape) -> Sentence:
        limits, special, direction = self._manifest.limits, self._manifest.special_tokens, self._direction
        steps = min(STEPS, limits.max_target_length)
        options = DecodingOptions(
            beam_size=shape.beam_size or (1 if self._manifest.generation.sample else None),
            num_hypotheses=1,
            min_length=steps,
            max_length=steps,
            sample=shape.sample,
            seed=number if shape.sample else None,
        )
        start = special.start if direction.start is None else direction.start
        around = (*direction.source_prefix, *direction.source_suffix)
        room = min(shape.source_tokens, limits.max_source_length) - len(around)
        size = self._manifest.tokenizer.source_vocab_size
        tokens = np.random.default_rng(number).integers(size, size=max(1, room)).tolist()
        source = (*direction.source_prefix, *tokens, *direction.source_suffix)
        search = make_search(self._resolve(options, direction.forced_first, ()), start, (), source)
        return Sentence(source_ids=source, search=search, listed=self._listed(source, direction))
