"""Parts of a model that tasks use."""

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from jumok_proto.errors import UnavailableError
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.bundle.shortlist import Shortlist
from jumok_serve.engine.sentence import Sentence
from jumok_serve.engine.share import RETRY_AFTER_S
from jumok_serve.engine.warm_up import Shape
from jumok_serve.manifest.languages import Direction
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.runtime.graphs import Graphs, Integers
from jumok_serve.search import SearchPlan
from jumok_serve.search.options import DecodingOptions, SearchOptions
from jumok_serve.tasks.parameters import TextParameters
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.terms import TermTokenizer
from jumok_serve.tokenizers.input_processor import MAX_CACHED, InputProcessor


class TaskModel:
    """The parts of a loaded model that the tasks share.

    Args:
        precision: name of the loaded variant.
        graphs: the model's graphs; the scorer and the aligner are run here.
        shortlist: target tokens that translations are restricted to; None: all tokens.

    Attributes:
        weights: file of the weights; results are checked after it.
        resolve: function of decoding options, forced first token and target prefix that gives search options; cached.
    """

    def __init__(self, bundle: Bundle, precision: str, graphs: Graphs, shortlist: Shortlist | None) -> None:
        variant = bundle.variant(precision)
        vocab_size = bundle.tokenizer.vocab_size
        self.manifest = bundle.manifest
        self.tokenizer = bundle.tokenizer
        self.inputs = InputProcessor(bundle.tokenizer, bundle.manifest)
        self.teacher_forcing = TeacherForcing(
            graphs,
            variant,
            pad=bundle.manifest.special_tokens.pad,
            vocabulary=vocab_size,
            aligning=bundle.manifest.alignment,
        )
        # Without a reference to self: a cycle would keep the graphs of an unloaded model in memory.
        self.resolve = lru_cache(MAX_CACHED)(partial(_resolve, bundle.manifest, vocab_size))
        self.term_tokenizer = TermTokenizer(bundle.tokenizer)
        self.shortlist_columns = partial(_shortlist_columns, bundle.manifest, shortlist)
        assert bundle.pinned is not None
        self.weights = bundle.pinned.mapped(variant.weights)
        self.can_sample = "sampler" in variant.graphs
        self._closed = False

    def close(self) -> None:
        """Refuse further texts."""
        self._closed = True

    def check_open(self) -> None:
        """Raise UnavailableError after `close`."""
        if self._closed:
            raise UnavailableError("the model is being stopped", retry_after_s=RETRY_AFTER_S)

    def direction(self, parameters: TextParameters) -> Direction:
        """Return the direction that a request names.

        Raises:
            InvalidArgumentError: a language is left out and the model has no default.
            LanguageNotFoundError: the model does not have a language, or not this pair.
        """
        return self.inputs.direction(parameters.source_language, parameters.target_language)


def _resolve(
    manifest: Manifest, vocab_size: int, options: DecodingOptions, forced_first: int | None, prefix: tuple[int, ...]
) -> SearchOptions:
    return options.resolve(
        manifest.generation,
        manifest.special_tokens,
        manifest.limits,
        vocabulary=vocab_size,
        forced_first=forced_first,
        prefix=prefix,
    )


def _shortlist_columns(
    manifest: Manifest, shortlist: Shortlist | None, source_ids: Sequence[int], direction: Direction
) -> Integers | None:
    """Return the token ids that a text may be translated with, [U]; None: all."""
    described = manifest.shortlist
    if shortlist is None or described is None:
        return None
    if (direction.source, direction.target) != (described.source, described.target):
        return None
    return shortlist.of(source_ids)


STEPS = 8
"""Tokens of every hypothesis, or fewer if the model's limit is lower."""


def warm_up_sentence(model: TaskModel, number: int, shape: Shape) -> Sentence:
    """Make a sentence of random source tokens in the model's first direction."""
    manifest = model.manifest
    limits, special = manifest.limits, manifest.special_tokens
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
    start = special.start if direction.start is None else direction.start
    around = (*direction.source_prefix, *direction.source_suffix)
    length = min(shape.source_tokens, limits.max_source_length) - len(around)
    tokens = np.random.default_rng(number).integers(manifest.tokenizer.source_vocab_size, size=max(1, length)).tolist()
    source = (*direction.source_prefix, *tokens, *direction.source_suffix)
    plan = SearchPlan(model.resolve(options, direction.forced_first, ()), start, (), source)
    return Sentence(source_ids=source, plan=plan, allowed_tokens=model.shortlist_columns(source, direction))
