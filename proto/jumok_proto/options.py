"""How a translation is decoded: the options that the SDK, a server and an in-process translator take by name."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict

EarlyStopping: TypeAlias = bool | Literal["never"]
"""When a beam search that has enough candidates stops: when a better one is unlikely (``False``), at once (``True``),
or only when none is possible (``"never"``)."""


class Options(TypedDict, total=False):
    """Decoding options, all by keyword; what is left out or None keeps the model's default."""

    beam_size: int | None
    """Hypotheses kept at every step, 1 to 64; 1 is greedy search."""
    num_hypotheses: int | None
    """Candidates to return for every text: the best 1 to ``beam_size``, or 1 to 64 samples as they are drawn."""
    length_penalty: float | None
    """A hypothesis' score is its log-probability / length^length_penalty, so more than 0 favours long ones."""
    early_stopping: EarlyStopping | None
    """When a beam search that has enough candidates stops."""
    min_length: int | None
    """Tokens that a translation has at least, its target prefix and its end of sentence not counted."""
    max_length: int | None
    """Tokens that a translation has at most, its end of sentence counted and its target prefix not."""
    no_repeat_ngram_size: int | None
    """No sequence of so many tokens occurs twice; 0: any may."""
    repetition_penalty: float | None
    """Tokens that have occurred are made less likely by it where it is above 1, and more where it is below."""
    suppress_tokens: Sequence[int] | None
    """Ids of tokens that are not written, besides those that the model never writes."""
    end_tokens: Sequence[int] | None
    """Ids of tokens that end a translation, instead of the model's."""
    forced_first_token: int | None
    """Id of the token that every translation begins with."""
    sample: bool | None
    """Draw tokens at random instead of searching for the best; asking for one of the following asks for it."""
    temperature: float | None
    """Logits are divided by it before tokens are drawn; above 0, and below 1 for less chance."""
    top_k: int | None
    """Draw from so many of the most likely tokens; 0: from all."""
    top_p: float | None
    """Draw from the fewest most likely tokens whose probabilities reach this; above 0, at most 1."""
    seed: int | None
    """The same seed draws the same tokens for the same text, whatever else is decoded; None: a new one."""


def check_names(options: Mapping[str, object]) -> None:
    """Raise TypeError for options that there are not, naming them all; a TypedDict is not checked when it is made."""
    unknown = [name for name in options if name not in Options.__annotations__]
    if unknown:
        raise TypeError(
            f"no such option: {', '.join(unknown)}; decoding options are {', '.join(Options.__annotations__)}"
        )
