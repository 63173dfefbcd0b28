"""Decoding options of the SDK, the server and a translator in this process."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict

EarlyStopping: TypeAlias = bool | Literal["never"]
"""Condition that stops a beam search with enough hypotheses: a better one is unlikely (``False``), none (``True``),
or no better one is possible (``"never"``)."""


class Options(TypedDict, total=False):
    """Decoding options, by keyword; None keeps the model's default."""

    beam_size: int | None
    """Hypotheses per step, 1 to 64; 1 is greedy search."""
    num_hypotheses: int | None
    """Hypotheses returned per text: the best 1 to ``beam_size``, or 1 to 64 samples in the order of drawing."""
    length_penalty: float | None
    """A hypothesis' score is its log-probability / length^length_penalty; above 0 favours long hypotheses."""
    early_stopping: EarlyStopping | None
    """Condition that stops a beam search with enough hypotheses."""
    min_length: int | None
    """Smallest number of tokens, without target prefix and end of sentence."""
    max_length: int | None
    """Largest number of tokens, without target prefix and with end of sentence."""
    no_repeat_ngram_size: int | None
    """Length of token sequences that occur at most once; 0: no limit."""
    repetition_penalty: float | None
    """Above 1, tokens that occurred become less likely; below 1, more likely."""
    suppress_tokens: Sequence[int] | None
    """Token ids never to write, besides those that the model never writes."""
    end_tokens: Sequence[int] | None
    """Token ids that end a translation, instead of the model's."""
    forced_first_token: int | None
    """Token id that begins each translation."""
    sample: bool | None
    """Draw tokens at random instead of searching for the best; the options below imply it."""
    temperature: float | None
    """Divisor of logits before drawing, above 0; below 1 is less random."""
    top_k: int | None
    """Number of most likely tokens to draw from; 0: all."""
    top_p: float | None
    """Draw from the fewest most likely tokens whose probabilities sum to this; above 0, at most 1."""
    seed: int | None
    """Seed of the random numbers: one seed draws the same tokens for the same text in any batch; None: a new seed."""


def check_names(options: Mapping[str, object]) -> None:
    """Raise TypeError for unknown options; Python does not check a TypedDict."""
    unknown = [name for name in options if name not in Options.__annotations__]
    if unknown:
        raise TypeError(
            f"no such option: {', '.join(unknown)}; decoding options are {', '.join(Options.__annotations__)}"
        )
