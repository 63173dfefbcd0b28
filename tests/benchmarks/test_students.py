"""The benchmark of students: its files are the model, and differences are found at their first token."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from benchmarks.common.models import TRAINED
from benchmarks.student_tools import files
from benchmarks.student_tools.arithmetic import Matrix, StudentArithmetic, saturating_pairs
from benchmarks.student_tools.distillation import EightBitWeights, limited, teach
from benchmarks.student_tools.margins import Margin, common_tokens, first_difference, logits_of
from benchmarks.student_tools.training import SIZES, aligned_pairs, batches, guided_loss, lexicon_of, new_student
from benchmarks.students import Equality, Speed, arithmetic_table, equality_table, speed_table
from jumok_export.graphs.graph import Graph, make_graph
from jumok_export.importers.marian.binary_file import read_binary
from jumok_export.importers.marian.folder import open_folder
from jumok_export.importers.marian.importing import import_marian
from jumok_export.importers.marian.lexical_shortlist import read_shortlist
from jumok_export.importers.marian.model import build_model
from jumok_export.importers.marian.settings import MarianSettings
from jumok_export.native.graphs import native_graph
from jumok_export.quantization.find_matrices import weight_key
from jumok_export.quantization.int8_graphs import quantize_graph
from jumok_export.verification.runtime_side import RuntimeSide
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.native import library
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.tokenizers.tokenizer import SentencePieceTokenizer
from tests.support.checkpoints.marian_folders import vocabulary
from tests.support.checkpoints.marian_models import Student

PAIRS = [([7, 8, 9, 0], [17, 18, 0]), ([8, 0], [18, 0]), ([9, 7, 0], [19, 17, 0])]


@pytest.fixture(scope="module")
def model() -> Student:
    torch.manual_seed(3)
    return Student(64, SIZES).eval()


def test_the_files_of_a_release_are_the_model(model: Student, tmp_path: Path) -> None:
    files.write_release(tmp_path / "ende", model, vocabulary(), PAIRS, PAIRS)
    source, lengths = torch.tensor([[7, 9, 8, 0]]), torch.tensor([4])
    start, target = torch.zeros(1, dtype=torch.int64), torch.tensor([[17, 19, 0]])
    with torch.no_grad():
        expected = model(source, lengths, start, target)
        for folder, error in ((tmp_path / "ende" / "npz", 1e-4), (tmp_path / "ende", 0.1)):
            file, trained = open_folder(folder).read()
            found = build_model(file, MarianSettings(trained), start=0)
            assert found.model(source, lengths, start, target).numpy() == pytest.approx(
                expected.numpy(), abs=error * float(expected.abs().max())
            )
    assert not found.unused
    # Every product has the scale of its activations.
    assert set(found.activation_scales) == {
        name for name, layer in found.model.named_parameters(remove_duplicate=False) if layer.ndim == 2
    } - {"source_embedding.weight", "target_embedding.weight"}
    lists = read_shortlist(tmp_path / "ende" / files.SHORTLIST)
    assert (lists.frequent, lists.best) == (files.FREQUENT, files.BEST)
    assert {17, 18} <= {*lists.targets[lists.offsets[8] : lists.offsets[9]].tolist()}


def test_alphas_are_those_of_the_largest_activations(model: Student) -> None:
    found = files.alphas(model, PAIRS * 8, together=8)
    assert len(found) == 6 * 6 + 2 * 8 + 2
    assert found["Wemb"] == found["none"]
    with torch.no_grad():
        entered = model.embed_source(torch.tensor([[7, 8, 9, 0], [8, 0, 0, 0], [9, 7, 0, 0]]))
    assert found["encoder_l1_self_Wq"] == pytest.approx(127 / float(entered.abs().max()), rel=0.05)


def test_tokens_are_aligned_with_those_that_they_translate() -> None:
    found = aligned_pairs(PAIRS * 9, lexicon_of(PAIRS * 9, 64))
    assert found[0] == ([7, 8, 9, 0], [17, 18, 0], [0, 1, 3])
    assert found[2] == ([9, 7, 0], [19, 17, 0], [0, 1, 2])


def test_the_loss_learns_translations_and_attention() -> None:
    examples = aligned_pairs(PAIRS, lexicon_of(PAIRS * 9, 64))
    torch.manual_seed(1)
    learner = Student(64, {**SIZES, "width": 32, "feed_forward": 64})
    optimizer = torch.optim.Adam(learner.parameters(), 5e-3)
    losses = []
    for _ in range(40):
        loss = guided_loss(learner, examples)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_a_teacher_translates_each_text_once(tmp_path: Path) -> None:
    file, told = tmp_path / "translations", list[str]()
    texts = ["A man in a blue shirt is standing on a ladder.", "Two dogs are running."]
    found = teach(TRAINED, texts, file, told.append)
    assert len(found) == len(texts) == len(set(found))
    assert all(found)
    assert told == ["the teacher translated 2 of 2 texts"]
    assert teach(tmp_path / "nothing", texts, file, told.append) == found


def test_matrices_in_8_bits_keep_what_rounding_takes() -> None:
    layer = torch.nn.Linear(8, 8)
    before = layer.weight.detach().clone()
    weights = EightBitWeights(layer)
    bias = layer.bias.detach().clone()
    weights.round()
    unit = float(before.abs().max()) / 127
    levels = layer.weight.detach() / unit
    assert levels.numpy() == pytest.approx(levels.round().numpy(), abs=1e-3)
    assert torch.equal(layer.bias, bias)
    # Updates of less than half a unit add up.
    place = int(before.abs().argmin())
    with torch.no_grad():
        for _ in range(10):
            layer.weight.view(-1)[place] += unit / 4
            weights.round()
    moved = float(layer.weight.detach().view(-1)[place] - before.view(-1)[place])
    assert moved == pytest.approx(2.5 * unit, abs=0.51 * unit)


def test_values_of_8_bits_are_limited_by_twos() -> None:
    levels = torch.tensor([[127.0, 3, -90, -60, 127, -127, 64, 65], [2, 127, 50, 80, -127, -99, 0, 1]])
    assert limited(levels).tolist() == [[127, 2, -90, -39, 127, -127, 64, 65], [2, 127, 49, 80, -127, -2, 0, 1]]


def test_no_sum_of_matrices_in_8_bits_saturates(tmp_path: Path) -> None:
    torch.manual_seed(5)
    learner = Student(64, {**SIZES, "width": 32, "feed_forward": 64})
    with torch.no_grad():
        for parameter in learner.parameters():
            if parameter.ndim == 2:
                parameter.uniform_(-1, 1)  # many large values
    files.write_release(tmp_path / "before", learner, vocabulary(), PAIRS, PAIRS)
    weights = EightBitWeights(learner)
    for _ in range(50):
        weights.round()
    files.write_release(tmp_path / "after", learner, vocabulary(), PAIRS, PAIRS)
    before, after = (read_binary(tmp_path / name / files.MODEL) for name in ("before", "after"))
    assert saturating_pairs(before) > 1000
    assert saturating_pairs(after) == 0
    # What the limit takes is not added again and again.
    layer = next(parameter for parameter in learner.parameters() if parameter.ndim == 2)
    with torch.no_grad():
        layer.mul_(0.5)
        held = layer.detach().clone()
        weights.round()
    assert float((layer.detach() - held).abs().max()) <= 4 * float(held.abs().max()) / 127


def test_weights_begin_with_few_large_values() -> None:
    student = new_student(vocabulary())
    for name, weight in student.named_parameters():
        if weight.ndim == 2:
            assert float(weight.detach().abs().max() / weight.detach().std()) > 2.5, name


def test_batches_have_every_pair_once() -> None:
    pairs = [([1] * (number % 40 + 1), [2] * (number % 60 + 1), [0] * (number % 60 + 1)) for number in range(900)]
    found = list(batches(pairs, 0))
    assert sorted(pair for batch in found for pair in batch) == sorted(pairs)
    assert max(len(batch) * max(len(side) for pair in batch for side in pair) for batch in found) <= 800
    assert found != list(batches(pairs, 1))


def test_the_first_difference_is_a_token() -> None:
    tokenizer = SentencePieceTokenizer(vocabulary())
    tokens = tokenizer.encode_target("der alte einen")
    assert tokenizer.tokens(tokens) == ["\u2581d", "er", "\u2581alt", "e", "\u2581ein", "en"]
    texts = [tokenizer.decode(tokens[:number]) for number in range(7)]
    assert [common_tokens(tokenizer, tokens, text) for text in texts] == [*range(7)]
    logits = np.zeros((7, tokenizer.vocab_size), np.float32)
    logits[range(6), tokens] = 3.0
    logits[:, 0] = 1.0  # the end
    assert first_difference(tokenizer, 0, logits[:5], tokens, texts[4]) == (4, 2.0)
    logits[4, tokens[4]] = 0.0
    assert first_difference(tokenizer, 0, logits[:5], tokens[:4], texts[6]) == (4, 1.0)


def test_a_text_of_other_pieces_differs_where_another_piece_is_likeliest() -> None:
    tokenizer = SentencePieceTokenizer(vocabulary())
    tokens = tokenizer.encode_target("alte einen")  # \u2581alt e \u2581ein en
    [before] = tokenizer.encode_target("a")  # \u2581a
    logits = np.full((2, tokenizer.vocab_size), -9.0, np.float32)
    logits[0, tokens[0]], logits[1, tokens[1]], logits[1, tokens[2]] = 2.0, 2.0, -1.0
    other = tokenizer.decode([tokens[0], tokens[2]])
    assert other == "alt ein"
    assert common_tokens(tokenizer, tokens, other) == 1
    assert first_difference(tokenizer, 0, logits, tokens, other) == (1, 3.0)
    # The other engine may have written the same beginning as another piece, which was nearer to ours.
    logits[0, before] = 1.5
    assert first_difference(tokenizer, 0, logits, tokens, other) == (0, 0.5)


def test_sums_of_two_products_saturate_in_16_bits() -> None:
    random = np.random.default_rng(4)
    values = random.integers(-127, 128, (24, 64)).astype(np.int8)
    rows, bias = random.normal(0, 60, (9, 64)).astype(np.float32), random.normal(0, 1, 24).astype(np.float32)
    shifted = np.clip(np.rint(rows * np.float32(1.5)), -127, 127).astype(np.int64) + 127
    pairs = (shifted[:, None] * values).reshape(9, 24, 32, 2).sum(axis=3)
    assert (np.abs(pairs) > 2**15).any()
    of_shift = 127 * values.sum(axis=1, dtype=np.int64)
    for saturating, sums in ((False, pairs), (True, np.clip(pairs, -(2**15), 2**15 - 1))):
        found = Matrix(values, 40.0, 1.5, saturating=saturating).times(rows, bias)
        expected = (sums.sum(axis=2) - of_shift) / (40.0 * 1.5) + bias
        assert found == pytest.approx(expected, abs=1e-6 * np.abs(expected).max())


def test_the_arithmetic_is_that_of_the_model(model: Student, tmp_path: Path) -> None:
    files.write_release(tmp_path, model, vocabulary(), PAIRS, PAIRS)
    student = StudentArithmetic(read_binary(tmp_path / files.MODEL), heads=SIZES["heads"], saturating=False)
    memory, state = student.encode([7, 9, 8, 0]), student.start()
    found = [student.step(token, at, memory, state) for at, token in enumerate((None, 17, 19))]
    with torch.no_grad():
        start, target = torch.zeros(1, dtype=torch.int64), torch.tensor([[17, 19, 0]])
        [expected] = model(torch.tensor([[7, 9, 8, 0]]), torch.tensor([4]), start, target).numpy()
    assert np.stack(found) == pytest.approx(expected, abs=0.1 * float(np.abs(expected).max()))
    chosen = student.translate([7, 9, 8, 0], 3, [])
    best = expected[0].argsort()[-2:].tolist()
    assert len(chosen) <= 3
    assert [*chosen, 0][0] in best
    assert [*student.translate([7, 9, 8, 0], 3, [0, *chosen[:1]]), 0][0] not in chosen[:1]


def test_tables_name_what_was_missed() -> None:
    margin = Margin(text="a", ours="b", theirs="c", position=0, gap=0.5, noise=0.1)
    near = Margin(text="a", ours="b", theirs="c", position=0, gap=0.1, noise=0.1)
    equal = [
        Equality(peer="Bergamot", shortlist=listed, texts=texts, differing=differing, bleu=(30.0, 31.0))
        for listed, texts, differing in ((False, 100, (near,)), (True, 100, (margin,)), (True, 10, (near,)))
    ]
    assert [each.passed for each in equal] == [True, False, False]
    assert equality_table(equal).count("MISSED") == 2
    lines = arithmetic_table({"one": ["a", "b", "c"], "other": ["a", "b", "d"]}).splitlines()
    assert [line.split()[-2:] for line in lines[-2:]] == [["3", "2"], ["2", "3"]]
    speeds = [
        Speed(shortlist=False, threads=1, one_by_one=one, ours=[20.0, 40.0], theirs=[10.0, 20.0])
        for one in (True, False)
    ]
    lines = speed_table(speeds).splitlines()
    assert lines[1].split("  ")[-2:] == ["2.00 (2.00 to 2.00)", " 1.5 met"]
    assert "3 missed" in lines[2]


def test_native_products_round_as_marian_does() -> None:
    random = np.random.default_rng(6)
    values = random.integers(-127, 128, (64, 48)).astype(np.int8)  # [K, N]
    values[0, 0] = 127
    multiplier, alpha = np.float32(37.7), np.float32(21.3)
    weight = values.astype(np.float32) * (np.float32(1) / multiplier)
    rows, bias = random.normal(0, 1, (9, 64)).astype(np.float32), random.normal(0, 1, 48).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["positions", "weight"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["with_bias"]),
        helper.make_node("MatMul", ["positions", "weight"], ["without_bias"]),
    ]
    inputs = (TensorSpec(name="positions", dtype="float32", axes=("B", 64)),)  # a name of rows
    outputs = tuple(TensorSpec(name=name, dtype="float32", axes=("B", 48)) for name in ("with_bias", "without_bias"))
    graph = make_graph(
        "products",
        nodes,
        inputs,
        outputs,
        constants=[numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")],
    )
    key = weight_key(weight)
    oracle = Matrix(values.T, float(multiplier), float(alpha), saturating=False)
    expected = [oracle.times(rows, bias), oracle.times(rows)]
    shifted, exact = (
        quantize_graph(graph, {key: 1 / float(alpha)}, signed=True, multipliers=multipliers)
        for multipliers in ({key: float(multiplier)}, {})
    )
    native = native_graph(shifted)
    assert native is not None
    for one, other in zip(run(shifted, rows), expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    if library() is None:
        pytest.skip("no native kernels")
    for one, other in zip(run(native, rows), expected, strict=True):
        assert np.array_equal(one, other)
    # Exact products differ: the share of the shift is rounded in Marian's.
    plain = native_graph(exact)
    assert plain is not None
    for one, other in zip(run(plain, rows), expected, strict=True):
        assert not np.array_equal(one, other)


@pytest.mark.parametrize("largest", [127, 126, 100, 80, -128])
def test_products_are_right_whatever_the_largest_value_is(largest: int) -> None:
    random = np.random.default_rng(7)
    values = random.integers(-79, 80, (64, 48)).astype(np.int8)
    values[0, 0] = largest
    weight, multiplier = values.astype(np.float32) / np.float32(37.7), 37.7
    rows = random.normal(0, 1, (9, 64)).astype(np.float32)
    inputs = (TensorSpec(name="positions", dtype="float32", axes=("B", 64)),)
    outputs = (TensorSpec(name="product", dtype="float32", axes=("B", 48)),)
    node = helper.make_node("MatMul", ["positions", "weight"], ["product"])
    graph = make_graph("products", [node], inputs, outputs, constants=[numpy_helper.from_array(weight, "weight")])
    key = weight_key(weight)
    quantized = quantize_graph(graph, {key: 1 / 21.3}, signed=True, multipliers={key: multiplier})
    [found], expected = run(quantized, rows), rows @ weight
    assert float(np.sqrt(np.mean((found - expected) ** 2)) / np.std(expected)) < 0.03


def run(graph: Graph, rows: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    options = onnxruntime.SessionOptions()
    if library() is not None:
        options.register_custom_ops_library(str(library()))
    session = onnxruntime.InferenceSession(graph.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[NDArray[np.float32]] = session.run([spec.name for spec in graph.outputs], {"positions": rows})
    return found


def test_an_imported_student_multiplies_as_marian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_sample = files.alphas
    monkeypatch.setattr(
        files, "alphas", lambda *sample: {name: 0.9 * each for name, each in of_sample(*sample).items()}
    )
    torch.manual_seed(8)
    student = Student(200, {**SIZES, "width": 32, "feed_forward": 64}).eval()  # exports fold the scale of its heads
    files.write_release(tmp_path / "ende", student, vocabulary(), PAIRS, PAIRS)
    import_marian(tmp_path / "ende", tmp_path / "bundle", precisions=("int8",))
    heads = SIZES["heads"]
    arithmetic = StudentArithmetic(read_binary(tmp_path / "ende" / files.MODEL), heads=heads, saturating=False)
    side = RuntimeSide(Graphs(Bundle.open(tmp_path / "bundle"), "int8", device=CPU, threads=1))
    for source, target in PAIRS:  # with these alphas, nothing of them is cut off
        tokens = target[:-1]
        memory, state = arithmetic.encode(source), arithmetic.start()
        expected = np.stack([arithmetic.step(token, at, memory, state) for at, token in enumerate([None, *tokens])])
        assert logits_of(side, source, [0, *tokens]) == pytest.approx(expected, abs=1e-4)  # of sums in other orders
