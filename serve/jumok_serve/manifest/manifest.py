"""The manifest of a bundle: the model, its files, its provenance and its verification.

The classes here define the format: ``manifest.json`` holds exactly these fields, in these types.
"""

from collections import Counter
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import Field, StringConstraints, model_validator

from jumok_proto.options import OPTIONS, EarlyStopping
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.parts import (
    GRAPH_VARIANTS,
    NATIVE_GRAPHS,
    REQUIRED_GRAPHS,
    UNREAD_GRAPHS,
    AlignmentHeads,
    Count,
    LanguageTag,
    Name,
    Part,
    Positive,
    Provenance,
    RelativePath,
    Sha256,
    Symbol,
    TokenId,
)
from jumok_serve.manifest.tokenizers import TokenizerDescription

FORMAT_VERSION: Final = 1
READABLE_FORMAT_VERSIONS = (FORMAT_VERSION,)
MAX_FILES: Final = 1000

CROSS_ATTENTION = "cross_attention"
"""Output of the aligner: weights of cross-attention, [B, layers, heads, T, S]."""
DEVICE_INPUT = "renormalize.asked"
"""Input that only decoders for a device have: rows whose log-probabilities are renormalized."""


class Architecture(Part):
    """Family (``transformer``, ``recurrent``) and sizes of the model; informative only."""

    family: Name
    sizes: dict[str, int | float | str | bool] = Field(default_factory=dict)
    parameters: Count | None = None


class SpecialTokens(Part):
    """Token ids with a role: ``start`` begins decoding, ``suppress`` never occur."""

    pad: TokenId
    start: TokenId
    eos: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    unk: TokenId | None = None
    suppress: tuple[TokenId, ...] = ()


class Limits(Part):
    """Most tokens of a source, EOS included, and of a target."""

    max_source_length: Positive
    max_target_length: Positive


class GenerationDefaults(Part):
    """Decoding options of requests that do not set them; see ``jumok_serve.search.options`` for their meaning,
    and ``jumok_proto.options.OPTIONS`` for their ranges.

    Lengths count new tokens, EOS included. ``sample`` draws tokens at random and needs beam size 1.
    """

    beam_size: int = 1
    num_hypotheses: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    min_length: int = 0
    max_length: int
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    begin_suppress_tokens: tuple[TokenId, ...] = ()
    bad_words: tuple[Annotated[tuple[TokenId, ...], Field(min_length=1)], ...] = ()
    forced_first_token: TokenId | None = None
    forced_last_tokens: tuple[TokenId, ...] = ()
    renormalize: bool = False
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        for name, option in OPTIONS.items():
            value = getattr(self, name, None)
            if option.is_number and value is not None and not option.least <= value <= option.most:
                raise ValueError(f"{name} must be at least {option.least:g} and at most {option.most:g}, got {value}")
        if self.sample and self.beam_size > 1:
            raise ValueError(f"sample needs beam_size 1, got {self.beam_size}")
        if self.num_hypotheses > self.beam_size and not self.sample:
            raise ValueError(f"num_hypotheses {self.num_hypotheses} is more than beam_size {self.beam_size}")
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        return self


DType: TypeAlias = Literal["float32", "float16", "int64", "int32", "int8", "uint8", "bool"]


class TensorSpec(Part):
    """Input or output of a graph: name, type and axes.

    An axis is a symbol (``B``) or a constant size.

    An axis of size 0 means that the model lacks such data, as self-attention in recurrent models.
    """

    name: Annotated[str, StringConstraints(min_length=1)]
    dtype: DType
    axes: tuple[Count | Symbol, ...]


class GraphSpec(Part):
    """An ONNX graph: its file, inputs and outputs."""

    file: RelativePath
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def for_device(self) -> bool:
        """True if the graph is a decoder whose tensors stay in a device's memory."""
        return any(spec.name == DEVICE_INPUT for spec in self.inputs)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for role, specs in (("input", self.inputs), ("output", self.outputs)):
            repeated = [name for name, count in Counter(spec.name for spec in specs).items() if count > 1]
            if repeated:
                raise ValueError(f"{role} {repeated[0]!r} is listed more than once")
        return self


class PrecisionVariant(Part):
    """Graphs of one precision and the weights file that they share."""

    graphs: dict[str, GraphSpec]
    weights: RelativePath

    @property
    def files(self) -> tuple[str, ...]:
        """Files of the graphs and the weights, without repetitions."""
        return tuple(dict.fromkeys([*(graph.file for graph in self.graphs.values()), self.weights]))

    @model_validator(mode="after")
    def _check_graphs(self) -> Self:
        missing = [name for name in REQUIRED_GRAPHS if name not in self.graphs]
        if missing:
            raise ValueError(f"graph {missing[0]!r} is missing; {', '.join(REQUIRED_GRAPHS)} are needed")
        unknown = [name for name in self.graphs if name not in GRAPH_VARIANTS and name not in UNREAD_GRAPHS]
        if unknown:
            raise ValueError(f"graph {unknown[0]!r} is unknown; the graphs are {', '.join(GRAPH_VARIANTS)}")
        needed: tuple[str, ...] = (
            "projection",
            "decoder_shortlist",
            *(["sampler_shortlist"] if "sampler" in self.graphs else []),
        )
        absent = [name for name in needed if name not in self.graphs]
        if absent and len(absent) < len(needed):
            raise ValueError(f"graph {absent[0]!r} is missing; a shortlist needs {', '.join(needed)}")
        if any(name in self.graphs for name in NATIVE_GRAPHS):
            needed = ("decoder_native", *(["decoder_shortlist_native"] if self.listed else []))
            absent = [name for name in needed if name not in self.graphs]
            if absent:
                raise ValueError(f"graph {absent[0]!r} is missing; native operators need {', '.join(needed)}")
        return self

    def attention(self, output: str = CROSS_ATTENTION) -> tuple[int, int] | None:
        """Numbers of layers and heads of an output of the aligner; None without it."""
        aligner = self.graphs.get("aligner")
        for spec in aligner.outputs if aligner is not None else ():
            if spec.name == output:
                _, layers, heads, *_ = spec.axes
                return int(layers), int(heads)
        return None

    @property
    def for_devices(self) -> bool:
        """True if the graphs are for devices such as CUDA, which use no shortlist."""
        return self.graphs["decoder"].for_device

    @property
    def native(self) -> bool:
        """True if there are graphs for native kernels."""
        return "decoder_native" in self.graphs

    @property
    def listed(self) -> bool:
        """True if there are graphs for a shortlist."""
        return "projection" in self.graphs


class ShortlistDescription(Part):
    """Shortlist of target tokens for one direction; see `jumok_serve.bundle.shortlist`.

    Attributes:
        source, target: the direction.
        best: most target tokens in the list of a source token.
        frequent: number of most frequent target tokens that are in every list.
        lexicon: origin of the translation probabilities.
    """

    file: RelativePath
    source: LanguageTag
    target: LanguageTag
    best: Positive
    frequent: Count
    lexicon: str


class Check(Part):
    """A verified property: number of cases, largest error and limit."""

    name: Annotated[str, StringConstraints(min_length=1)]
    cases: Count
    worst: float
    limit: float
    passed: bool
    detail: str = ""

    @model_validator(mode="after")
    def _check_passed(self) -> Self:
        if self.passed and self.worst > self.limit:
            raise ValueError(f"check {self.name!r} cannot have passed: worst {self.worst} is over {self.limit}")
        return self


class VerificationReport(Part):
    """Comparison of PyTorch with ONNX Runtime for one precision."""

    checks: Annotated[tuple[Check, ...], Field(min_length=1)]

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)


class Agreement(Part):
    """Share of target tokens that a precision chooses as fp32 does, given the same tokens before.

    Attributes:
        share: from 0 to 1.
        tokens: tokens that were compared.
        texts: sources of these targets, which are the model's own translations in fp32.
        translations: number of these targets; None if not recorded.
        unchanged: share of them in which no token differs, from 0 to 1; None if not recorded.
    """

    share: Annotated[float, Field(ge=0, le=1)]
    tokens: Positive
    texts: Literal["calibration texts", "random tokens"]
    translations: Positive | None = None
    unchanged: Annotated[float, Field(ge=0, le=1)] | None = None

    def __str__(self) -> str:
        whole = ""
        if self.translations is not None and self.unchanged is not None:
            whole = f" and in {100 * self.unchanged:.1f} % of {self.translations:,} translations"
        return f"{100 * self.share:.1f} % of {self.tokens:,} tokens{whole} ({self.texts})"


class Score(Part):
    """A translation quality score, and the data that reproduces it."""

    metric: Annotated[str, StringConstraints(min_length=1)]
    value: float
    signature: str
    dataset: str
    precision: Name
    beam_size: Positive


class FileEntry(Part):
    """Size in bytes and SHA-256 of a file."""

    size: Count
    sha256: Sha256


class ManifestDraft(Part):
    """A manifest without its files: the part that an exporter fills in."""

    format_version: Literal[1] = FORMAT_VERSION
    name: Name
    version: Name
    architecture: Architecture
    languages: Languages
    special_tokens: SpecialTokens
    limits: Limits
    generation: GenerationDefaults
    tokenizer: TokenizerDescription
    precisions: Annotated[dict[Name, PrecisionVariant], Field(min_length=1)]
    shortlist: ShortlistDescription | None = None
    alignment: AlignmentHeads | None = None
    verification: dict[Name, VerificationReport] = Field(default_factory=dict)
    agreement: dict[Name, Agreement] = Field(default_factory=dict)
    stored_precision: Name | None = None
    scores: tuple[Score, ...] = ()
    provenance: Provenance

    @property
    def named_files(self) -> dict[str, str]:
        """Files that the manifest names, with the part that names each."""
        named = dict.fromkeys(self.tokenizer.files, "tokenizer")
        for precision, variant in self.precisions.items():
            named |= {graph.file: f"precisions.{precision}.graphs.{name}" for name, graph in variant.graphs.items()}
            named[variant.weights] = f"precisions.{precision}.weights"
        if self.shortlist is not None:
            named[self.shortlist.file] = "shortlist.file"
        return named

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        problems = self._problems()
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _problems(self) -> list[str]:
        return [
            *self._token_problems(),
            *self._length_problems(),
            *self._shortlist_problems(),
            *self._alignment_problems(),
            *self._reference_problems(),
        ]

    def _token_problems(self) -> list[str]:
        target, source = self.tokenizer.target_vocab_size, self.tokenizer.source_vocab_size
        tokens = self.special_tokens
        generation, languages = self.generation, self.languages
        of_target = {
            "special_tokens.start": (tokens.start,),
            "special_tokens.eos": tokens.eos,
            "special_tokens.suppress": tokens.suppress,
            "special_tokens.unk": (tokens.unk,),
            "generation.begin_suppress_tokens": generation.begin_suppress_tokens,
            "generation.bad_words": tuple(token for word in generation.bad_words for token in word),
            "generation.forced_first_token": (generation.forced_first_token,),
            "generation.forced_last_tokens": generation.forced_last_tokens,
            **{f"languages.targets.{tag}": (one.start, one.forced_first) for tag, one in languages.targets.items()},
        }
        of_source = {
            **{f"languages.sources.{tag}": (*one.prefix, *one.suffix) for tag, one in languages.sources.items()},
            **{f"languages.targets.{tag}": one.source_prefix for tag, one in languages.targets.items()},
        }
        problems = [
            f"{role}: {token} is not in the {side} vocabulary of {size} tokens"
            for side, size, roles in (("target", target, of_target), ("source", source, of_source))
            for role, ids in roles.items()
            for token in ids
            if token is not None and token >= size
        ]
        if tokens.pad >= source:
            problems.append(f"special_tokens.pad: {tokens.pad} is not in the source vocabulary of {source} tokens")
        for precision, variant in self.precisions.items():
            for spec in variant.graphs["decoder"].outputs:
                width = spec.axes[-1] if spec.axes else None
                if spec.name == "logits" and isinstance(width, int) and width != target:
                    problems.append(
                        f"precisions.{precision}.graphs.decoder: logits are {width} wide, "
                        f"the target vocabulary has {target} tokens"
                    )
        return problems

    def _length_problems(self) -> list[str]:
        longest, limit = self.generation.max_length, self.limits.max_target_length
        problems = [] if longest <= limit else [f"generation.max_length: {longest} is over max_target_length {limit}"]
        limit, languages = self.limits.max_source_length, self.languages
        around = max(len(one.prefix) + len(one.suffix) for one in languages.sources.values())
        around += max(len(one.source_prefix) for one in languages.targets.values())
        if around >= limit:
            problems.append(
                f"languages: {around} tokens around a text leave no space for it in max_source_length {limit}"
            )
        return problems

    def _shortlist_problems(self) -> list[str]:
        described = self.shortlist
        if described is None:
            wrong, problems = "there are graphs for a shortlist, but no shortlist", []
        else:
            wrong = "graph 'projection' is missing; a shortlist needs it"
            problems = [
                f"shortlist: {source} to {target} is not a pair of the model"
                for source, target in [(described.source, described.target)]
                if (source, target) not in self.languages.all_pairs
            ]
        return problems + [
            f"precisions.{precision}.graphs: {wrong}"
            for precision, variant in self.precisions.items()
            if variant.listed != (described is not None) and not variant.for_devices
        ]

    def _alignment_problems(self) -> list[str]:
        if self.alignment is None:
            return []
        sizes = {precision: variant.attention() for precision, variant in self.precisions.items()}
        return list(self.alignment.problems(sizes))

    def _reference_problems(self) -> list[str]:
        known = ", ".join(self.precisions)
        return [
            f"{part}: {precision!r} is not a precision of the bundle ({known})"
            for part, named in (
                ("verification", self.verification),
                ("agreement", self.agreement),
                ("stored_precision", filter(None, (self.stored_precision,))),
            )
            for precision in named
            if precision not in self.precisions
        ]


class Manifest(ManifestDraft):
    """The complete ``manifest.json``."""

    files: Annotated[dict[RelativePath, FileEntry], Field(max_length=MAX_FILES)]

    def _problems(self) -> list[str]:
        return super()._problems() + [
            f"{part}: {file!r} is not among the files"
            for file, part in self.named_files.items()
            if file not in self.files
        ]
