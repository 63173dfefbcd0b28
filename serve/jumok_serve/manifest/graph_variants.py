"""Names of a precision's graphs: one per role, target and vocabulary."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

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
