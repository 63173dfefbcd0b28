"""Choice of a precision's graphs by role, target and shortlist."""

import pytest

from jumok_serve.manifest.manifest import GraphSpec, PrecisionVariant
from jumok_serve.manifest.parts import GRAPH_VARIANTS, NATIVE_GRAPHS, Target, graphs_by_role, name_for_target

ALL = {name: name for name in GRAPH_VARIANTS}


@pytest.mark.parametrize(
    ("target", "shortlist", "encoder", "decoder", "sampler"),
    [
        ("cpu", False, "encoder", "decoder", "sampler"),
        ("cpu", True, "encoder", "decoder_shortlist", "sampler_shortlist"),
        ("native", False, "encoder_native", "decoder_native", "sampler"),
        ("native", True, "encoder_native", "decoder_shortlist_native", "sampler_shortlist"),
        ("device", False, "encoder_device", "decoder_device", "sampler_device"),
    ],
)
def test_each_role_has_the_graph_for_the_target(
    target: Target, shortlist: bool, encoder: str, decoder: str, sampler: str
) -> None:
    chosen = graphs_by_role(ALL, target, shortlist=shortlist)
    assert (chosen["encoder"], chosen["decoder"], chosen["sampler"]) == (encoder, decoder, sampler)
    weights = "projection_native" if target == "native" else "projection"
    assert chosen.get("projection") == (weights if shortlist else None)
    assert ("memory_grow" in chosen) == (target == "device")


def test_missing_graphs_are_replaced_by_those_for_the_cpu() -> None:
    plain = {name: name for name in ("encoder", "decoder", "sampler", "memory_grow", "memory_write")}
    assert graphs_by_role(plain, "device", shortlist=False) == plain  # as in fp16
    assert graphs_by_role(plain, "native", shortlist=False)["decoder"] == "decoder"


def test_names_follow_from_the_target() -> None:
    assert name_for_target("decoder_shortlist", "native") == "decoder_shortlist_native"
    assert name_for_target("sampler", "device") == "sampler_device"
    assert NATIVE_GRAPHS == ("encoder_native", "decoder_native", "projection_native", "decoder_shortlist_native")


def test_the_selection_of_older_bundles_is_ignored() -> None:
    graph = GraphSpec(file="graph.onnx", inputs=(), outputs=())
    graphs = dict.fromkeys(("encoder", "decoder", "select"), graph)
    assert PrecisionVariant(graphs=graphs, weights="weights.bin").graphs.keys() == graphs.keys()
    assert graphs_by_role(graphs, "cpu", shortlist=False).keys() == {"encoder", "decoder"}
