"""The decoder step benchmark on tiny models, and the products it reads from graphs."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from benchmarks.step_tools.weight_products import (
    IN_FP32,
    IN_INT8,
    NATIVE,
    ProductSession,
    WeightProduct,
    product_graphs,
    weight_products,
)
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.native import library
from tests.support.hang import HANG_S

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    settings = ["--rounds", "2", "--steps", "3", "--threads", "1"]
    command = [sys.executable, "-m", "benchmarks.step", *settings, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_compares_the_steps_of_a_bundle_with_their_products(tiny_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    printed = run("--bundle", str(tiny_bundle), "--cases", "1x1", "2x3", "--json", str(file))
    results = json.loads(file.read_text(encoding="utf-8"))
    settings = [(result["precision"], result["sentences"], result["beam_size"]) for result in results]
    assert settings == [("int8", 1, 1), ("int8", 2, 3), ("fp32", 1, 1), ("fp32", 2, 3)]
    for result in results:
        kernels = IN_INT8 if result["precision"] == "int8" else IN_FP32
        of_runtime = {name: result["kernels_ms"].pop(name) for name in kernels}
        assert result["products_ms"] == min(of_runtime.values()) == of_runtime[result["kernel"]]
        own = result["precision"] == "int8" and library() is not None
        assert (result["own_products_ms"] is not None) == (result["ratio_to_own"] is not None) == own
        assert result["kernels_ms"] == ({NATIVE: result["own_products_ms"]} if own else {})
        assert 0 < result["lowest_ratio"] <= result["ratio"] <= result["highest_ratio"]
        assert sum(result["shares"].values()) == pytest.approx(100, abs=0.1)
        selection = "decoder: Select" if library() else "decoder: LogSoftmax"
        assert {"weight products", selection, "between operators", "outside the graphs"} <= {*result["shares"]}
        assert f"{result['ratio']:.2f} (" in printed
        assert result["reads_ms"] > 0
        assert result["ratio_with_reads"] > 0
    assert "2 x 3" in printed


def test_it_makes_a_model_of_its_own(tmp_path: Path) -> None:
    sizes = ["--layers", "1", "--width", "16", "--feed-forward", "24", "--vocabulary", "90"]
    printed = run(*sizes, "--cases", "1x2", "--precisions", "int8")
    assert "int8, 1 x 2: " in printed


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_products_are_those_of_the_decoder(tiny_bundle: Path, precision: str) -> None:
    bundle = Bundle.open(tiny_bundle)
    decoder = onnx.load(bundle.path / bundle.variant(precision).graphs["decoder"].file, load_external_data=False)
    products = weight_products(decoder)
    width, inner, layers, vocabulary = 32, 64, 1, bundle.tokenizer.vocab_size
    assert {product.quantized for product in products} == {precision == "int8"}
    work = sum(product.inner * product.outer for product in products)
    # Four projections of self-attention, two of cross-attention for the target's side, and two of the hidden layer.
    assert work == layers * (6 * width * width + 2 * width * inner) + width * vocabulary
    assert (products[-1].inner, products[-1].outer) == (width, vocabulary)


def test_products_may_be_written_in_many_ways() -> None:
    """Each kernel's graph has its original products."""
    products = [WeightProduct(256, 5, quantized=True), WeightProduct(3, 4, quantized=False)]
    for model in product_graphs(products).values():
        assert weight_products(model) == products
    for model in product_graphs(products[1:]).values():
        assert weight_products(model) == products[1:]


def test_products_run_with_any_number_of_rows() -> None:
    for quantized in (True, False):
        for model in product_graphs([WeightProduct(256, 5, quantized), WeightProduct(8, 3, quantized)]).values():
            session = ProductSession(model, 1)
            for rows in (1, 6):
                session.bound(rows)()
