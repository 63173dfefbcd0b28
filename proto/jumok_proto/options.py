"""Decoding options of SDK, server and commands: types, ranges, and their lines of ``--help``."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias, TypedDict

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


Kind: TypeAlias = Literal["integer", "number", "flag", "token_id", "token_ids", "early_stopping"]
MOST_INTEGER: Final = 2**31 - 1


class Option(NamedTuple):
    """What a decoding option takes, and what ``--help`` says of it.

    Attributes:
        least, most: range of a number, or of each token id, if the model or another option does not narrow it; both
            ends are allowed.
        hint: what errors about its value add.
    """

    kind: Kind
    help: str
    least: float = 0
    most: float = MOST_INTEGER
    hint: str = ""

    @property
    def is_number(self) -> bool:
        """True if the option takes one number."""
        return self.kind in {"integer", "number", "token_id"}


OPTIONS: Final[Mapping[str, Option]] = MappingProxyType(
    {
        "beam_size": Option("integer", "Hypotheses per step, 1 to 64; 1 is greedy search.", 1, 64),
        "num_hypotheses": Option("integer", "Translations to write for each text.", 1, 64),
        "length_penalty": Option(
            "number",
            "Divide scores by length to this power; higher favours longer translations.",
            -10,
            10,
            "; 0 compares sums, 1 compares means",
        ),
        "early_stopping": Option(
            "early_stopping",
            "When a beam search with as many ended hypotheses as beams stops: at once (true), if a better one is "
            "unlikely (false), or if none is possible (never).",
        ),
        "min_length": Option("integer", "Smallest number of tokens of a translation."),
        "max_length": Option("integer", "Largest number of tokens of a translation.", 1),
        "no_repeat_ngram_size": Option("integer", "Write no sequence of this many tokens twice; 0 allows it."),
        "repetition_penalty": Option(
            "number", "Above 1, make tokens that occurred less likely.", 1e-6, 1e6, "; 1 is none"
        ),
        "suppress_tokens": Option("token_ids", "Token id never to write"),
        "end_tokens": Option("token_ids", "Token id that ends a translation, instead of the model's"),
        "forced_first_token": Option("token_id", "Token id that begins each translation."),
        "sample": Option(
            "flag", "Draw tokens at random instead of searching for the best; the next four options imply it."
        ),
        "temperature": Option(
            "number",
            "Divide logits by this before drawing.",
            1e-6,
            1e6,
            "; 1 leaves the model's probabilities as they are",
        ),
        "top_k": Option("integer", "Draw from this many of the most likely tokens; 0 is all."),
        "top_p": Option(
            "number",
            "Draw from the fewest most likely tokens that reach this probability.",
            1e-6,
            1,
            "; 1 keeps all tokens",
        ),
        "seed": Option("integer", "Seed; the same seed draws the same tokens for the same text.", 0, 2**63 - 1),
        "coverage_penalty": Option(
            "number",
            "Factor of the log-coverage that is added to scores: hypotheses that leave out parts of the text come "
            "later.",
            0,
            100,
            "; 0 is none",
        ),
        "replace_unknowns": Option("flag", "Write the aligned word of the text instead of an unknown token."),
    }
)
"""All decoding options, in the order of `Options`.

Within the ranges no score overflows: a length to the power of 10 is far below the largest float."""


def check_names(options: Mapping[str, object]) -> None:
    """Raise TypeError for unknown options; Python does not check a TypedDict."""
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise TypeError(f"no such option: {', '.join(unknown)}; decoding options are {', '.join(OPTIONS)}")
