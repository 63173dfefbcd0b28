"""Results of the server, the SDK and a translator in this process."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from jumok_proto.options import EarlyStopping


class FinishReason(StrEnum):
    """Reason why a hypothesis ended."""

    EOS = "eos"
    """The model wrote an end of sentence."""
    LENGTH = "length"
    """The hypothesis reached the maximum length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Times of a request in seconds; the parts need not sum to the total."""

    queue_s: float
    """From arrival until the last sentence joined the batch."""
    encode_s: float
    """Time in the encoder, of all batches with sentences of the request."""
    decode_s: float
    """From joining the batch to the last step, without encoding; of the slowest sentence."""
    total_s: float


class TextSpan(NamedTuple):
    """Part of a text: first and past-the-end position, in characters."""

    first: int
    after: int

    def moved(self, characters: int) -> "TextSpan":
        """Return the span, that many characters further on."""
        return TextSpan(self.first + characters, self.after + characters)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedTerm:
    """A term of a text, and its place in a hypothesis."""

    source: str
    """The term as in the text."""
    targets: tuple[str, ...]
    """Alternative texts; the hypothesis was to contain one. The term itself if it was to be copied."""
    source_span: TextSpan | None
    """Its place in the text; None in markup."""
    satisfied: bool
    """True if the hypothesis contains it; False if the tokenizer cannot write it, or it does not fit."""
    target_span: TextSpan | None = None
    """Its place in the text of the hypothesis, if known."""
    spliced: bool = False
    """True for a placeholder, or a term over a pivot, that the model did not write itself: its tokens are others."""

    def moved(self, source: int, target: int) -> "AppliedTerm":
        """Return the term with spans that many characters further on."""
        spans = ((self.source_span, source), (self.target_span, target))
        moved = [None if span is None else span.moved(characters) for span, characters in spans]
        return replace(self, source_span=moved[0], target_span=moved[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A hypothesis. Its tokens include the end of sentence, but not the target prefix."""

    text: str
    """The whole translation, target prefix included."""
    score: float
    """Sum of ``token_scores`` / (number of tokens ** length penalty); higher is better."""
    tokens: tuple[str, ...]
    """The tokens, as the tokenizer spells them."""
    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    """Log-probability of each token given those before it."""
    finish_reason: FinishReason
    attention: tuple[tuple[float, ...], ...] | None = None
    """Cross-attention, ``[tokens][source tokens]``, the mean over all layers and heads; None if not requested."""
    terms: tuple[AppliedTerm, ...] = ()
    """Terms of the text, in their order."""


class DetectedLanguage(NamedTuple):
    """A possible language of a text."""

    language: str
    """The language, as a model spells it, or the detector; ``und`` if not known."""
    confidence: float
    """Confidence, 0 to 1, among all languages that the detector knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PivotTranslation:
    """The translation of a text into a pivot language, which a second model translated."""

    text: str
    language: str
    model: str
    model_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The translation of one text; hypotheses are best first, or as drawn."""

    hypotheses: tuple[Hypothesis, ...]
    source_token_count: int
    """Number of source tokens, after truncation."""
    source_truncated: bool
    source_language: str
    target_language: str
    model: str
    model_version: str
    source_unknown_count: int = 0
    """Number of source tokens that the model's vocabulary lacks; 0 from servers that do not count them."""
    prefix_unknown_count: int = 0
    """Number of tokens of the target prefix that the model's vocabulary lacks."""
    source_tokens: tuple[str, ...] = ()
    """The source tokens, special ones included, unknown ones as in the text; empty if attention was not requested."""
    cut_sentences: tuple[str, ...] = ()
    """The sentences that were too long for the model and were cut into parts."""
    pivot: PivotTranslation | None = None
    """Result of the first of two models; None if ``model`` translated alone."""
    beam_size: int | None = None
    """Beam size of the search if terms needed a larger one than the options have; None: that of the options."""
    source_confidence: float | None = None
    """Confidence that the text has its language, 0 to 1; None unless the language was detected."""
    timings: Timings | None = field(default=None, compare=False)
    """Times of the text's request; not compared."""

    @property
    def text(self) -> str:
        """Text of the best hypothesis."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        """Score of the best hypothesis."""
        return self.hypotheses[0].score

    @property
    def output_token_count(self) -> int:
        """Number of tokens of the best hypothesis, end of sentence included."""
        return len(self.hypotheses[0].token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a given translation. Its tokens include the end of sentence."""

    score: float
    """Sum of ``token_scores`` / (number of tokens ** length penalty); higher is better."""
    tokens: tuple[str, ...]
    """The tokens of the translation, as the tokenizer spells them."""
    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    """Log-probability of each token given those before it; 0 for a forced first token."""
    source_token_count: int
    """Number of source tokens, after truncation."""
    source_truncated: bool
    model: str
    model_version: str
    source_unknown_count: int = 0
    """Number of source tokens that the model's vocabulary lacks; 0 from servers that do not count them."""
    target_unknown_count: int = 0
    """Number of tokens of the translation that the model's vocabulary lacks: their scores are of its unknown token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePair:
    """A source and a target language, as BCP 47 tags or model codes."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingDefaults:
    """The default options of a model; requests cannot change the last four."""

    beam_size: int = 1
    num_hypotheses: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    min_length: int = 0
    max_length: int
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    suppress_tokens: tuple[int, ...] = ()
    end_tokens: tuple[int, ...] = ()
    forced_first_token: int | None = None
    """The model's; a target language can have its own."""
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    begin_suppress_tokens: tuple[int, ...] = ()
    """Tokens that cannot be the first that is not forced."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that never occur."""
    forced_last_tokens: tuple[int, ...] = ()
    """Tokens that can end a translation of the maximum length."""
    renormalize: bool = False
    """True if log-probabilities are normalised again after constraints."""


class ModelState(StrEnum):
    """State of a model."""

    SERVING = "serving"
    """It serves requests."""
    RECOVERING = "recovering"
    """Its engine failed and is restarting; requests fail with UnavailableError."""
    DRAINING = "draining"
    """It takes no more requests, finishes those accepted, and is then freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of a server."""

    name: str
    version: str
    architecture: str
    source_languages: tuple[str, ...]
    target_languages: tuple[str, ...]
    language_pairs: tuple[LanguagePair, ...]
    """Language pairs; empty if the model translates from each source to each target language."""
    default_pair: LanguagePair | None
    """Language pair of a request without languages; None if a request must name them."""
    max_source_length: int
    """Largest number of source tokens, end of sentence included."""
    max_target_length: int
    """Largest number of target tokens, end of sentence included."""
    defaults: DecodingDefaults
    precision: str
    device: str
    state: ModelState = ModelState.SERVING


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A pair of languages that two models translate one after the other, over a pivot language."""

    source: str
    target: str
    models: tuple[str, ...]
    """Names of the models, first to last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The result of loading a model."""

    model: Model
    replaced_version: str | None
    """Version of the model that it replaced; None if it replaced none."""


class BundleState(StrEnum):
    """State of a bundle."""

    AVAILABLE = "available"
    """It can be loaded; its files are not checked yet."""
    LOADING = "loading"
    """It is being loaded."""
    LOADED = "loaded"
    """The server holds this version of the model."""
    UNUSABLE = "unusable"
    """It cannot be loaded, because its manifest cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSummary:
    """A bundle in a server's model root, as its manifest describes it."""

    bundle: str
    """Name of its folder."""
    model: str
    """Name of its model; empty if the manifest cannot be read, as is the version."""
    version: str
    state: BundleState
    problem: str
    """Reason why it cannot be loaded, if the manifest shows it."""
