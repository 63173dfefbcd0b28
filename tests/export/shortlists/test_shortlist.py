"""Shortlists from lexicons by hand, and their decoder graphs."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from jumok_export.bundles import recipe
from jumok_export.errors import ExportError, VerificationError
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.shortlist_decoder import split_projection
from jumok_export.quantization.find_matrices import weight_key
from jumok_export.quantization.int8_graphs import Scales, quantize_graph
from jumok_export.shortlists.lexicon import Lexicon
from jumok_export.shortlists.sources import LexicalTable, ParallelText, ShortlistError, ShortlistPlan
from jumok_export.training.vocabulary import END, Vocabulary
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.languages import Languages, SourceLanguage, TargetLanguage
from jumok_serve.manifest.manifest import GenerationDefaults, TensorSpec
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.support.data import Sentences
from tests.support.models.broken_graphs import copied
from tests.support.models.small_graphs import node, outputs_of, small_graph
from tests.support.models.trained import committed, trace


class Letters:
    """A tokenizer of letters, with separate source and target vocabularies."""

    source, target = "abcde?", "edcba!"
    source_vocab_size, vocab_size = 6, 6

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.target[token] for token in ids]

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.source[token] for token in ids]


Export = Callable[..., Bundle]
LETTERS: Any = Letters()


def lexicon_of(rows: Sequence[dict[int, float]], frequencies: Sequence[float]) -> Lexicon:
    return Lexicon(
        offsets=np.cumsum([0, *map(len, rows)]),
        targets=np.array([target for row in rows for target in row]),
        probabilities=np.array([probability for row in rows for probability in row.values()], np.float32),
        frequencies=np.array(frequencies, np.float64),
    )


ROWS = [{0: 0.2, 1: 0.5, 2: 0.2}, {}, {5: 0.9, 3: 0.1}, {0: 0.0, 2: 1.0}, {1: 0.3, 4: 0.7}, {1: 1.0}]


@pytest.mark.parametrize(
    ("best", "frequent", "always", "never", "in_all", "others"),
    [
        # a is 4 among the targets, b 3, c 2, d 1, e 0: each is in its own list.
        (2, 0, [5], [], [5], [[0, 1, 4], [3], [2, 3], [1, 2], [0, 1, 4], [1]]),
        (1, 0, [5], [], [5], [[1, 4], [3], [2], [1, 2], [0, 4], [1]]),
        (9, 2, [5], [], [2, 3, 5], [[0, 1, 4], [], [], [1], [0, 1, 4], [1]]),
        (2, 0, [5], [1, 2, 5], [5], [[0, 4], [3], [3], [], [0, 4], []]),
        (2, 3, [5, 4], [2], [0, 3, 4, 5], [[0, 1], [], [], [1], [0, 1], [1]]),
        (2, 6, [5], [], [0, 2, 3, 5], [[1, 4], [], [], [1], [1, 4], [1]]),
    ],
)
def test_lists_have_the_best_the_frequent_and_copies(
    best: int, frequent: int, always: list[int], never: list[int], in_all: list[int], others: list[list[int]]
) -> None:
    lexicon = lexicon_of(ROWS, [1, 0, 3, 2, 0, 1])
    shortlist = lexicon.shortlist(LETTERS, best=best, frequent=frequent, always=always, never=never)
    assert shortlist.of([]).tolist() == in_all
    for source, expected in enumerate(others):
        assert shortlist.of([source]).tolist() == sorted({*in_all, *expected}), source


@pytest.mark.parametrize("name", ["table.txt", "table.txt.gz"])
def test_a_lexical_table_is_read(name: str, tmp_path: Path) -> None:
    text = b"d a 0.5\ne\ta\t0.25\n\nNULL a 0.25\n! NULL 1\nz ? 1\nc c 1e0\n! b 0\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    lexicon = LexicalTable(path=tmp_path / name).lexicon(LETTERS, lambda _: None)
    expected = lexicon_of([{0: 0.25, 1: 0.5}, {5: 0.0}, {2: 1.0}, {}, {}, {}], [0.25, 0.5, 1.0, 0, 0, 0])
    for name_, value in vars(expected).items():
        np.testing.assert_array_equal(getattr(lexicon, name_), value, err_msg=name_)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no tokens of the model's vocabularies: it must be made of text in the model's own tokens"),
        ("house Haus 1\n", "names no tokens of the model's vocabularies: it must"),
        ("? d 0.5\n", "its lines begin with the source token, and must begin with the target token"),
        ("d a 0.5\nd a\n\nd b x\nd b 1.5\n", "a line must be `target source probability`:\n  line 2: 'd a'\n  line 4"),
        ("d a -0.5\n", "line 1: 'd a -0.5'"),
        ("d a nan\n" * 9, "\n  line 5: 'd a nan'\n  and 4 more"),
    ],
)
def test_a_table_of_something_else_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "table").write_text(text)
    with pytest.raises(ShortlistError) as raised:
        LexicalTable(path=tmp_path / "table").lexicon(LETTERS, lambda _: None)
    assert problem in str(raised.value)


def test_text_without_alignable_pairs_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(ShortlistError, match="a translation of every source, got 2 and 1"):
        ParallelText(sources=["a", "b"], targets=["c"])
    tokenizer = SentencePieceTokenizer(vocabulary.model)
    with pytest.raises(ShortlistError, match="none of the 3 sentence pairs has 1 to 200 tokens on both sides"):
        ParallelText(sources=["", "a", "a " * 300], targets=["a", " ", "a"]).lexicon(tokenizer, lambda _: None)
    for plan in ({"best": 0}, {"frequent": -1}):
        with pytest.raises(ShortlistError, match="of a shortlist must be at least"):
            ShortlistPlan(lexicon=LexicalTable(path=Path("table")), **plan)


WIDTH, TOKENS = 24, 300


def decoder_of(nodes: Sequence[onnx.NodeProto], constants: dict[str, Any]) -> dict[str, Graph]:
    """A decoder whose only input is that of its output projection."""
    arrays = {name: np.asarray(value, np.float32) for name, value in constants.items()} | {"last": np.array([-1])}
    given, made = (
        TensorSpec(name=name, dtype="float32", axes=("R", size)) for name, size in (("x", WIDTH), ("logits", TOKENS))
    )
    return {"decoder": small_graph(nodes, arrays, (given,), (made,))}


RANDOM = np.random.default_rng(3)
MATRIX = RANDOM.standard_normal((WIDTH, TOKENS)).astype(np.float32)
BIASES = RANDOM.standard_normal((2, TOKENS)).astype(np.float32)
FORMS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "product": ([node("MatMul", "x w", "logits")], {"w": MATRIX}),
    "transposed": ([node("Transpose", "w", "wt", perm=[1, 0]), node("MatMul", "x wt", "logits")], {"w": MATRIX.T}),
    "with bias": ([node("Gemm", "x w b", "logits", transB=1)], {"w": MATRIX.T, "b": BIASES[0]}),
    "with two biases": (
        [node("Gemm", "x w b", "y"), node("Add", "c y", "logits")],
        {"w": MATRIX, "b": BIASES[0], "c": BIASES[1:]},
    ),
    "with factors": (
        [
            node("MatMul", "x w", "y"),
            node("Mul", "y half", "z"),
            node("ReduceMax", "x last", "most", keepdims=1),
            node("Mul", "most z", "scaled"),
            node("Add", "scaled b", "logits"),
        ],
        {"w": MATRIX, "half": 0.5, "b": BIASES[0]},
    ),
}


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "int8", "int8, calibrated"])
@pytest.mark.parametrize("form", FORMS)
def test_projections_of_any_form_are_separated(form: str, precision: str, saturates: bool) -> None:
    nodes, constants = FORMS[form]
    graphs = decoder_of(nodes, constants)
    if precision != "fp32":
        scales: Scales = {weight_key(MATRIX): 0.03} if "calibrated" in precision else {}
        graphs = {"decoder": quantize_graph(graphs["decoder"], scales)}
    projection, decoder = split_projection(graphs["decoder"])
    x = np.random.default_rng(4).standard_normal((6, WIDTH)).astype(np.float32)
    tokens = np.sort(np.random.default_rng(5).integers(TOKENS, size=256))
    names = [spec.name for spec in projection.outputs]
    given = dict(zip(names, outputs_of(projection, {"tokens": tokens}, names), strict=True))
    bias = given.pop("bias", np.zeros(len(tokens), np.float32))
    biases = np.stack([bias, np.where(tokens % 2, bias, -np.inf).astype(np.float32), bias])  # of three sentences
    if precision != "fp32":
        given["saturates"] = np.array(saturates)
    (logits,) = outputs_of(graphs["decoder"], {"x": x}, ["logits"])
    (found,) = outputs_of(decoder, {"x": x, **given, "bias": biases}, ["logits"])
    expected = logits[:, tokens]
    expected[2:4, tokens % 2 == 0] = -np.inf
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Mul", "x x", "y"), node("Identity", "y", "logits")],
        [node("MatMul", "x w", "y"), node("LogSoftmax", "y", "logits")],
        [node("MatMul", "x w", "y"), node("Mul", "y b", "logits")],
        [node("MatMul", "x w", "y"), node("Add", "y b", "z"), node("Mul", "z half", "logits")],
        [node("MatMul", "x w", "y"), node("Add", "y b", "z"), node("Add", "z y", "logits")],
        [node("Identity", "w", "same"), node("MatMul", "x same", "logits")],
    ],
)
def test_logits_that_are_no_product_cannot_have_a_shortlist(nodes: list[onnx.NodeProto]) -> None:
    with pytest.raises(ValueError, match="its logits are no product with a constant matrix"):
        split_projection(decoder_of(nodes, {"w": MATRIX, "b": BIASES[0], "half": 0.5})["decoder"])


def plan(sentences: Sentences) -> ShortlistPlan:
    return ShortlistPlan(lexicon=ParallelText(sources=sentences[0], targets=sentences[1]), best=4, frequent=5)


def test_a_model_that_cannot_have_a_shortlist_is_not_exported_with_one(
    export_tiny: Export, tiny_graphs: dict[str, Graph], sentences: Sentences, tmp_path: Path
) -> None:
    graphs = copied(tiny_graphs)
    writer(graphs["decoder"], "logits").output[0] = "projected"
    graphs["decoder"].model.graph.node.append(node("Identity", "projected", "logits"))
    with pytest.raises(ExportError, match="Transformer cannot have a shortlist: its logits are no product"):
        export_tiny(tmp_path / "bundle", graphs=graphs, shortlist=plan(sentences), precisions=["fp32"])
    assert not (tmp_path / "bundle").exists()


Damage = Callable[[Graph], None]


def turned(name: str) -> Damage:
    """Give each row of a constant the values of the row before, if it is there."""

    def damage(graph: Graph) -> None:
        for tensor in graph.model.graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(tensor), 1, axis=0), name))

    return damage


def writer(graph: Graph, output: str) -> onnx.NodeProto:
    (found,) = (each for each in graph.model.graph.node if output in each.output)
    return found


def forget_bias(decoder: Graph) -> None:
    writer(decoder, "bias.added").op_type = "Max"


def subtract_scores(graph: Graph) -> None:
    writer(graph, "totals").op_type = "Sub"


def read_nothing(select: Graph) -> None:
    writer(select, "by_block").input[1] = "by_row"


@pytest.mark.parametrize(
    ("role", "damage", "problem"),
    [
        ("projection", turned("weight"), "failed in fp32; no bundle was written:\n  - shortlist logits"),
        ("projection", turned("scale"), "failed in int8; no bundle was written:\n  - shortlist logits"),
        ("decoder", forget_bias, "  - shortlist logits"),
        ("select", subtract_scores, "  - shortlist: .*decoder does not select the best candidates of its logits"),
        ("sampler", subtract_scores, "  - shortlist sampler scores"),
        ("select", read_nothing, "  - shortlist: .*did not run"),
    ],
)
def test_broken_shortlist_graphs_are_refused(
    role: str,
    damage: Damage,
    problem: str,
    export_tiny: Export,
    sentences: Sentences,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = getattr(recipe, f"{role}_graph", None)

    def split(decoder: Graph) -> tuple[Graph, Graph]:
        parts = split_projection(decoder)
        damage(parts[role == "decoder"])
        return parts

    def select(width: int | None) -> Graph:
        made: Graph = make(width)  # type: ignore[misc]
        if width is None:
            damage(made)
        return made

    monkeypatch.setattr(recipe, *(("split_projection", split) if make is None else (f"{role}_graph", select)))
    with pytest.raises(VerificationError, match=problem):
        export_tiny(tmp_path / "bundle", shortlist=plan(sentences))


def test_tokens_that_end_translations_or_are_forced_are_in_every_list(
    export_tiny: Export, sentences: Sentences, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    tokens = export_tiny(tmp_path / "plain", precisions=["fp32"]).tokenizer.tokens(range(180))
    table.write_text(f"{tokens[70]} {tokens[60]} 1\n")
    forced: dict[str, Any] = {"forced_first_token": 50, "forced_last_tokens": (END, 51)}
    generation = GenerationDefaults(max_length=40, **forced, bad_words=((70,),))
    listed = ShortlistPlan(lexicon=LexicalTable(path=table), frequent=0)
    bundle = export_tiny(tmp_path / "bundle", precisions=["fp32"], generation=generation, shortlist=listed)
    shortlist = bundle.shortlist()
    assert shortlist.of([]).tolist() == [END, 50, 51]
    assert shortlist.of([60]).tolist() == [END, 50, 51, 60]  # 70 is never written
    described = bundle.manifest.shortlist
    assert described is not None
    assert (described.source, described.target, described.lexicon) == ("en", "de", "lexical table table")


def test_languages_without_a_default_need_one(export_tiny: Export, sentences: Sentences, tmp_path: Path) -> None:
    languages = Languages(sources={"en": SourceLanguage()}, targets={"de": TargetLanguage(), "nl": TargetLanguage()})
    with pytest.raises(ExportError, match="a shortlist needs a default language"):
        export_tiny(tmp_path / "bundle", languages=languages, shortlist=plan(sentences))


def test_a_decoder_that_gathers_its_state_has_a_shortlist_too(
    vocabulary: Vocabulary, export_tiny: Export, sentences: Sentences, tmp_path: Path
) -> None:
    """A list of all tokens changes no translation; of short lists, translations have the listed tokens only."""
    model = committed("recurrent", vocabulary)
    settings: dict[str, Any] = {"model": model, "graphs": trace(model, vocabulary), "precisions": ["fp32"]}
    whole = ShortlistPlan(lexicon=plan(sentences).lexicon, best=5, frequent=len(vocabulary))
    export_tiny(tmp_path / "whole", shortlist=whole, **settings)
    export_tiny(tmp_path / "short", shortlist=plan(sentences), **settings)
    with (
        Translator(tmp_path / "whole", threads=1) as full,
        Translator(tmp_path / "whole", threads=1, shortlist=True) as listed,
        Translator(tmp_path / "short", threads=1, shortlist=True) as short,
    ):
        for texts in (sentences[0], sentences[0][:1]):
            for text, found, expected in zip(texts, listed.translate(texts), full.translate(texts), strict=True):
                # Tokens that are never written are in no list. The others share their probability, which may change
                # the order of two hypotheses with nearly equal scores.
                gained = found.hypotheses[0].score - expected.hypotheses[0].score
                assert -1e-4 <= gained <= 0.01
                if found.hypotheses[0].token_ids != expected.hypotheses[0].token_ids:
                    first, second = full.translate(text, num_hypotheses=2).hypotheses
                    assert found.hypotheses[0].token_ids == second.token_ids
                    assert first.score - second.score < 0.01
        bundle = Bundle.open(tmp_path / "short")
        shortlist = bundle.shortlist()
        for text, found in zip(sentences[0], short.translate(sentences[0]), strict=True):
            ids = bundle.tokenizer.encode(text)
            assert {*found.hypotheses[0].token_ids} <= {*shortlist.of([*ids, END]).tolist()}
