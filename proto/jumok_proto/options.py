"""Decoding options of the SDK, the server and a translator in this process."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict

EarlyStopping: TypeAlias = bool | Literal["never"]
"""Condition that stops a beam search with enough hypotheses: a better one is unlikely (``False``), none (``True``),
or no better one is possible (``"never"``)."""


class Range(NamedTuple):
    """Range of a number; both ends are allowed."""

    least: float
    most: float


MOST_INTEGER: Final = 2**31 - 1
RANGES: Final[Mapping[str, Range]] = MappingProxyType(
    {
        "beam_size": Range(1, 64),
        "num_hypotheses": Range(1, 64),
        "length_penalty": Range(-10, 10),
        "min_length": Range(0, MOST_INTEGER),
        "max_length": Range(1, MOST_INTEGER),
        "no_repeat_ngram_size": Range(0, MOST_INTEGER),
        "repetition_penalty": Range(1e-6, 1e6),
        "forced_first_token": Range(0, MOST_INTEGER),
        "temperature": Range(1e-6, 1e6),
        "top_k": Range(0, MOST_INTEGER),
        "top_p": Range(1e-6, 1),
        "seed": Range(0, 2**63 - 1),
        "coverage_penalty": Range(0, 100),
    }
)
"""Range of each option that is a number, if the model or another option does not narrow it.

Within the ranges no score overflows: a length to the power of 10 is far below the largest float."""


class Options(TypedDict, total=False):
    """Decoding options, by keyword; None keeps the model's default."""

    beam_size: int | None
    """Hypotheses per step, 1 to 64; 1 is greedy search."""
    num_hypotheses: int | None
    """Hypotheses returned per text: the best 1 to ``beam_size``, or 1 to 64 samples in the order of drawing."""
    length_penalty: float | None
    """A hypothesis' score is its log-probability / length^length_penalty, -10 to 10; above 0 favours long ones."""
    early_stopping: EarlyStopping | None
    """Condition that stops a beam search with enough hypotheses."""
    min_length: int | None
    """Smallest number of tokens, without target prefix and end of sentence."""
    max_length: int | None
    """Largest number of tokens, without target prefix and with end of sentence."""
    no_repeat_ngram_size: int | None
    """Length of token sequences that occur at most once; 0: no limit."""
    repetition_penalty: float | None
    """Above 1, tokens that occurred become less likely; below 1, more likely; 1e-6 to 1e6."""
    suppress_tokens: Sequence[int] | None
    """Token ids never to write, besides those that the model never writes."""
    end_tokens: Sequence[int] | None
    """Token ids that end a translation, instead of the model's."""
    forced_first_token: int | None
    """Token id that begins each translation."""
    sample: bool | None
    """Draw tokens at random instead of searching for the best; the options below imply it."""
    temperature: float | None
    """Divisor of logits before drawing, 1e-6 to 1e6; below 1 is less random."""
    top_k: int | None
    """Number of most likely tokens to draw from; 0: all."""
    top_p: float | None
    """Draw from the fewest most likely tokens whose probabilities sum to this; 1e-6 to 1."""
    seed: int | None
    """Seed of the random numbers: one seed draws the same tokens for the same text in any batch; None: a new seed."""
    coverage_penalty: float | None
    """Times the sum of log(min(attention, 1)) over source tokens is added to scores, 0 to 100; above 0, hypotheses
    that leave out parts of the text come later. None: 0."""
    replace_unknowns: bool | None
    """Write the source word that an unknown token attends to most, instead of the token, into texts. None: False.

    The model may then write unknown tokens, even if it never does otherwise."""


def check_names(options: Mapping[str, object]) -> None:
    """Raise TypeError for unknown options; Python does not check a TypedDict."""
    unknown = [name for name in options if name not in Options.__annotations__]
    if unknown:
        raise TypeError(
            f"no such option: {', '.join(unknown)}; decoding options are {', '.join(Options.__annotations__)}"
        )
