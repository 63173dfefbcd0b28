"""Native embeddings with positions: decoders that are fused, and those that are not."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jumok_export.graphs.graph import Graph
from jumok_export.native.graphs import native_graph
from jumok_serve.manifest.manifest import TensorSpec
from tests.support.models.native_operators import needs_library
from tests.support.models.small_graphs import native_of, node, operators, outputs_of, small_graph

WIDTH, WORDS, PLACES = 12, 30, 9
RANDOM = np.random.default_rng(6)
CONSTANTS: dict[str, NDArray[Any]] = {
    "levels": RANDOM.integers(-127, 128, (WORDS, WIDTH)).astype(np.int8),
    "scales": RANDOM.uniform(0.01, 0.1, WORDS).astype(np.float32),
    "table": RANDOM.normal(size=(WORDS, WIDTH)).astype(np.float32),
    "places": RANDOM.normal(size=(PLACES, WIDTH)).astype(np.float32),
    "factor": np.array(3.5, np.float32),
    "rest": np.array([-1]),
    "last": np.array([-1]),
    "scale": np.array(0.05, np.float32),
    "zero_point": np.array(120, np.uint8),
}
Nodes = list[tuple[str, str, str, dict[str, Any]]]
FLOATS: Nodes = [("Gather", "table {}", "words", {}), ("Mul", "words factor", "embedded", {})]
IN_INT8: Nodes = [
    ("Gather", "levels {}", "bytes", {}),
    ("Cast", "bytes", "floats", {"to": 1}),
    ("Unsqueeze", "scales last", "columns", {}),
    ("Gather", "columns {}", "sizes", {}),
    ("Mul", "floats sizes", "rows", {}),
    ("Mul", "rows factor", "embedded", {}),
]
GROUPED: Nodes = [
    ("Shape", "memory.key", "batch", {"start": 0, "end": 1}),
    ("Concat", "batch rest", "shape", {"axis": 0}),
    ("Reshape", "token_ids shape", "grouped_tokens", {}),
    ("Reshape", "positions shape", "grouped_positions", {}),
]
SUM: Nodes = [("Gather", "places {}", "position", {}), ("Add", "embedded position", "total", {})]
QUANTIZED: Nodes = [
    ("QuantizeLinear", "total scale zero_point", "levels_out", {}),
    ("DequantizeLinear", "levels_out scale zero_point", "again", {}),
]


def graph_of(embedding: Nodes, *, grouped: bool, quantized: bool, total: Nodes = SUM) -> Graph:
    """A graph that embeds tokens and adds positions."""
    tokens, positions = ("grouped_tokens", "grouped_positions") if grouped else ("token_ids", "positions")
    parts = ((GROUPED if grouped else [], ""), (embedding, tokens), (total, positions))
    nodes = [
        node(operator, inputs.format(name), output, **attributes)
        for part, name in (*parts, (QUANTIZED if quantized else [], ""))
        for operator, inputs, output, attributes in part
    ]
    rows: tuple[str | int, ...] = ("R",) if grouped else ("B", 2)
    given = (
        *(TensorSpec(name=name, dtype="int64", axes=rows) for name in ("token_ids", "positions")),
        *([TensorSpec(name="memory.key", dtype="float32", axes=("B", "S", WIDTH))] if grouped else []),
    )
    names = ("total", *["again"] * quantized)
    made = tuple(TensorSpec(name=name, dtype="float32", axes=("B", 2, WIDTH)) for name in names)
    read = {name for each in nodes for name in each.input}
    return small_graph(nodes, {name: array for name, array in CONSTANTS.items() if name in read}, given, made)


def outputs(graph: Graph, *, grouped: bool, last: int = PLACES - 1) -> list[Any]:
    """Run a graph for three sentences of two rows."""
    shape = (6,) if grouped else (3, 2)
    feeds = {
        "token_ids": np.array([3, 0, 29, 7, 3, 11]).reshape(shape),
        "positions": np.array([0, 0, 4, 4, last, 1]).reshape(shape),
        **({"memory.key": np.zeros((3, 5, WIDTH), np.float32)} if grouped else {}),
    }
    return outputs_of(graph, feeds)


@needs_library
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("embedding", "kind"), [(FLOATS, "Float"), (IN_INT8, "Int8")], ids=["fp32", "int8"])
def test_embeddings_are_one_operator(embedding: Nodes, kind: str, grouped: bool, quantized: bool, turned: bool) -> None:
    total = [SUM[0], ("Add", "position embedded", "total", {})] if turned else SUM
    plain = graph_of(embedding, grouped=grouped, quantized=quantized, total=total)
    if kind == "Float" and grouped:  # fp32 tables are replaced for a graph's inputs alone
        assert native_graph(plain) is None
        return
    native = native_of(plain)
    expected = [f"{kind}Embedding{'Quantized' * quantized}", *["DequantizeLinear"] * quantized]
    assert operators(native) == expected
    for found, one in zip(outputs(native, grouped=grouped), outputs(plain, grouped=grouped), strict=True):
        np.testing.assert_array_equal(found, one)
    with pytest.raises(Exception, match="a position outside of the table of positions"):
        outputs(native, grouped=grouped, last=PLACES)


def test_other_sums_stay() -> None:
    """A difference, and a sum with twice the position."""
    difference: Nodes = [("Sub", "embedded position", "total", {})]
    twice: Nodes = [("Add", "embedded position", "once", {}), ("Add", "once position", "total", {})]
    for others in (difference, twice):
        names = operators(native_of(graph_of(IN_INT8, grouped=False, quantized=False, total=[SUM[0], *others])))
        assert names == ["Int8Embedding", "Gather", *(operator for operator, *_ in others)]
