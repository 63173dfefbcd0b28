"""What all tasks share: parts of a loaded model, and parameters of a translation, a scoring and an alignment."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.bundle.shortlist import Shortlist
from jumok_serve.manifest.languages import Direction, writes_spaces
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.runtime.graphs import Graphs, Integers
from jumok_serve.search.options import DecodingOptions, SearchOptions
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.terms import TermFinder, TermTokenizer
from jumok_serve.text.placeholders import HoleFinder, StandIns
from jumok_serve.tokenizers.input_processor import MAX_CACHED, InputProcessor


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParameters:
    """Languages, truncation and deadline: the parameters that all tasks share.

    Attributes:
        source_language: language of the texts; None or empty: the model's default.
        target_language: language of the translations; None or empty: the model's default.
        truncate: True to cut texts that are longer than the model's limit, instead of refusing them.
        deadline: last moment for the results, in `time.monotonic()` seconds; None: no limit.
        caller: key of the caller; callers share the engine by work.

    Raises:
        InvalidArgumentError: a language is not a string.
    """

    source_language: str | None = None
    target_language: str | None = None
    truncate: bool = False
    deadline: float | None = None
    caller: str = ""

    def __post_init__(self) -> None:
        for role, tag in (("source", self.source_language), ("target", self.target_language)):
            if tag is not None and not isinstance(tag, str):
                field = f"{role}_language_code"
                raise InvalidArgumentError(f"{field} must be a string, got {type(tag).__name__}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationParameters(TextParameters):
    """Parameters of a translation, one set for all texts of a request.

    Attributes:
        options: decoding options.
        source_confidence: confidence in the source language if it was detected; None: it was given.
        attention: True to add cross-attention to every hypothesis.
        split_sentences: True to translate the sentences of each text one by one.
        later_sentences: sentences of the same request that come later; their work is checked now.
        cut_long_sentences: True to cut sentences that are too long for the model into parts; None: if sentences are
            split and texts are not truncated.
        copy_unreadable: True to copy sentences that have nothing that the model can read.
        markup: markup of the texts; None: plain.
        markup_rules: rules for its elements.
        terms: finds the terms of a text; None: there are none.
        placeholders: finds the parts of a text that are copied; None: there are none.
    """

    options: DecodingOptions = DecodingOptions()  # noqa: RUF009 - frozen
    source_confidence: float | None = None
    attention: bool = False
    split_sentences: bool = False
    later_sentences: int = 0
    cut_long_sentences: bool | None = None
    copy_unreadable: bool = False
    markup: MarkupKind | None = None
    markup_rules: MarkupRules = MarkupRules()  # noqa: RUF009 - frozen
    terms: TermFinder | None = None
    placeholders: HoleFinder | None = None

    def __post_init__(self) -> None:
        TextParameters.__post_init__(self)
        if self.markup not in {None, "html", "xml"}:
            raise InvalidArgumentError(f"markup must be 'html', 'xml' or None, got {self.markup!r}", field="markup")

    @property
    def cuts(self) -> bool:
        """True if long sentences are cut."""
        return (
            self.split_sentences and not self.truncate if self.cut_long_sentences is None else self.cut_long_sentences
        )

    @property
    def attends_to_hypotheses(self) -> bool:
        """True if the attention of hypotheses is computed after decoding."""
        return self.attention or bool(self.options.coverage_penalty or self.options.replace_unknowns)

    @property
    def attends(self) -> bool:
        """True if any attention is computed after decoding."""
        return self.attends_to_hypotheses or self.markup is not None

    @property
    def keeps_texts(self) -> bool:
        """True if texts are needed beside their tokens."""
        return self.terms is not None or bool(self.options.replace_unknowns)

    @property
    def in_parts(self) -> bool:
        """True if a translation is joined from parts."""
        return self.split_sentences or self.cuts or self.copy_unreadable or self.markup is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringParameters(TextParameters):
    """Parameters of a scoring.

    Attributes:
        length_penalty: exponent of the length that a sum of log-probabilities is divided by; None: the model's default.
    """

    length_penalty: float | None = None


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
        self._stand_ins = {
            spaced: StandIns(bundle.tokenizer, partial(self.term_tokenizer.tokens, spaced=spaced))
            for spaced in (False, True)
        }
        self.shortlist_columns = partial(_shortlist_columns, bundle.manifest, shortlist)
        self.weights = bundle.pinned.mapped(variant.weights)
        self.can_sample = "sampler" in variant.graphs

    def stand_ins(self, direction: Direction) -> StandIns:
        """Return what the model reads in place of placeholders."""
        return self._stand_ins[writes_spaces(direction.target)]

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
