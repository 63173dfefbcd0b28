"""Saturating int8 products: detection, and translations that do not change with unsigned weights."""

from base64 import b64decode
from pathlib import Path

import numpy as np
import onnx
import pytest

from jumok_export.graphs.graph import with_inner
from jumok_serve import Translator
from jumok_serve.runtime import graphs as graphs_module
from jumok_serve.runtime.sessions import PROBE, products_saturate

MODELS = Path(__file__).parents[3] / "models"


def test_the_processor_is_probed_once_by_one_int8_product() -> None:
    (node,) = onnx.load_from_string(b64decode(PROBE)).graph.node
    assert (node.op_type, node.domain) == ("MatMulIntegerToFloat", "com.microsoft")
    assert products_saturate() in {True, False}
    assert products_saturate.cache_info().misses == 1


@pytest.mark.parametrize(
    ("model", "shortlist"),
    [
        ("tiny_bundle", False),
        pytest.param(
            "listed_bundle", True, marks=pytest.mark.skipif(products_saturate(), reason="signed products are cut off")
        ),
    ],
)
def test_translations_are_the_same_with_the_weights_made_unsigned(
    model: str,
    shortlist: bool,
    request: pytest.FixtureRequest,
    sentences: tuple[list[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = []
    for saturates in (False, True):
        monkeypatch.setattr(graphs_module, "products_saturate", lambda saturates=saturates: saturates)
        bundle: Path = request.getfixturevalue(model)
        with Translator(bundle, precision="int8", threads=1, shortlist=shortlist) as translator:
            outcomes.append([each.hypotheses[0] for each in translator.translate(sentences[0], beam_size=2)])
    for signed, unsigned in zip(*outcomes, strict=True):
        assert signed.token_ids == unsigned.token_ids
        np.testing.assert_allclose(signed.score, unsigned.score, atol=1e-5)


@pytest.mark.parametrize("name", ["multi30k-en-de-transformer", "multi30k-en-de-lstm", "recurrent_bundle"])
def test_weights_lie_in_the_graphs_of_their_products(name: str, request: pytest.FixtureRequest) -> None:
    """ONNX Runtime converts no other weights to unsigned: none that a loop reads from the graph around it."""
    path = request.getfixturevalue(name) if name == "recurrent_bundle" else MODELS / name
    products = 0
    for file in (path / "int8").glob("*.onnx"):
        for graph in with_inner(onnx.load(file, load_external_data=False).graph):
            own = {tensor.name for tensor in graph.initializer}
            turned = {node.output[0] for node in graph.node if node.op_type == "Transpose" and node.input[0] in own}
            read = {node.input[1] for node in graph.node if node.op_type == "MatMulIntegerToFloat"}
            assert read <= own | turned, file
            products += len(read)
    assert products > 10
