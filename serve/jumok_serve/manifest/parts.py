"""Parts of a manifest: strict fields, origins, alignment heads, variants of graphs."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

MANIFEST_FILE: Final = "manifest.json"


def _check_relative_path(path: str) -> str:
    parts = path.split("/")
    if PurePosixPath(path).is_absolute() or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{path!r} is not a plain path inside the bundle such as 'int8/encoder.onnx'")
    if "\\" in path or not path.isprintable():
        raise ValueError(f"{path!r} holds a backslash or an unprintable character")
    if path == MANIFEST_FILE:
        raise ValueError(f"{MANIFEST_FILE} cannot be a file of the bundle: it is the list of files")
    return path


Name: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128)]
RelativePath: TypeAlias = Annotated[str, AfterValidator(_check_relative_path)]
LanguageTag: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")]
Symbol: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
Sha256: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
TokenId: TypeAlias = Annotated[int, Field(ge=0)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """Base of every part of the manifest: immutable, no silent conversion, no unknown field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TrainingData(Part):
    """Training data of a model: description and SHA-256 by file name."""

    description: str
    files: dict[str, Sha256] = Field(default_factory=dict)


class SourceCheckpoint(Part):
    """Imported checkpoint: folder name, and SHA-256 by weights file name.

    ``transformers_version`` is the version that wrote it, and ``commit`` that of its repository, if known.
    """

    name: str
    weights: dict[str, Sha256]
    transformers_version: str | None = None
    commit: str | None = None


class EnsemblePart(Part):
    """One of the bundles of an ensemble; ``manifest_sha256`` is the SHA-256 of its manifest."""

    name: Name
    version: Name
    manifest_sha256: Sha256


class Provenance(Part):
    """Origin of the bundle: time, command, package versions, data and configuration.

    ``parts`` are the bundles of an ensemble; other bundles have none.
    """

    created: AwareDatetime
    command: str
    versions: dict[str, str] = Field(default_factory=dict)
    training_data: TrainingData | None = None
    checkpoint: SourceCheckpoint | None = None
    configuration: str = ""
    notes: str = ""
    parts: tuple[EnsemblePart, ...] = ()


class AttentionHead(Part):
    """A head of cross-attention: decoder layer and head, from 0."""

    layer: Count
    head: Count


class AlignmentHeads(Part):
    """Heads whose mean attention aligns tokens, for tags and for other spans of a text.

    Attributes:
        origin: "guided" if training taught one head to align, "measured" if the best ones were chosen.
        error_rate: share of aligned target tokens whose most attended source token is none of theirs, from 0 to 1; None
            if it was not measured.
        pairs: sentence pairs that it was measured on; None if it was not measured.
    """

    heads: Annotated[tuple[AttentionHead, ...], Field(min_length=1)]
    origin: Literal["guided", "measured"]
    error_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    pairs: Positive | None = None

    def __str__(self) -> str:
        named = ", ".join(f"layer {one.layer} head {one.head}" for one in self.heads)
        measured = ""
        if self.error_rate is not None and self.pairs is not None:
            measured = f"; error rate {100 * self.error_rate:.1f} % on {self.pairs:,} sentence pairs"
        return f"{named} ({self.origin}{measured})"

    def problems(self, aligners: Mapping[str, tuple[int, int] | None]) -> Iterator[str]:
        """Yield heads that a precision does not have.

        Args:
            aligners: numbers of layers and heads of each precision's aligner; None without an aligner.
        """
        for precision, sizes in aligners.items():
            if sizes is None:
                yield f"alignment: precision {precision} has no aligner"
                continue
            layers, heads = sizes
            for one in self.heads:
                if one.layer >= layers or one.head >= heads:
                    yield (
                        f"alignment: precision {precision} has {layers} layers of {heads} heads, and no "
                        f"layer {one.layer} head {one.head}"
                    )


Role: TypeAlias = Literal[
    "encoder",
    "decoder",
    "sampler",
    "projection",
    "scorer",
    "aligner",
    "memory_grow",
    "memory_write",
    "state_grow",
    "state_write",
]
Target: TypeAlias = Literal["cpu", "native", "device"]
"""Operators of a graph: ONNX Runtime's on the CPU, jumok's own too, or those that a device with own memory has."""


class GraphVariant(NamedTuple):
    """One form of a graph.

    Attributes:
        role: the graph's part in decoding.
        target: the operators that the graph needs.
        shortlist: True if logits have columns for the tokens of shortlists only.
    """

    role: Role
    target: Target = "cpu"
    shortlist: bool = False


GRAPH_VARIANTS: Final[dict[str, GraphVariant]] = {
    "encoder": GraphVariant("encoder"),
    "decoder": GraphVariant("decoder"),
    "sampler": GraphVariant("sampler"),
    "scorer": GraphVariant("scorer"),
    "aligner": GraphVariant("aligner"),
    "projection": GraphVariant("projection", shortlist=True),
    "decoder_shortlist": GraphVariant("decoder", shortlist=True),
    "sampler_shortlist": GraphVariant("sampler", shortlist=True),
    "encoder_native": GraphVariant("encoder", "native"),
    "decoder_native": GraphVariant("decoder", "native"),
    "projection_native": GraphVariant("projection", "native", shortlist=True),
    "decoder_shortlist_native": GraphVariant("decoder", "native", shortlist=True),
    "encoder_device": GraphVariant("encoder", "device"),
    "decoder_device": GraphVariant("decoder", "device"),
    "sampler_device": GraphVariant("sampler", "device"),
    "memory_grow": GraphVariant("memory_grow", "device"),
    "memory_write": GraphVariant("memory_write", "device"),
    "state_grow": GraphVariant("state_grow", "device"),
    "state_write": GraphVariant("state_write", "device"),
}
"""The graphs that a precision may have; fp16 has device graphs only, under the CPU graphs' names."""

REQUIRED_GRAPHS: Final = ("encoder", "decoder")
NATIVE_GRAPHS: Final = tuple(name for name, variant in GRAPH_VARIANTS.items() if variant.target == "native")
UNREAD_GRAPHS: Final = ("select", "select_shortlist")
"""Graphs of older bundles, ignored since every decoder contains the selection."""

Graph = TypeVar("Graph")


def name_for_target(name: str, target: Target) -> str:
    """The name of a graph's form for another target: "decoder_shortlist" gives "decoder_shortlist_native"."""
    wanted = GRAPH_VARIANTS[name]._replace(target=target)
    return next(other for other, variant in GRAPH_VARIANTS.items() if variant == wanted)


def graphs_by_role(graphs: Mapping[str, Graph], target: Target, *, shortlist: bool) -> dict[str, Graph]:
    """The graphs to run, by role: the target's, or else the CPU's.

    Args:
        graphs: a precision's graphs by name.
        target: the operators to prefer.
        shortlist: True to prefer graphs for shortlists.
    """
    named = {GRAPH_VARIANTS[name]: graph for name, graph in graphs.items() if name in GRAPH_VARIANTS}
    preferred: tuple[tuple[Target, bool], ...] = (("cpu", False), (target, False))
    if shortlist:
        preferred += (("cpu", True), (target, True))
    return {
        variant.role: graph
        for wanted in preferred  # a later one replaces an earlier one
        for variant, graph in named.items()
        if variant[1:] == wanted
    }
