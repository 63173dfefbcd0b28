"""Ensembles: one bundle that averages the models of several."""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jumok_export.bundles import ensemble
from jumok_export.bundles.ensemble import make_ensemble
from jumok_export.errors import ExportError, VerificationError
from jumok_export.graphs.ensemble import join_models
from jumok_export.graphs.graph import Graph
from jumok_export.models.seq2seq import Seq2Seq
from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import START, Vocabulary, train_vocabulary
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.bundle.describe import as_json, describe
from jumok_serve.errors import BundleError
from jumok_serve.manifest.parts import AlignmentHeads, AttentionHead
from jumok_serve.native import library
from jumok_serve.search.options import DecodingOptions
from tests.conftest import Made
from tests.support.data import Sentences
from tests.support.generate_oracle import Generated, GivenModel
from tests.support.models.trained import committed, trace
from tests.support.models.variants import edited
from tests.support.reference_search import Scores

Exporter = Callable[..., Bundle]


@pytest.fixture(scope="session")
def other_model(vocabulary: Vocabulary) -> Transformer:
    """A model of other sizes, which has learnt less."""
    model = committed("other", vocabulary)
    assert isinstance(model, Transformer)
    return model


@pytest.fixture(scope="session")
def other_bundle(export_tiny: Exporter, other_model: Transformer, vocabulary: Vocabulary, made_once: Made) -> Path:
    """Its bundle, in fp32 only; not to be changed."""

    def export(folder: Path) -> None:
        graphs = trace(other_model, vocabulary)
        export_tiny(folder / "other", graphs=graphs, model=other_model, name="other", precisions=("fp32",))

    return made_once("other-bundle", export) / "other"


@pytest.fixture(scope="session")
def pair(tiny_bundle: Path, other_bundle: Path, made_once: Made) -> Path:
    """The ensemble of both, not to be changed."""
    return made_once("pair", lambda folder: make_ensemble([tiny_bundle, other_bundle], folder / "pair")) / "pair"


@pytest.fixture(scope="session")
def twice(tiny_bundle: Path, made_once: Made) -> Path:
    """The ensemble of the tiny model with itself, not to be changed."""
    return made_once("twice", lambda folder: make_ensemble([tiny_bundle] * 2, folder / "twice")) / "twice"


def averaging(models: Sequence[Seq2Seq], source: Sequence[int]) -> Callable[[tuple[int, ...]], Scores]:
    """A step function that averages the log-probabilities of PyTorch models."""
    source_ids, lengths = torch.tensor([source]), torch.tensor([len(source)])

    def step(prefix: tuple[int, ...]) -> Scores:
        targets = torch.tensor([[*prefix[1:], 0]])  # the last token is not read
        with torch.no_grad():
            logits = [model(source_ids, lengths, torch.tensor([START]), targets)[0, -1] for model in models]
        mean: Scores = torch.stack(logits).double().log_softmax(dim=-1).mean(dim=0).numpy()
        return mean

    return step


def expected_of(
    models: Sequence[Seq2Seq], bundle: Bundle, texts: Sequence[str], options: DecodingOptions
) -> list[list[Generated]]:
    """The hypotheses of Hugging Face's `generate` with the models' average."""
    manifest = bundle.manifest
    resolved = options.resolve(
        manifest.generation, manifest.special_tokens, manifest.limits, vocabulary=manifest.tokenizer.target_vocab_size
    )
    sources = [[*bundle.tokenizer.encode(text), *manifest.languages.sources["en"].suffix] for text in texts]
    return [GivenModel(averaging(models, source)).hypotheses(resolved) for source in sources]


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4, "num_hypotheses": 4},
        {"beam_size": 4, "no_repeat_ngram_size": 2, "min_length": 6, "early_stopping": True},
    ],
    ids=["greedy", "beam", "constrained"],
)
def test_hypotheses_are_those_of_a_loop_that_averages(
    pair: Path, tiny_model: Transformer, other_model: Transformer, sentences: Sentences, options: Mapping[str, Any]
) -> None:
    texts = [*sentences[0][:5], "A dog two men .", "Men"]
    bundle = Bundle.open(pair)
    expected = expected_of([tiny_model, other_model], bundle, texts, DecodingOptions(**options))
    with Translator(pair, precision="fp32") as translator:
        found = translator.translate(texts, **options)
    for translation, hypotheses in zip(found, expected, strict=True):
        assert [each.token_ids for each in translation.hypotheses] == [each.token_ids for each in hypotheses]
        for one, other in zip(translation.hypotheses, hypotheses, strict=True):
            assert one.score == pytest.approx(other.score, rel=1e-5, abs=1e-4)


def test_scores_and_attention(
    pair: Path, tiny_model: Transformer, other_model: Transformer, sentences: Sentences
) -> None:
    text = sentences[0][3]
    with Translator(pair, precision="fp32") as translator:
        found = translator.translate(text, beam_size=1, min_length=4)
        score = translator.score(text, found.text)
        attention = translator.align(text, found.text, kinds=("cross", "encoder"))
        bundle = Bundle.open(pair)
    source = [*bundle.tokenizer.encode(text), 3]
    target = [*bundle.tokenizer.encode(found.text), 3]
    step = averaging([tiny_model, other_model], source)
    logs = [torch.from_numpy(step((START, *target[:place]))).log_softmax(dim=-1) for place in range(len(target))]
    expected = [float(log[token]) for log, token in zip(logs, target, strict=True)]
    assert score.token_scores == pytest.approx(expected, rel=1e-5, abs=1e-4)
    given = [torch.tensor(each) for each in ([source], [len(source)], [START], [target], [len(target)])]
    with torch.no_grad():
        aligned = [model.align(*given) for model in (tiny_model, other_model)]
    assert attention.cross is not None
    assert attention.encoder is not None
    for weights, index in ((attention.cross, 0), (attention.encoder, 1)):
        mean = torch.stack([each[index].mean(dim=(1, 2)) for each in aligned]).mean(dim=0)[0]
        np.testing.assert_allclose(weights.mean, mean, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_model_with_itself_is_the_model(twice: Path, tiny_bundle: Path, sentences: Sentences, precision: str) -> None:
    texts = sentences[0][:12]
    markup = [f"<p>{texts[0]} <b>{texts[1]}</b></p>", f"<i>{texts[2]}</i>"]
    answers = []
    for path in (tiny_bundle, twice):
        with Translator(path, precision=precision) as translator:
            greedy = translator.translate(texts, beam_size=1, repetition_penalty=1.3)
            beams = translator.translate(texts, beam_size=3, num_hypotheses=3)
            drawn = translator.translate(texts, sample=True, beam_size=1, seed=5, top_p=0.9)
            scored = translator.score(texts, sentences[1][:12])
            aligned = translator.align(texts[0], sentences[1][0], each_head=True)
            tagged = translator.translate(markup, markup="html")
            with_terms = translator.translate(texts[:3], beam_size=3, glossary={"man": "Hund", "two": "drei"})
            results = [
                [(each.text, each.token_ids) for answer in found for each in answer.hypotheses]
                for found in (greedy, beams, drawn, with_terms)
            ]
            answers.append((results, [each.text for each in tagged], [each.score for each in scored], aligned))
    (texts_of_one, tagged_of_one, scores_of_one, attention_of_one), (both, tagged_of_both, scores, attention) = answers
    assert both == texts_of_one
    assert tagged_of_both == tagged_of_one
    assert scores == pytest.approx(scores_of_one, abs=1e-4)
    one, other = (np.array(each.cross and each.cross.by_head, np.float32) for each in (attention, attention_of_one))
    assert one.ndim == 4
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_text_is_translated_as_alone(pair: Path, sentences: Sentences) -> None:
    texts = sentences[0][:16]
    with Translator(pair, precision="fp32") as translator:
        together = translator.translate(texts, beam_size=4)
        alone = [translator.translate(text, beam_size=4) for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one.hypotheses[0].token_ids == other.hypotheses[0].token_ids
        assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.slow
def test_three_parts_of_a_recurrent_model(recurrent_bundle: Path, tmp_path: Path, sentences: Sentences) -> None:
    made = make_ensemble([recurrent_bundle] * 3, tmp_path / "three", name="three")
    assert made.manifest.architecture.sizes == {"parts": 3}
    answers = []
    for path in (recurrent_bundle, made.path):
        with Translator(path, precision="fp32") as translator:
            found = translator.translate(sentences[0][:8], beam_size=3)
            scores = [each.score for each in translator.score(sentences[0][:4], sentences[1][:4])]
            answers.append(([each.hypotheses[0].token_ids for each in found], scores))
    assert answers[0][0] == answers[1][0]
    assert answers[0][1] == pytest.approx(answers[1][1], abs=1e-4)


@pytest.mark.slow
def test_half_precision_is_for_devices(half_bundle: Path, tmp_path: Path) -> None:
    manifest = make_ensemble([half_bundle] * 2, tmp_path / "half").manifest
    assert [*manifest.precisions] == ["fp32", "fp16"]
    assert manifest.precisions["fp16"].for_devices
    assert all(report.passed for report in manifest.verification.values())


def test_manifest_records_the_parts(pair: Path, twice: Path, tiny_bundle: Path, other_bundle: Path) -> None:
    bundle, other = Bundle.open(pair), other_bundle
    manifest = bundle.manifest
    parts = manifest.provenance.parts
    digests = [hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest() for path in (tiny_bundle, other)]
    found = [(part.name, part.version, part.manifest_sha256) for part in parts]
    assert found == [("tiny-en-de", "1", digests[0]), ("other", "1", digests[1])]
    assert manifest.name == "pair"
    assert [*manifest.precisions] == ["fp32"]  # the other has no int8
    assert {*Bundle.open(twice).manifest.precisions} == {"fp32", "int8"}
    assert manifest.verification["fp32"].passed
    graphs = manifest.precisions["fp32"].graphs
    assert {"scorer", "aligner", "sampler", "decoder_device"} <= graphs.keys()
    assert ("decoder_native" in graphs) == (library() is not None)
    assert f"other 1 (manifest of SHA-256 {digests[1][:16]})" in describe(bundle, whole=False)
    assert as_json(bundle)["provenance"]["parts"][1]["name"] == "other"


def with_file(bundle: Path, copy: Path, name: str, content: bytes) -> Path:
    """A copy of a bundle with another file."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    other = edited(bundle, copy, change)
    (other / name).write_bytes(content)
    return other


def test_other_vocabularies_are_refused(tiny_bundle: Path, tmp_path: Path, sentences: Sentences) -> None:
    def other_tokens(manifest: dict[str, Any]) -> None:
        manifest["special_tokens"]["suppress"] = [0]
        manifest["languages"]["sources"]["nl"] = manifest["languages"]["sources"].pop("en")
        manifest["languages"]["default"]["source"] = "nl"

    other = edited(tiny_bundle, tmp_path / "other", other_tokens)
    with pytest.raises(ExportError, match="cannot be one ensemble") as refused:
        make_ensemble([tiny_bundle, other], tmp_path / "out")
    assert "special_tokens.suppress: [0, 1, 2] and [0]" in str(refused.value)
    assert "languages.sources: {'en':" in str(refused.value)
    assert "tokenizer" not in str(refused.value)

    model = train_vocabulary(sentences[1], size=180, kind="unigram", character_coverage=1.0, seed=1)
    other = with_file(tiny_bundle, tmp_path / "retrained", "tokenizer.model", model)
    with pytest.raises(ExportError, match=r"tokenizer.source_model: a file of SHA-256 .* and a file of SHA-256"):
        make_ensemble([tiny_bundle, other], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bundles_may_not_fit(tiny_bundle: Path, other_bundle: Path, recurrent_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="two bundles or more, got 1"):
        make_ensemble([tiny_bundle], tmp_path / "out")
    with pytest.raises(ExportError, match=r"state in different ways \(in place, gathered\)"):
        make_ensemble([tiny_bundle, recurrent_bundle], tmp_path / "out")

    def only_int8(manifest: dict[str, Any]) -> None:
        for name in ("precisions", "verification"):
            del manifest[name]["fp32"]
        for file in [file for file in manifest["files"] if file.startswith("fp32/")]:
            del manifest["files"][file]

    int8 = edited(tiny_bundle, tmp_path / "int8", only_int8)
    shutil.rmtree(int8 / "fp32")
    with pytest.raises(ExportError, match=r"no precision in common: .*int8 has int8; .*other has fp32"):
        make_ensemble([int8, other_bundle], tmp_path / "out")


def test_damaged_parts_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(tiny_bundle, tmp_path / "damaged")
    weights = damaged / "fp32/weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"fp32/weights.bin"):
        make_ensemble([tiny_bundle, damaged], tmp_path / "out")
    decoder = Bundle.open(tiny_bundle).manifest.precisions["fp32"].graphs["decoder"].file
    content = (tiny_bundle / decoder).read_bytes().replace(b"decoded_logits", b"computed_logit")
    other = with_file(tiny_bundle, tmp_path / "foreign", decoder, content)
    with pytest.raises(ExportError, match="cannot be one ensemble in fp32: its decoder has no tensor 'decoded_logits'"):
        make_ensemble([other, other], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged", "foreign"]  # nothing half written


def test_wrong_graphs_fail_verification(
    tiny_bundle: Path, other_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(models: Sequence[Mapping[str, Graph]]) -> dict[str, Graph]:
        joined = join_models(models)
        for node in joined["decoder"].model.graph.node:
            if node.op_type == "Sum":
                node.input[1] = node.input[0]  # the first model counts twice
        return joined

    monkeypatch.setattr(ensemble, "join_models", swapped)
    with pytest.raises(VerificationError, match="step logits"):
        make_ensemble([tiny_bundle, other_bundle], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_heads_that_align_in_all_parts_align_in_the_ensemble(tiny_bundle: Path, other_bundle: Path) -> None:
    manifest, other = Bundle.open(tiny_bundle).manifest, Bundle.open(other_bundle).manifest
    heads = AlignmentHeads(heads=(AttentionHead(layer=0, head=1),), origin="guided", error_rate=0.25, pairs=7)
    guided = manifest.model_copy(update={"alignment": heads})
    measured = heads.model_copy(update={"heads": (AttentionHead(layer=0, head=0),)})
    found = ensemble._alignment([guided, guided], manifest.precisions)
    assert found == AlignmentHeads(heads=heads.heads, origin="guided")
    for second in (manifest, manifest.model_copy(update={"alignment": measured})):
        assert ensemble._alignment([guided, second], manifest.precisions) is None
    last = heads.model_copy(update={"heads": (AttentionHead(layer=5, head=0),)})
    wide = other.model_copy(update={"alignment": last})
    assert ensemble._alignment([wide, wide], other.precisions) is None
