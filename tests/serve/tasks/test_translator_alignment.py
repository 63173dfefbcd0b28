"""Alignment and attention of hypotheses, in process and through server and SDK, against the aligner graph."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jumok
from jumok_proto.alignments import Alignment
from jumok_proto.attention import ATTENTION_KINDS
from jumok_proto.conversion import alignments_from_proto, alignments_to_proto
from jumok_serve import AttentionUnavailableError, InvalidArgumentError, LanguageNotFoundError, Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.runtime.graphs import Pairs
from jumok_serve.tasks import alignment, hypothesis_attention, teacher_forcing
from tests.support.calls import noted_calls
from tests.support.models.hostile_bundles import edit_graph, edit_manifest
from tests.support.models.variants import edited, without
from tests.support.refusals import refused
from tests.support.servers.in_process_server import serving

COMMITTED = Path(__file__).parents[3] / "models/multi30k-en-de-transformer"
TEXTS = ["A dog runs.", "", "The old woman reads a book in the park.", "A girl."]


@pytest.fixture(scope="module")
def committed() -> Iterator[Translator]:
    with Translator(COMMITTED, threads=1) as polyglot:
        yield polyglot


@pytest.fixture(scope="module")
def client(polyglot: Translator, committed: Translator) -> Iterator[jumok.Client]:
    with serving(polyglot, committed) as address, jumok.Client(address) as client:
        yield client


def test_unknown_source_tokens_are_shown_as_in_the_text(polyglot: Translator) -> None:
    text = "A 😀猫 dog."
    around: list[dict[str, Any]] = [{}, {"source_language": "fr-FR", "target_language": "pt-BR"}]
    for arguments in around:
        aligned = polyglot.align(text, **arguments)
        assert [token.text for token in aligned.source_tokens if token.unknown] == ["😀猫"]
        translation = polyglot.translate(text, attention=True, **arguments)
        assert translation.source_tokens == tuple(token.text for token in aligned.source_tokens)
        (word,) = [token for token in aligned.words().source_tokens if token.unknown]
        assert word.text == "😀猫"
        (received,) = alignments_from_proto(alignments_to_proto([aligned]))
        assert received.source_tokens == aligned.source_tokens
    cut = polyglot.align("dog " * 60 + "猫", truncate=True)
    assert not any(token.unknown for token in cut.source_tokens)


def test_unknown_tokens_of_given_translations_are_marked(polyglot: Translator) -> None:
    known, some, own = polyglot.align(["A dog."] * 3, ["Ein Hund.", "Ein 😀猫 Hund.", None])
    (unknown,) = [token for token in some.target_tokens if token.unknown]
    assert (unknown.text, unknown.special) == ("<unk>", False)
    assert not any(token.unknown for token in (*known.target_tokens, *own.target_tokens, *some.source_tokens))
    assert some.decoder_tokens[1:] == some.target_tokens[:-1]
    (word,) = [token for token in some.words().target_tokens if token.unknown]
    assert "<unk>" in word.text
    (received,) = alignments_from_proto(alignments_to_proto([some]))
    assert received == some


def graph_attention(polyglot: Translator, text: str, target: str) -> list[np.ndarray]:
    """Run the aligner graph on one pair; each result is [layers, heads, ...]."""
    tokenizer = polyglot.tokenizer
    source, ids = [*tokenizer.encode(text), 3], [*tokenizer.encode_target(target), 3]
    pair = Pairs(*map(np.array, ([source], [len(source)], [2], [ids], [len(ids)])))
    return [of_kind[0] for of_kind in polyglot.graphs.align(pair)]


@pytest.mark.parametrize(("layer", "head"), [(None, None), (1, None), (None, 3), (2, 0)])
@pytest.mark.parametrize("each_head", [False, True])
def test_one_layer_or_head_of_several(
    committed: Translator, client: jumok.Client, layer: int | None, head: int | None, each_head: bool
) -> None:
    text, target = "Two young women with red hats.", "Zwei junge Frauen mit roten Hüten."
    arguments: dict[str, Any] = {"kinds": ["decoder", "cross"], "layer": layer, "head": head, "each_head": each_head}
    answer = committed.align(text, target, **arguments)
    assert answer.encoder is None
    layers = (0, 1, 2) if layer is None else (layer,)
    heads = (0, 1, 2, 3) if head is None else (head,)
    cross, _, decoder = graph_attention(committed, text, target)
    for kind, whole in (("cross", cross), ("decoder", decoder)):
        found = getattr(answer, kind)
        expected = whole[np.ix_(layers, heads)]
        assert (found.layers, found.heads) == (layers, heads)
        np.testing.assert_allclose(np.array(found.mean), expected.mean(axis=(0, 1)), atol=1e-6)
        if each_head:
            np.testing.assert_array_equal(np.array(found.by_head), expected)
        else:
            assert found.by_head is None
    assert client.align(text, target, model=committed.name, **arguments) == answer


async def test_a_server_answers_as_in_process(polyglot: Translator, committed: Translator) -> None:
    targets = ["Ein Hund.", None, None, "Ein Mann"]
    arguments: dict[str, Any] = {"kinds": ATTENTION_KINDS, "source_language": "fr-FR", "target_language": "nl"}
    expected = polyglot.align(TEXTS, targets, each_head=True, **arguments)
    with serving(polyglot, committed) as address, jumok.Client(address) as client:
        found = client.align(TEXTS, targets, each_head=True, model=polyglot.name, **arguments)
        for one, other in zip(found, expected, strict=True):
            check_close(one, other)
        long = "a man " * 100
        cut = client.align(long, truncate=True, model=polyglot.name)
        assert cut.source_truncated
        check_close(cut, polyglot.align(long, truncate=True))
        async with jumok.AsyncClient(address) as asynchronous:
            alone = await asynchronous.align("A dog.", "Ein Hund.", model=polyglot.name)
        check_close(alone, polyglot.align("A dog.", "Ein Hund."))


def check_close(found: Alignment, expected: Alignment) -> None:
    """Compare alignments up to rounding, which depends on the batch."""
    for field in ("target", "source_tokens", "target_tokens", "decoder_tokens", "model", "model_version"):
        assert getattr(found, field) == getattr(expected, field)
    for kind in ATTENTION_KINDS:
        one, other = getattr(found, kind), getattr(expected, kind)
        assert (one is None) == (other is None)
        if one is not None:
            for name in ("rows", "columns", "layers", "heads"):
                assert getattr(one, name) == getattr(other, name)
            np.testing.assert_allclose(np.array(one.mean), np.array(other.mean), atol=1e-5)
            np.testing.assert_allclose(np.array(one.by_head or ()), np.array(other.by_head or ()), atol=1e-5)


CHECKED_BY_THE_CLIENT: list[dict[str, Any]] = [{"kinds": "cross"}, {"kinds": []}, {"kinds": ["all"]}, {"layer": True}]


@pytest.mark.parametrize(
    ("texts", "targets", "arguments", "field", "message"),
    [
        ("a", None, {"layer": 1}, "layer", "layer must be 0 to 0, got 1: model 'tiny-en-de' has no other cross-"),
        ("a", None, {"head": 2, "kinds": ["encoder"]}, "head", "head must be 0 to 1, got 2: .* in its encoder"),
        ("a", None, {"layer": -1}, "layer", "layer must be a number from 0, got -1"),
        ("a", None, {"kinds": ["cross", "cross"]}, "kinds[1]", "kinds has 'cross' twice"),
        (["a", ""], ["c", "d"], {}, "targets[1]", "the text has no content"),
        (["a", "b"], [None, "d " * 60], {}, "targets[1]", "and the model writes at most 48"),
        (["a", "b " * 100], None, {}, "contents[1]", "and the model reads at most"),
        (["a", "b"], ["c"], {}, "targets", "one for each of 2 texts, got 1"),
        *(("a", None, asked, next(iter(asked)), "must be a|are cross") for asked in CHECKED_BY_THE_CLIENT),
    ],
)
def test_invalid_alignment_is_refused_by_field(
    polyglot: Translator, client: jumok.Client, texts: Any, targets: Any, arguments: Any, field: str, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        polyglot.align(texts, targets, **arguments)
    assert caught.value.field.removesuffix("[0]") == field
    if field == "targets" or arguments in CHECKED_BY_THE_CLIENT:
        return
    with refused(field, message):
        client.align(texts, targets, model=polyglot.name, **arguments)


def test_an_unknown_language_is_refused(polyglot: Translator) -> None:
    with pytest.raises(LanguageNotFoundError):
        polyglot.align("a", target_language="xx")


def test_too_many_weights_are_refused(polyglot: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    text, target = "A dog runs.", "Ein Hund."
    answer = polyglot.align(text, target, kinds=ATTENTION_KINDS, each_head=True)
    weights = sum(np.size(answer.attention(kind).mean) for kind in ATTENTION_KINDS)
    monkeypatch.setattr(alignment, "MAX_WEIGHTS", 3 * weights)  # those of the mean, and of two heads
    assert polyglot.align(text, target, kinds=ATTENTION_KINDS, each_head=True) == answer
    too_large: list[tuple[list[str], list[str] | None]] = [
        ([text], None),  # which could be of the maximum length
        ([text, "A"], [target, "E"]),
    ]
    for texts, targets in too_large:
        with refused("contents", f"more than the {3 * weights} of a request: send several"):
            polyglot.align(texts, targets, kinds=ATTENTION_KINDS, each_head=True)
    assert polyglot.align(text, kinds=["encoder"]).encoder


def test_a_model_without_attention_says_so(tiny_bundle: Path, recurrent_bundle: Path, tmp_path: Path) -> None:
    plain = edited(tiny_bundle, tmp_path / "plain", without("aligner"))
    with (
        Translator(plain, precision="fp32", replicas=1, threads=1) as none,
        Translator(recurrent_bundle, precision="fp32", replicas=1, threads=1) as cross_alone,
    ):
        cases: list[tuple[Translator, dict[str, Any], str]] = [
            (none, {}, "has no attention to show: it decodes without, or has no aligner, which computes it"),
            (cross_alone, {"kinds": ["encoder"]}, "has no self-attention in its encoder"),
            (cross_alone, {"kinds": ["cross", "decoder"]}, "has no self-attention in its decoder"),
        ]
        for refusing, arguments, reason in cases:
            message = f"model '{refusing.name}' {reason}"
            with pytest.raises(AttentionUnavailableError, match=message):
                refusing.align("A dog.", **arguments)
            with serving(refusing) as address, jumok.Client(address) as client:
                with pytest.raises(jumok.FailedPreconditionError, match=message) as caught:
                    client.align("A dog.", **arguments)
                assert caught.value.reason == "ATTENTION_UNAVAILABLE"
        assert cross_alone.align("A dog.").cross


def test_batches_of_hypotheses_are_bounded(polyglot: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    together = polyglot.translate(TEXTS, attention=True, beam_size=3, num_hypotheses=3, max_length=9)
    runs = noted_calls(monkeypatch, polyglot.graphs, "attention")
    monkeypatch.setattr(teacher_forcing, "MAX_BATCH_WEIGHTS", 2000)
    apart = polyglot.translate(TEXTS, attention=True, beam_size=3, num_hypotheses=3, max_length=9)
    assert sum(len(pairs.source_ids) for _, pairs in runs) == 9
    assert len(runs) > 2
    for one, other in zip(together, apart, strict=True):
        for hypothesis, same in zip(one.hypotheses, other.hypotheses, strict=True):
            np.testing.assert_allclose(np.array(hypothesis.attention), np.array(same.attention), atol=1e-6)


@pytest.mark.parametrize("asked", [{"texts": ["A dog."] * 9}, {"texts": "A dog.", "target_prefix": "Ein Mann " * 12}])
def test_too_many_weights_of_hypotheses_are_refused(
    polyglot: Translator, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    """Tokens of prefixes count too."""
    monkeypatch.setattr(hypothesis_attention, "MAX_ATTENTION_WEIGHTS", 200)
    assert polyglot.translate("A dog.", attention=True, max_length=5).hypotheses[0].attention
    with refused("attention", "more than the 200 of a request: send several requests"):
        polyglot.translate(attention=True, max_length=5, **asked)


def test_an_aligner_needs_cross_attention_alone_and_in_any_place(tiny_bundle: Path, tmp_path: Path) -> None:
    narrow = shutil.copytree(tiny_bundle, tmp_path / "narrow")
    aligner = Bundle.open(narrow).variant("fp32").graphs["aligner"].file

    def keep_two(outputs: Any) -> None:
        cross, encoder, _ = outputs
        del outputs[:]
        outputs.extend([encoder, cross])

    edit_graph(narrow, aligner, lambda graph: keep_two(graph.output))
    edit_manifest(narrow, lambda fields: keep_two(fields["precisions"]["fp32"]["graphs"]["aligner"]["outputs"]))
    with (
        Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as whole,
        Translator(narrow, precision="fp32", replicas=1, threads=1) as narrow_one,
    ):
        expected, found = (one.translate(TEXTS, attention=True, max_length=5) for one in (whole, narrow_one))
    assert [answer.hypotheses for answer in found] == [answer.hypotheses for answer in expected]


def test_the_committed_model_follows_a_sentence_word_for_word(committed: Translator) -> None:
    answer = committed.align("Two young women with red hats.")
    assert answer.target == "Zwei junge Frauen mit roten Hüten."
    assert answer.pairs() == tuple((place, place) for place in range(7))
    assert answer.words().pairs() == tuple((place, place) for place in range(6))
