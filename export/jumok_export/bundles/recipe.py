"""The table of a bundle's graphs: which passes make which graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

from jumok_export.device.attention import with_plain_attention
from jumok_export.device.fp16 import half_graph
from jumok_export.device.selection import device_sampler_graph, device_select_graph
from jumok_export.device.slots import grow_graph, write_graph
from jumok_export.graphs.fuse_selection import fuse_selection
from jumok_export.graphs.graph import Graph, logits_width
from jumok_export.graphs.scan import with_one_pass
from jumok_export.graphs.selection import sampler_graph, select_graph
from jumok_export.graphs.shortlist_decoder import split_projection
from jumok_export.graphs.storage import WeightsFile, write_graphs
from jumok_export.native.graphs import native_graphs
from jumok_serve.manifest.manifest import PrecisionVariant, TensorSpec
from jumok_serve.manifest.parts import GRAPH_VARIANTS, Target, name_for_target
from jumok_serve.native import library

Pass: TypeAlias = Callable[[Graph], Graph | None]
"""Makes a graph from another; None if the model has no such graph."""


@dataclass(frozen=True)
class Recipe:
    """A graph's source, by role, and the passes that make the graph."""

    source: Literal["encoder", "decoder", "scorer", "aligner", "projection"]
    passes: tuple[Pass, ...] = ()


def _select(decoder: Graph) -> Graph:
    return fuse_selection(decoder, select_graph(logits_width(decoder)))


def _select_on_device(decoder: Graph) -> Graph:
    return fuse_selection(decoder, device_select_graph(_vocabulary(decoder)))


def _sampler(decoder: Graph) -> Graph:
    return sampler_graph(logits_width(decoder))


def _device_sampler(decoder: Graph) -> Graph:
    return device_sampler_graph(_vocabulary(decoder))


def _vocabulary(decoder: Graph) -> int:
    width = logits_width(decoder)
    assert width is not None
    return width


def _memory_slots(make: Callable[[Sequence[TensorSpec], str], Graph], decoder: Graph) -> Graph | None:
    specs = [spec for spec in decoder.inputs if spec.name.startswith("memory.")]
    return make(specs, "S") if specs else None


def _state_slots(make: Callable[[Sequence[TensorSpec], str], Graph], decoder: Graph) -> Graph | None:
    """Make a graph for the state of an in-place decoder.

    Other decoders return a new state.
    """
    specs = [spec for spec in decoder.inputs if spec.name.startswith("state.")]
    in_place = any(spec.name == "visible" for spec in decoder.inputs)
    return make(specs, "E") if specs and in_place else None


RECIPES: Final[dict[str, Recipe]] = {
    # First, so that its matrix is stored as it is; other graphs transpose it once, when loaded.
    "projection": Recipe("projection"),
    "encoder": Recipe("encoder"),
    "decoder": Recipe("decoder", (_select,)),
    "decoder_shortlist": Recipe("decoder", (_select,)),
    "sampler": Recipe("decoder", (_sampler,)),
    "sampler_shortlist": Recipe("decoder", (_sampler,)),
    "scorer": Recipe("scorer"),
    "aligner": Recipe("aligner"),
    "encoder_device": Recipe("encoder", (with_plain_attention,)),
    "decoder_device": Recipe("decoder", (with_plain_attention, _select_on_device)),
    "sampler_device": Recipe("decoder", (_device_sampler,)),
    "memory_grow": Recipe("decoder", (partial(_memory_slots, grow_graph),)),
    "memory_write": Recipe("decoder", (partial(_memory_slots, write_graph),)),
    "state_grow": Recipe("decoder", (partial(_state_slots, grow_graph),)),
    "state_write": Recipe("decoder", (partial(_state_slots, write_graph),)),
}
"""The graphs by their names in `GRAPH_VARIANTS`, in the order in which they are written.

Native graphs are made from the finished ones for the CPU, together: all with an int8 cache, or none.
"""
NATIVE_SOURCES: Final = ("encoder", "decoder", "decoder_shortlist", "projection")
ANY_TARGET: Final = ("scorer", "aligner")
"""Roles that every target has: they run once per sentence."""


def make_graphs(
    sources: Mapping[str, Graph], targets: tuple[Target, ...], *, shortlist: bool = False
) -> dict[str, Graph]:
    """Make the graphs of a precision by name, except native ones.

    Args:
        sources: `encoder` and `decoder`, and `scorer` and `aligner` if the model has them, in the precision.
        targets: targets of the graphs; without the CPU, device graphs have the names of CPU graphs.
        shortlist: True to make the graphs for shortlists too.

    Raises:
        ValueError: the model cannot have a shortlist.
    """
    whole = with_one_pass(sources)
    by_shortlist = {False: whole}
    if shortlist:
        projection, decoder = split_projection(whole["decoder"])
        by_shortlist[True] = {"projection": projection, "decoder": decoder}
    graphs: dict[str, Graph] = {}
    for name, recipe in RECIPES.items():
        variant = GRAPH_VARIANTS[name]
        if variant.target not in targets and variant.role not in ANY_TARGET:
            continue
        graph = by_shortlist.get(variant.shortlist, {}).get(recipe.source)
        for apply in recipe.passes:
            graph = None if graph is None else apply(graph)
        if graph is not None:
            graphs[name if "cpu" in targets else variant.role] = graph
    return graphs


def make_native_graphs(graphs: Mapping[str, Graph], precision: str) -> dict[str, Graph]:
    """Make native forms of finished CPU graphs, by name.

    Empty if nothing would be replaced.

    Keys and values are kept in int8 if the precision is "int8".
    """
    finished = {name: graphs[name] for name in NATIVE_SOURCES if name in graphs}
    made = native_graphs(finished, int8_cache=precision == "int8")
    return {name_for_target(name, "native"): graph for name, graph in made.items()}


def half_sources(sources: Mapping[str, Graph]) -> dict[str, Graph]:
    """The sources of a precision in fp16; logits and scores stay in fp32."""
    return {name: half_graph(with_plain_attention(graph)) for name, graph in sources.items()}


def write_variant(
    sources: Mapping[str, Graph],
    folder: Path,
    precision: str,
    *,
    targets: tuple[Target, ...] = ("cpu",),
    shortlist: bool = False,
    native: bool = True,
    weights: WeightsFile | None = None,
) -> PrecisionVariant:
    """Make and write a precision's graphs into `folder / precision`.

    Args:
        native: True to make native graphs too, if there are kernels.
        weights: see `write_graphs`.

    Returns:
        The precision's entry in the manifest.
    """
    graphs = make_graphs(sources, targets, shortlist=shortlist)
    if native and "cpu" in targets and library() is not None:
        graphs |= make_native_graphs(graphs, precision)
    return write_graphs(graphs, folder, precision, weights)
