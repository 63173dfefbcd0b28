"""The manifest of a bundle: what a model is, which files it has, how it was made and how far it was verified.

The models here are the format: ``manifest.json`` holds exactly these fields, in these types, and nothing else.
"""

from collections import Counter
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from jumok_serve.manifest.fields import Count, LanguageTag, Name, Part, Positive, RelativePath, Sha256, Symbol, TokenId
from jumok_serve.manifest.graph_variants import GRAPH_VARIANTS, NATIVE_GRAPHS, REQUIRED_GRAPHS, UNREAD_GRAPHS
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.tokenizers import TokenizerDescription

FORMAT_VERSION: Final = 1
READABLE_FORMAT_VERSIONS = (FORMAT_VERSION,)

DEVICE_INPUT = "renormalize.asked"
"""What of all decoders only those for a device take: which rows ask to be renormalised."""


class Architecture(Part):
    """The family (``transformer``, ``recurrent``) and its sizes, for people; no code of the server branches on them."""

    family: Name
    sizes: dict[str, int | float | str | bool] = Field(default_factory=dict)
    parameters: Count | None = None


class SpecialTokens(Part):
    """Token ids with a role. ``start`` is what the decoder is fed first; ``suppress`` is never generated."""

    pad: TokenId
    start: TokenId
    eos: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    unk: TokenId | None = None
    suppress: tuple[TokenId, ...] = ()


class Limits(Part):
    """The longest source, its EOS included, and the longest target that the model takes, in tokens."""

    max_source_length: Positive
    max_target_length: Positive


class GenerationDefaults(Part):
    """How to decode where a request leaves it open; ``jumok_serve.search.options`` says what each field means.

    Lengths count new tokens, EOS included. ``sample`` draws tokens at random, which excludes a beam.
    """

    beam_size: Annotated[int, Field(ge=1, le=64)] = 1
    num_hypotheses: Positive = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    min_length: Count = 0
    max_length: Positive
    no_repeat_ngram_size: Count = 0
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0
    begin_suppress_tokens: tuple[TokenId, ...] = ()
    bad_words: tuple[Annotated[tuple[TokenId, ...], Field(min_length=1)], ...] = ()
    forced_first_token: TokenId | None = None
    forced_last_tokens: tuple[TokenId, ...] = ()
    renormalize: bool = False
    sample: bool = False
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Count = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        if self.sample and self.beam_size > 1:
            raise ValueError(f"sample excludes a beam, and beam_size is {self.beam_size}")
        if self.num_hypotheses > self.beam_size and not self.sample:
            raise ValueError(f"num_hypotheses {self.num_hypotheses} is more than beam_size {self.beam_size}")
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is more than max_length {self.max_length}")
        return self


DType: TypeAlias = Literal["float32", "float16", "int64", "int32", "int8", "uint8", "bool"]


class TensorSpec(Part):
    """A graph's input or output: name, element type, and for each axis a symbol (``B``) or its constant size.

    An axis is 0 where there is nothing to tell: recurrent models have no layer of self-attention.
    """

    name: Annotated[str, StringConstraints(min_length=1)]
    dtype: DType
    axes: tuple[Count | Symbol, ...]


class GraphSpec(Part):
    """One ONNX graph: its file and the tensors that go in and come out."""

    file: RelativePath
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def for_device(self) -> bool:
        """Whether it is a decoder that is bound in a device's own memory."""
        return any(spec.name == DEVICE_INPUT for spec in self.inputs)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for role, specs in (("input", self.inputs), ("output", self.outputs)):
            repeated = [name for name, count in Counter(spec.name for spec in specs).items() if count > 1]
            if repeated:
                raise ValueError(f"{role} {repeated[0]!r} is listed more than once")
        return self


class PrecisionVariant(Part):
    """The graphs of one precision and the weights file that they share."""

    graphs: dict[str, GraphSpec]
    weights: RelativePath

    @property
    def files(self) -> tuple[str, ...]:
        """The graphs' files and the weights, each once."""
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
        lacking = [name for name in needed if name not in self.graphs]
        if lacking and len(lacking) < len(needed):
            raise ValueError(f"graph {lacking[0]!r} is missing; a shortlist needs {', '.join(needed)}")
        if any(name in self.graphs for name in NATIVE_GRAPHS):
            needed = ("decoder_native", *(["decoder_shortlist_native"] if self.listed else []))
            lacking = [name for name in needed if name not in self.graphs]
            if lacking:
                raise ValueError(f"graph {lacking[0]!r} is missing; native operators need {', '.join(needed)}")
        return self

    @property
    def for_devices(self) -> bool:
        """Whether all graphs are for devices, which have no use for a shortlist."""
        return self.graphs["decoder"].for_device

    @property
    def native(self) -> bool:
        """Whether there are graphs in native operators."""
        return "decoder_native" in self.graphs

    @property
    def listed(self) -> bool:
        """Whether there are graphs for a shortlist."""
        return "projection" in self.graphs


class ShortlistDescription(Part):
    """The target tokens that texts of one direction may use; see `jumok_serve.bundle.shortlist`.

    ``best`` is how many target tokens each source token lists at most, ``frequent`` how many of the most frequent ones
    are in every list, and ``lexicon`` says where their probabilities come from.
    """

    file: RelativePath
    source: LanguageTag
    target: LanguageTag
    best: Positive
    frequent: Count
    lexicon: str


class Check(Part):
    """One verified property: how many cases were tried, the worst of them, and the limit it had to keep."""

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
    """What was compared between PyTorch and ONNX Runtime for one precision."""

    checks: Annotated[tuple[Check, ...], Field(min_length=1)]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


class Score(Part):
    """A translation quality score with what is needed to reproduce it."""

    metric: Annotated[str, StringConstraints(min_length=1)]
    value: float
    signature: str
    dataset: str
    precision: Name
    beam_size: Positive


class TrainingData(Part):
    """The text a model was trained on: a description and the SHA-256 of each file by its name."""

    description: str
    files: dict[str, Sha256] = Field(default_factory=dict)


class SourceCheckpoint(Part):
    """The checkpoint that a model was imported from: its folder's name, and the SHA-256 of each weights file by name.

    ``transformers_version`` is the one that wrote it, if it says so.
    """

    name: str
    weights: dict[str, Sha256]
    transformers_version: str | None = None


class Provenance(Part):
    """How the bundle was made: when, by which command, with which packages, from which data and configuration."""

    created: AwareDatetime
    command: str
    versions: dict[str, str] = Field(default_factory=dict)
    training_data: TrainingData | None = None
    checkpoint: SourceCheckpoint | None = None
    configuration: str = ""
    notes: str = ""


class FileEntry(Part):
    """Size in bytes and SHA-256 of a file."""

    size: Count
    sha256: Sha256


class ManifestDraft(Part):
    """The manifest before its files are measured: what an exporter fills in."""

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
    verification: dict[Name, VerificationReport] = Field(default_factory=dict)
    scores: tuple[Score, ...] = ()
    provenance: Provenance

    @property
    def named_files(self) -> dict[str, str]:
        """Every file that a part of the manifest names, and which part that is."""
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
            f"{role}: {token} lies beyond the {side} vocabulary of {size}"
            for side, size, roles in (("target", target, of_target), ("source", source, of_source))
            for role, ids in roles.items()
            for token in ids
            if token is not None and token >= size
        ]
        if tokens.pad >= source:
            problems.append(f"special_tokens.pad: {tokens.pad} lies beyond the source vocabulary of {source}")
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
            problems.append(f"languages: {around} tokens around a text leave no room in max_source_length {limit}")
        return problems

    def _shortlist_problems(self) -> list[str]:
        described = self.shortlist
        if described is None:
            wrong, problems = "there are graphs for a shortlist, and there is none", []
        else:
            wrong = "graph 'projection' is missing, which a bundle with a shortlist has"
            problems = [
                f"shortlist: {source} to {target} is none of the model's pairs"
                for source, target in [(described.source, described.target)]
                if (source, target) not in self.languages.all_pairs
            ]
        return problems + [
            f"precisions.{precision}.graphs: {wrong}"
            for precision, variant in self.precisions.items()
            if variant.listed != (described is not None) and not variant.for_devices
        ]

    def _reference_problems(self) -> list[str]:
        known = ", ".join(self.precisions)
        return [
            f"verification: {precision!r} is none of the bundle's precisions ({known})"
            for precision in self.verification
            if precision not in self.precisions
        ]


class Manifest(ManifestDraft):
    """The whole of ``manifest.json``."""

    files: dict[RelativePath, FileEntry]

    def _problems(self) -> list[str]:
        return super()._problems() + [
            f"{part}: {file!r} is not among the files"
            for file, part in self.named_files.items()
            if file not in self.files
        ]
