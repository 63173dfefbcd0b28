"""Made-up sentences that warm up a model."""

import numpy as np

from jumok_serve.engine.sentence import Sentence
from jumok_serve.engine.warm_up import Shape
from jumok_serve.search import SearchPlan
from jumok_serve.search.options import DecodingOptions
from jumok_serve.tasks.model import TaskModel

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
