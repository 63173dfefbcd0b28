"""The graphs that decode on a device: made of operators that CUDA has, with everything bound in the device's memory."""

from collections.abc import Mapping

from jumok_export.device.attention import with_plain_attention
from jumok_export.device.fp16 import half_graph
from jumok_export.device.selection import device_sampler_graph, device_select_graph
from jumok_export.device.slots import slot_graphs
from jumok_export.graphs.fuse_selection import with_selection_of
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.scan import with_one_pass
from jumok_serve.manifest.graph_variants import name_for_target


def with_device_graphs(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """The graphs of fp32, with those for a device beside them under names of their own; weights are shared."""
    full = with_one_pass(graphs)
    encoder, decoder = with_plain_attention(full["encoder"]), with_plain_attention(full["decoder"])
    made = _made(encoder, decoder)
    return {**full, **{name_for_target(name, "device"): graph for name, graph in made.items()}}


def half_graphs(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """All graphs of a bundle in fp16, which are those for a device: logits and what comes of them are in fp32."""
    half: dict[str, Graph] = {
        name: half_graph(with_plain_attention(graphs[name]))
        for name in ("encoder", "decoder", "scorer", "aligner")
        if name in graphs
    }
    full = with_one_pass(half)
    return {**full, "select": graphs["select"], **_made(full["encoder"], full["decoder"])}


def _made(encoder: Graph, decoder: Graph) -> dict[str, Graph]:
    """The graphs that decoding on a device needs, of an encoder and a decoder in operators that it has."""
    vocabulary = next(spec for spec in decoder.outputs if spec.name == "logits").axes[-1]
    assert isinstance(vocabulary, int)
    memory = [spec for spec in decoder.inputs if spec.name.startswith("memory.")]
    state = [spec for spec in decoder.inputs if spec.name.startswith("state.")]
    in_place = any(spec.name == "visible" for spec in decoder.inputs)
    return {
        "encoder": encoder,
        "decoder": with_selection_of(decoder, device_select_graph(vocabulary)),
        "sampler": device_sampler_graph(vocabulary),
        **slot_graphs("memory", memory, "S"),
        **(slot_graphs("state", state, "E") if in_place else {}),
    }
