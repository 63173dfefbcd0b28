"""The agreement of int8 with fp32, against translations of both."""

from pathlib import Path

import numpy as np
import pytest

from jumok_export.quantization.calibration import GreedySearch
from jumok_export.verification.agreement import SourceTexts, measure_agreement
from jumok_export.verification.runtime_side import RuntimeSide
from jumok_export.verification.sides import Arrays, StepInputs
from jumok_serve import Translator
from jumok_serve.runtime.graphs import Floats
from tests.support.data import Sentences

LONGEST = 12


@pytest.fixture(scope="module")
def texts(sentences: Sentences) -> list[str]:
    """Sentences as the model knows them, and ones that make it doubt."""
    return [*sentences[0], *(f"{text[:20]} {text[8::-1]}" for text in sentences[0])]


def given(translator: Translator, texts: list[str]) -> SourceTexts:
    tokens = translator.manifest.special_tokens
    search = GreedySearch(start=tokens.start, eos=tokens.eos, suppress=tokens.suppress, max_length=LONGEST)
    sources = [[*translator.tokenizer.encode(text), tokens.eos[0]] for text in texts]
    return SourceTexts(sources=sources, search=search, pad=tokens.pad, described="calibration texts")


def translated(translator: Translator, texts: list[str]) -> list[tuple[int, ...]]:
    found = translator.translate(texts, split_sentences=False, beam_size=1, max_length=LONGEST)
    return [one.hypotheses[0].token_ids for one in found]


def test_unchanged_translations_are_those_of_greedy_search(tiny_bundle: Path, texts: list[str]) -> None:
    with (
        Translator(tiny_bundle, precision="fp32", threads=1) as exact,
        Translator(tiny_bundle, precision="int8", threads=1) as rounded,
    ):
        found = measure_agreement(RuntimeSide(exact.graphs), RuntimeSide(rounded.graphs), given(exact, texts))
        expected, others = translated(exact, texts), translated(rounded, texts)
    same = sum(one == other for one, other in zip(expected, others, strict=True))
    assert found.translations == len(texts)
    assert found.unchanged == pytest.approx(same / len(texts))
    assert found.tokens == sum(map(len, expected))
    assert found.share <= 1.0
    assert (found.share == 1.0) == (found.unchanged == 1.0)


def test_a_changed_token_changes_its_translation_alone(tiny_bundle: Path, texts: list[str]) -> None:
    class Wrong(RuntimeSide):
        """Never chooses the token that fp32 writes most often."""

        def step(self, inputs: StepInputs) -> tuple[Floats, Arrays]:
            logits, state = super().step(inputs)
            logits = logits.copy()
            logits[:, common] = -np.inf
            return logits, state

    with Translator(tiny_bundle, precision="fp32", threads=1) as exact:
        found = translated(exact, texts)
        written = [token for ids in found for token in ids if token not in exact.manifest.special_tokens.eos]
        common = max(set(written), key=written.count)
        side = RuntimeSide(exact.graphs)
        measured = measure_agreement(side, Wrong(exact.graphs), given(exact, texts))
        assert measure_agreement(side, side, given(exact, texts)).unchanged == 1.0
    assert measured.unchanged == pytest.approx(sum(common not in ids for ids in found) / len(found))
    assert measured.share == pytest.approx(1 - written.count(common) / measured.tokens)
