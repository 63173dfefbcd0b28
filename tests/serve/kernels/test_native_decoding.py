"""Native operators decode what the plain graphs decode: the same tokens, by greedy search, beams and at random."""

from pathlib import Path

import numpy as np
import pytest

from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.errors import BundleError
from jumok_serve.runtime import graphs as graphs_module
from jumok_serve.runtime.device import CPU, CPU_AS_DEVICE
from jumok_serve.runtime.graphs import Graphs
from tests.serve.runtime.test_device_slots import START, decoded, random_sources
from tests.support.models.native_operators import needs_library
from tests.support.models.stepping import logits_of
from tests.support.models.variants import edited, without

SEARCHES = ((1, False), (4, False), (3, True))
"""Greedy search, beams, and sampling."""


@needs_library
@pytest.mark.parametrize(
    ("model", "precision"), [("tiny_bundle", "fp32"), ("recurrent_bundle", "fp32"), ("recurrent_bundle", "int8")]
)
def test_tokens_and_scores_are_the_same(model: str, precision: str, request: pytest.FixtureRequest) -> None:
    bundle = Bundle.open(request.getfixturevalue(model))
    sources = random_sources(bundle.tokenizer.vocab_size, count=24)
    plain, native = (Graphs(bundle, precision, device=CPU, threads=1, native=preferred) for preferred in (False, True))
    assert (plain.native, native.native) == (False, True)
    relative, absolute = (1e-5, 1e-4) if precision == "fp32" else (0, 0.1)
    for beam_size, draws in SEARCHES:
        expected, found = (decoded(each, sources, beam_size=beam_size, draws=draws) for each in (plain, native))
        for one, other in zip(expected, found, strict=True):
            assert [tokens for tokens, _ in one] == [tokens for tokens, _ in other]
            scores = [score for _, score in one]
            assert scores == pytest.approx([score for _, score in other], rel=relative, abs=absolute)


@needs_library
def test_int8_keys_and_values_cost_less_than_int8_weights_and_activations(tiny_bundle: Path) -> None:
    """Native graphs also round keys and values, which plain ones do not: near ties of tokens are decided otherwise.

    So logits of the same prefixes are compared, on average. Hypotheses have the scores that their logits give.
    """
    bundle = Bundle.open(tiny_bundle)
    sources = random_sources(bundle.tokenizer.vocab_size, count=6)
    exact, plain, native = (
        Graphs(bundle, precision, device=CPU, threads=1, native=preferred)
        for precision, preferred in (("fp32", False), ("int8", False), ("int8", True))
    )
    assert native.native
    of_native, of_int8 = [], []
    for beam_size, draws in SEARCHES:
        for number, (source, hypotheses) in enumerate(
            zip(sources, decoded(native, sources, beam_size=beam_size, draws=draws), strict=True)
        ):
            for tokens, score in hypotheses:
                prefixes = [(START, *tokens[:length]) for length in range(len(tokens))]
                theirs, logits, own = (
                    np.array([logits_of(graphs, source, prefix) for prefix in prefixes])
                    for graphs in (exact, plain, native)
                )
                of_native.append(np.abs(own - logits).mean())
                of_int8.append(np.abs(logits - theirs).mean())
                if not draws and number % 2 == 0 and number % 3 != 1:  # no token is suppressed or repeated at a price
                    logs = own - np.logaddexp.reduce(own, axis=1, keepdims=True)
                    assert score == pytest.approx(logs[np.arange(len(tokens)), tokens].mean(), abs=0.1)
    assert 0 < np.mean(of_native) < np.mean(of_int8)


@needs_library
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_shortlist_gives_the_same_translations(
    listed_bundle: Path, precision: str, sentences: tuple[list[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for there in (True, False):
        with monkeypatch.context() as patch:
            if not there:
                patch.setattr(graphs_module, "library", lambda: None)
            with Translator(listed_bundle, precision=precision, threads=1) as translator:
                assert translator.graphs.native == there
                found.append(translator.translate(sentences[0], beam_size=2))
    texts = [[translation.text for translation in translations] for translations in found]
    same = np.mean([one == other for one, other in zip(*texts, strict=True)])
    assert same == 1 if precision == "fp32" else same >= 0.9


def test_plain_graphs_decode_without_the_library_and_on_devices(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(tiny_bundle)
    assert not Graphs(bundle, "fp32", device=CPU_AS_DEVICE, threads=1).native
    monkeypatch.setattr(graphs_module, "library", lambda: None)
    for precision in ("fp32", "int8"):
        graphs = Graphs(bundle, precision, device=CPU, threads=1)
        assert not graphs.native
        assert {spec.dtype for spec in (*graphs.memory_specs, *graphs.state_specs)} == {"float32"}


@needs_library
def test_a_bundle_without_native_graphs_decodes_with_plain_ones(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"graph 'decoder_native' is missing; native operators need decoder_native"):
        Bundle.open(edited(tiny_bundle, tmp_path / "half", without("decoder_native")))
    path = edited(tiny_bundle, tmp_path / "none", without("encoder_native", "decoder_native"))
    assert not Graphs(Bundle.open(path), "int8", device=CPU, threads=1).native
