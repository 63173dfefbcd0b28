"""What a translation is, a score and a model: the typed results of the server, the SDK and in-process callers."""

from dataclasses import dataclass, field
from enum import Enum

from jumok_proto.options import EarlyStopping


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
    """One candidate translation of one text. Its tokens include the end of sentence, and leave out a target prefix."""

    text: str
    """The whole translation, its target prefix included."""
    score: float
    """Sum of ``token_scores`` divided by (number of tokens ** length penalty): higher is better."""
    tokens: tuple[str, ...]
    """The output pieces as the tokenizer spells them."""
    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    """Log-probability of each token given those before it."""
    finish_reason: FinishReason
    attention: tuple[tuple[float, ...], ...] | None = None
    """Where it was asked for: cross-attention [tokens][source tokens], the mean over all layers and heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The answer for one text: its hypotheses, best first or as they were drawn, and what it cost."""

    hypotheses: tuple[Hypothesis, ...]
    source_token_count: int
    """Tokens that the encoder read, after a truncation."""
    source_truncated: bool
    source_language: str
    target_language: str
    model: str
    model_version: str
    source_tokens: tuple[str, ...] = ()
    """Those tokens as the tokenizer spells them, special ones included; where attention was asked for."""
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
class Score:
    """How likely a model finds a given translation of one text. Its tokens include the end of sentence."""

    score: float
    """Sum of ``token_scores`` divided by (number of tokens ** length penalty): higher is better."""
    tokens: tuple[str, ...]
    """The translation's pieces as the tokenizer spells them."""
    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    """Log-probability of each token given those before it; 0 for a token that the model is made to begin with."""
    source_token_count: int
    """Tokens that the encoder read, after a truncation."""
    source_truncated: bool
    model: str
    model_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePair:
    """A direction of translation: BCP 47 tags, or the model's own codes with hyphens."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingDefaults:
    """How a model searches where a request does not say otherwise; ``Options`` says what most fields mean.

    No request changes the last four.
    """

    beam_size: int
    num_hypotheses: int
    length_penalty: float
    early_stopping: EarlyStopping
    min_length: int
    max_length: int
    no_repeat_ngram_size: int
    repetition_penalty: float
    suppress_tokens: tuple[int, ...]
    end_tokens: tuple[int, ...]
    forced_first_token: int | None
    """Of the model; a target language may have its own."""
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    begin_suppress_tokens: tuple[int, ...]
    """Tokens that cannot be the first that is free to choose."""
    bad_words: tuple[tuple[int, ...], ...]
    """Sequences of tokens that are never completed."""
    forced_last_tokens: tuple[int, ...]
    """Tokens of which one ends a translation of the maximum length."""
    renormalize: bool
    """Whether log-probabilities are normalised once more after constraints have acted on them."""


class ModelState(Enum):
    """Whether requests for a model are served."""

    SERVING = "serving"
    """They are: it is loaded, and has decoded."""
    RECOVERING = "recovering"
    """They fail as unavailable: its engine has failed, and is being started anew."""
    DRAINING = "draining"
    """No further ones are: it finishes those that it has accepted, and is then freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that a server holds."""

    name: str
    version: str
    architecture: str
    source_languages: tuple[str, ...]
    target_languages: tuple[str, ...]
    language_pairs: tuple[LanguagePair, ...]
    """The directions that it translates in; empty where it translates from every source to every target language."""
    default_pair: LanguagePair | None
    """Direction of a request that names no language; None where a request must name one."""
    max_source_length: int
    """Tokens of the longest text that it reads, end of sentence included."""
    max_target_length: int
    """Tokens of the longest translation that it writes, end of sentence included."""
    defaults: DecodingDefaults
    precision: str
    device: str
    state: ModelState = ModelState.SERVING


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """A model that a server was made to load."""

    model: Model
    replaced_version: str | None
    """Version of the model whose place it has taken; None where the server had none of its name."""


class BundleState(Enum):
    """What a server is doing with a bundle."""

    AVAILABLE = "available"
    """It could be loaded; its files were not checked yet."""
    LOADING = "loading"
    """It is being loaded."""
    LOADED = "loaded"
    """The server holds this version of the model."""
    UNUSABLE = "unusable"
    """It cannot be loaded, for its manifest cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSummary:
    """A bundle in a server's model root, as its manifest describes it."""

    bundle: str
    """Name of its folder."""
    model: str
    """Name of its model; empty where the manifest cannot be read, as is the version then."""
    version: str
    state: BundleState
    problem: str
    """Why it cannot be loaded, where the manifest says so already."""
