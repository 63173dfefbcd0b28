"""What a translation is, and a model: the typed results that the server, the SDK and in-process callers share."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal


class FinishReason(Enum):
    """Why a hypothesis ended."""

    EOS = "eos"
    """The model wrote an end of sentence."""
    LENGTH = "length"
    """The hypothesis reached the maximum length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of one request went, in seconds.

    ``total_s`` runs from the request's arrival to its answer; the other three are parts of it and need not add up.
    """

    queue_s: float
    """Waiting until its last sentence was admitted to the batch."""
    encode_s: float
    """In the encoder, for the batches that held its sentences."""
    decode_s: float
    """From a sentence's admission to its last step, its encoding left out; of the sentence that took longest."""
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One candidate translation of one text."""

    text: str
    score: float
    """Sum of ``token_scores`` divided by (number of tokens ** length penalty): higher is better."""
    tokens: tuple[str, ...]
    """The output pieces as the tokenizer spells them, end of sentence included."""
    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    """Log-probability of each token given those before it."""
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The answer for one text: its hypotheses, best first, and what it cost."""

    hypotheses: tuple[Hypothesis, ...]
    source_token_count: int
    """Tokens that the encoder read, after a truncation."""
    source_truncated: bool
    model: str
    model_version: str
    timings: Timings | None = field(default=None, compare=False)
    """Of the request that this text was part of; takes no part in comparisons."""

    @property
    def text(self) -> str:
        """The best hypothesis as text."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """The score of the best hypothesis."""
        return self.hypotheses[0].score

    @property
    def output_token_count(self) -> int:
        """Number of tokens of the best hypothesis, end of sentence included."""
        return len(self.hypotheses[0].token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePair:
    """A direction of translation, as BCP 47 tags."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingDefaults:
    """How a model searches where a request does not say otherwise."""

    beam_size: int
    num_hypotheses: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    min_length: int
    max_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that a server holds."""

    name: str
    version: str
    architecture: str
    language_pairs: tuple[LanguagePair, ...]
    max_source_length: int
    """Tokens of the longest text that it reads, end of sentence included."""
    max_target_length: int
    """Tokens of the longest translation that it writes, end of sentence included."""
    defaults: DecodingDefaults
    precision: str
    device: str
