"""Sessions: graphs that differ from the manifest are refused, and selection is what its formula says."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime import OrtValue

from jumok_serve import BundleError, Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.native import library
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.step_inputs import SelectionParameters
from jumok_serve.search import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Draw, Entries

ENCODER = f"fp32/encoder{'_native' if library() else ''}.onnx"
DECODER = f"fp32/decoder{'_native' if library() else ''}.onnx"
"""Those that are loaded here."""


@pytest.fixture(scope="module")
def graphs(tiny_bundle: Path) -> Graphs:
    return Graphs(Bundle.open(tiny_bundle), "fp32", device=CPU, threads=1)


@pytest.fixture
def forge(tiny_bundle: Path, tmp_path: Path) -> Callable[[str, Callable[[onnx.ModelProto], None]], Path]:
    """Changes a graph of a copied bundle, and the manifest's size and hash of it, so that only the graph is wrong."""

    def change(file: str, edit: Callable[[onnx.ModelProto], None]) -> Path:
        path = tmp_path / "forged"
        if not path.exists():
            shutil.copytree(tiny_bundle, path)
        model = onnx.load(path / file, load_external_data=False)
        edit(model)
        content = model.SerializeToString()
        (path / file).write_bytes(content)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["files"][file] = {"size": len(content), "sha256": _sha256(content)}
        (path / "manifest.json").write_text(json.dumps(manifest))
        return path

    return change


def _sha256(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def rename_output(old: str, new: str) -> Callable[[onnx.ModelProto], None]:
    def edit(model: onnx.ModelProto) -> None:
        for value in model.graph.output:
            if value.name == old:
                value.name = new
        for node in model.graph.node:
            node.output[:] = [new if name == old else name for name in node.output]

    return edit


def test_wrong_tensor_names_are_all_reported(forge: Callable[..., Path]) -> None:
    forge(ENCODER, rename_output("memory.key.0", "memory.keys"))
    path = forge(DECODER, rename_output("totals", "total"))
    with pytest.raises(BundleError) as refused:
        Translator(path, precision="fp32")
    problems = "\n".join(refused.value.problems)
    assert f"{ENCODER}: output 'memory.key.0' is missing" in problems
    assert f"{DECODER}: output 'totals' is missing" in problems
    with Translator(path, precision="int8", threads=1) as translator:
        assert translator.precision == "int8"


def test_a_graph_that_is_none_is_reported(forge: Callable[..., Path]) -> None:
    path = forge(DECODER, lambda model: model.graph.node[0].ClearField("output"))
    with pytest.raises(BundleError, match=f"{re.escape(DECODER)}: ONNX Runtime cannot load it"):
        Translator(path, precision="fp32")


def select(
    graphs: Graphs,
    logits: np.ndarray,
    scores: np.ndarray,
    count: int,
    on_logits: Constraints = NO_CONSTRAINTS,
    on_log_probs: Constraints = NO_CONSTRAINTS,
) -> tuple[np.ndarray, np.ndarray]:
    selection = SelectionParameters(scores=scores, candidates=count, on_logits=on_logits, on_log_probs=on_log_probs)
    return graphs.select(OrtValue.ortvalue_from_numpy(logits), selection)


def entries(*values: tuple[int, int, float]) -> Entries:
    places = np.array([value[:2] for value in values], np.int64).reshape(-1, 2)
    return Entries(places, np.array([value[2] for value in values], np.float32))


def apply(scores: np.ndarray, constraints: Constraints) -> None:
    for (row, token), factor in zip(*constraints.factors, strict=True):
        scores[row, token] *= factor if scores[row, token] < 0 else 1 / factor
    for (row, token), added in zip(*constraints.biases, strict=True):
        scores[row, token] += added


def test_selection_is_log_softmax_constraints_and_top_k(graphs: Graphs, tiny_bundle: Path) -> None:
    vocabulary = Bundle.open(tiny_bundle).tokenizer.vocab_size
    random = np.random.default_rng(4)
    logits = random.standard_normal((6, vocabulary), np.float32) * 5
    scores = random.standard_normal(6, np.float32)
    before = Constraints(
        entries((0, 1, 2.0), (3, 7, 0.5)), entries((0, 3, -np.inf), (0, 3, -np.inf), (2, 5, 4.0), (5, 0, -1.5))
    )
    after = Constraints(entries((1, 4, 0.25), (5, 2, 3.0)), entries((1, 2, -np.inf), (2, 5, 0.25), (4, 9, -2.0)))
    tokens, totals = select(graphs, logits, scores, 7, on_logits=before, on_log_probs=after)
    expected = logits.astype(np.float64)
    apply(expected, before)
    expected -= np.logaddexp.reduce(expected, axis=1, keepdims=True)
    apply(expected, after)
    order = np.argsort(-expected, axis=1, kind="stable")[:, :7]
    np.testing.assert_array_equal(tokens, order)
    np.testing.assert_allclose(totals, np.take_along_axis(expected, order, axis=1) + scores[:, None], atol=1e-5)


def test_rows_that_ask_for_it_are_renormalized(graphs: Graphs, tiny_bundle: Path) -> None:
    vocabulary = Bundle.open(tiny_bundle).tokenizer.vocab_size
    logits = np.random.default_rng(6).standard_normal((2, vocabulary), np.float32)
    after = Constraints(NO_ENTRIES, entries(*((row, token, -np.inf) for row in (0, 1) for token in range(100))))
    selection = SelectionParameters(
        scores=np.zeros(2, np.float32),
        candidates=vocabulary,
        on_log_probs=after,
        renormalize=np.array([True, False]),
    )
    _, totals = graphs.select(OrtValue.ortvalue_from_numpy(logits), selection)
    probabilities = np.exp(logits.astype(np.float64))
    left = probabilities[:, 100:].sum(axis=1) / probabilities.sum(axis=1)
    np.testing.assert_allclose(np.exp(totals.astype(np.float64)).sum(axis=1), [1.0, left[1]], atol=1e-5)


def test_equal_candidates_go_by_lower_token_id(graphs: Graphs, tiny_bundle: Path) -> None:
    vocabulary = Bundle.open(tiny_bundle).tokenizer.vocab_size
    logits = np.zeros((2, vocabulary), np.float32)
    logits[1, [7, 11, 40]] = 3.0
    tokens, _ = select(graphs, logits, np.zeros(2, np.float32), 5)
    assert tokens.tolist() == [[0, 1, 2, 3, 4], [7, 11, 40, 0, 1]]


def test_no_more_candidates_than_tokens(graphs: Graphs, tiny_bundle: Path) -> None:
    vocabulary = Bundle.open(tiny_bundle).tokenizer.vocab_size
    logits = np.arange(vocabulary, dtype=np.float32)[None]
    tokens, totals = select(graphs, logits, np.zeros(1, np.float32), 10 * vocabulary)
    assert tokens[0].tolist() == list(reversed(range(vocabulary)))
    assert np.exp(totals.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("temperature", "top_p"), [(1e-300, 1.0), (1e-30, 1.0), (1.0, 1e-300), (1e-8, 0.5)])
def test_what_is_next_to_nothing_draws_the_best(
    graphs: Graphs, tiny_bundle: Path, temperature: float, top_p: float
) -> None:
    vocabulary = Bundle.open(tiny_bundle).tokenizer.vocab_size
    logits = np.random.default_rng(8).standard_normal((3, vocabulary), np.float32) * 30
    draws = [Draw(temperature, 0, top_p, uniform) for uniform in (0.0, 0.5, 1 - 2**-53)]
    tokens, totals = graphs.sample(OrtValue.ortvalue_from_numpy(logits), np.arange(3), np.zeros(3, np.float32), draws)
    assert tokens[:, 0].tolist() == logits.argmax(axis=1).tolist()
    np.testing.assert_allclose(totals, 0.0, atol=1e-6)


def test_temperatures_beyond_a_floats_range_draw_evenly_from_what_is_left(graphs: Graphs, tiny_bundle: Path) -> None:
    vocabulary = Bundle.open(tiny_bundle).tokenizer.vocab_size
    logits = np.random.default_rng(9).standard_normal((1, vocabulary), np.float32)
    barred = np.array([[0, 0], [0, 1]])
    constraints = Constraints(NO_ENTRIES, Entries(barred, np.full(2, -np.inf, np.float32)))
    tokens, totals = graphs.sample(
        OrtValue.ortvalue_from_numpy(logits),
        np.array([0]),
        np.zeros(1, np.float32),
        [Draw(1e300, 0, 1.0, 0.5)],
        constraints,
    )
    assert abs(int(tokens[0, 0]) - (2 + (vocabulary - 2) / 2)) <= 1
    np.testing.assert_allclose(totals, -np.log(vocabulary - 2), rtol=1e-5)


def test_score_and_align_agree_with_decoding(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        suffix = translator.manifest.languages.direction().source_suffix
        source = [*translator.tokenizer.encode("a man in a red hat"), *suffix]
        best = translator.translate("a man in a red hat", beam_size=1).hypotheses[0]
        targets = np.array([best.token_ids])
        start = np.array([translator.manifest.special_tokens.start])
        arguments = (np.array([source]), np.array([len(source)]), start, targets, np.array([targets.shape[1]]))
        # A greedy token score is taken after suppression, which can only raise it.
        scores = translator._graphs.score(*arguments)[0]
        assert np.all(scores <= np.array(best.token_scores) + 1e-4)
        cross, encoder, decoder = translator._graphs.align(*arguments)
        assert cross.shape[-2:] == (targets.shape[1], len(source))
        for attention in (cross, encoder, decoder):
            np.testing.assert_allclose(attention.sum(axis=-1), 1.0, atol=1e-5)
        np.testing.assert_array_equal(np.triu(decoder[0, 0, 0], 1), 0.0)
        for found, expected in zip(
            translator._graphs.attention(("decoder", "cross"), *arguments), (decoder, cross), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
