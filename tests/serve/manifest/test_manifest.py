"""The manifest's schema: valid and invalid fields, and the round trip through JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from jumok_serve.manifest.manifest import Check, GenerationDefaults, GraphSpec, Manifest, PrecisionVariant, TensorSpec
from jumok_serve.manifest.tokenizers import SentencePieceDescription

Fields = dict[str, Any]


@pytest.fixture
def fields(toy_bundle: Path) -> Fields:
    """The toy's manifest as plain JSON values."""
    loaded: Fields = json.loads((toy_bundle / "manifest.json").read_bytes())
    return loaded


def parse(fields: Fields) -> Manifest:
    return Manifest.model_validate_json(json.dumps(fields))


def test_json_round_trip_gives_the_same_manifest(fields: Fields) -> None:
    fields["stored_precision"] = "fp32"
    manifest = parse(fields)
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    assert json.loads(manifest.model_dump_json()) == fields


def test_sizes_keep_their_types(fields: Fields) -> None:
    fields["architecture"]["sizes"] = {"layers": 3, "dropout": 0.0, "tied": True, "norm": "pre"}
    sizes = parse(fields).architecture.sizes
    assert [(type(value), value) for value in sizes.values()] == [(int, 3), (float, 0.0), (bool, True), (str, "pre")]


def set_field(path: str, value: Any) -> Callable[[Fields], None]:
    *way, last = path.split("/")

    def change(fields: Fields) -> None:
        for step in way:
            fields = fields[int(step) if isinstance(fields, list) else step]
        fields[last] = value

    return change


DECODER = "precisions/fp32/graphs/decoder"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_field("colour", "blue"), "Extra inputs are not permitted"),
        (set_field("name", "../toy"), "String should match pattern"),
        (set_field("name", ""), "String should match pattern"),
        (set_field("version", "1 0"), "String should match pattern"),
        (set_field("format_version", 2), "Input should be 1"),
        (set_field("languages/sources", {"English!": {}}), "String should match pattern"),
        (set_field("limits/max_source_length", 0), "greater than or equal to 1"),
        (set_field("limits/max_source_length", "32"), "valid integer"),
        (set_field("limits/max_source_length", True), "valid integer"),
        (set_field("generation/beam_size", 65), "beam_size must be at least 1 and at most 64, got 65"),
        (set_field("generation/length_penalty", 400.0), "length_penalty must be at least -10 and at most 10, got 400"),
        (set_field("generation/num_hypotheses", 65), "num_hypotheses must be at least 1 and at most 64, got 65"),
        (set_field("generation/max_length", 49), "generation.max_length: 49 is over max_target_length 48"),
        (
            set_field("limits/max_source_length", 1),
            "1 tokens around a text leave no space for it in max_source_length 1",
        ),
        (set_field("special_tokens/eos", []), "at least 1 item"),
        (set_field("special_tokens/eos", [3, 5000]), "special_tokens.eos: 5000 is not in the target vocabulary"),
        (set_field("special_tokens/start", 5000), "special_tokens.start: 5000 is not in the target vocabulary"),
        (set_field("special_tokens/pad", 5000), "special_tokens.pad: 5000 is not in the source vocabulary"),
        (set_field("special_tokens/unk", 5000), "special_tokens.unk: 5000 is not in the target vocabulary"),
        (set_field("special_tokens/suppress", [-1]), "greater than or equal to 0"),
        (set_field("special_tokens/suppress", [5000]), "special_tokens.suppress: 5000 is not in the target"),
        (
            set_field("generation/no_repeat_ngram_size", -1),
            "no_repeat_ngram_size must be at least 0",
        ),
        (
            set_field("generation/repetition_penalty", 0.0),
            r"at least 1e-06 and at most 1e\+06, got 0.0",
        ),
        (set_field("generation/begin_suppress_tokens", [5000]), "begin_suppress_tokens: 5000 is not in the target"),
        (set_field("generation/bad_words", [[4], []]), "at least 1 item"),
        (set_field("generation/bad_words", [[4, 5000]]), "generation.bad_words: 5000 is not in the target"),
        (set_field("generation/forced_first_token", 5000), "forced_first_token: 5000 is not in the target"),
        (set_field("generation/forced_last_tokens", [3, 5000]), "forced_last_tokens: 5000 is not in the target"),
        (set_field("generation/sample", True), "sample needs beam_size 1, got 4"),
        (set_field("generation/temperature", 0.0), r"temperature must be at least 1e-06 and at most 1e\+06"),
        (set_field("generation/top_k", -1), "top_k must be at least 0"),
        (set_field("generation/top_p", 1.5), "top_p must be at least 1e-06 and at most 1, got 1.5"),
        (set_field("languages/sources/en/prefix", [5000]), "languages.sources.en: 5000 is not in the source"),
        (set_field("languages/sources/en/suffix", [5000]), "languages.sources.en: 5000 is not in the source"),
        (set_field("languages/targets/de/source_prefix", [5000]), "languages.targets.de: 5000 is not in the source"),
        (set_field("languages/targets/de/start", 5000), "languages.targets.de: 5000 is not in the target"),
        (set_field("languages/targets/de/forced_first", 5000), "languages.targets.de: 5000 is not in the target"),
        (set_field("languages/default/target", "fr"), "pair en to fr: fr is not a target language"),
        (set_field("tokenizer/kind", "characters"), "does not match any of the expected tags: 'sentencepiece', "),
        (set_field("tokenizer/source_suffix", [3]), "Extra inputs are not permitted"),
        (set_field("precisions", {}), "at least 1 item"),
        (set_field("precisions/fp32/graphs", {}), "graph 'encoder' is missing; encoder, decoder are needed"),
        (set_field("precisions/fp32/weights", "fp32/other.bin"), "'fp32/other.bin' is not among the files"),
        (set_field(f"{DECODER}/file", "elsewhere.onnx"), "'elsewhere.onnx' is not among the files"),
        (set_field(f"{DECODER}/outputs/0/axes", ["R", 7]), "logits are 7 wide, the target vocabulary has"),
        (set_field(f"{DECODER}/outputs/0/axes", ["R", 0]), "logits are 0 wide, the target vocabulary has"),
        (set_field(f"{DECODER}/outputs/0/axes", ["R", -1]), "greater than or equal to 0"),
        (set_field(f"{DECODER}/outputs/0/dtype", "float"), "Input should be 'float32'"),
        (set_field("verification/int4", {"checks": []}), "at least 1 item"),
        (
            lambda fields: fields["verification"].update(int4=fields["verification"]["fp32"]),
            r"verification: 'int4' is not a precision of the bundle \(fp32\)",
        ),
        (set_field("stored_precision", "int4"), "stored_precision: 'int4' is not a precision of the bundle"),
        (set_field("provenance/created", "2025-03-01T12:30:00"), "timezone"),
        (set_field("provenance/created", "yesterday"), "valid datetime"),
    ],
)
def test_wrong_field_is_refused(fields: Fields, change: Callable[[Fields], None], message: str) -> None:
    parse(fields)
    change(fields)
    with pytest.raises(ValidationError, match=message):
        parse(fields)


def aligner(layers: int, heads: int) -> Fields:
    output = {"name": "cross_attention", "dtype": "float32", "axes": ["B", layers, heads, "T", "S"]}
    return {"inputs": [], "outputs": [output]}


def test_alignment_heads_are_heads_of_the_aligner(fields: Fields) -> None:
    fields["alignment"] = {"heads": [{"layer": 1, "head": 3}], "origin": "guided"}
    with pytest.raises(ValidationError, match="alignment: precision fp32 has no aligner"):
        parse(fields)
    graphs = fields["precisions"]["fp32"]["graphs"]
    graphs["aligner"] = aligner(2, 4) | {"file": graphs["decoder"]["file"]}
    found = parse(fields).alignment
    assert str(found) == "layer 1 head 3 (guided)"
    fields["alignment"]["heads"].append({"layer": 0, "head": 4})
    with pytest.raises(ValidationError, match="precision fp32 has 2 layers of 4 heads, and no layer 0 head 4"):
        parse(fields)
    fields["alignment"]["heads"] = []
    with pytest.raises(ValidationError, match="at least 1 item"):
        parse(fields)


def test_scores_of_another_precision_of_the_same_checkpoint_are_kept(fields: Fields) -> None:
    fields["scores"].append(fields["scores"][0] | {"precision": "int8"})
    assert [score.precision for score in parse(fields).scores] == ["fp32", "int8"]


def test_all_inconsistencies_are_reported_together(fields: Fields) -> None:
    set_field("special_tokens/start", 5000)(fields)
    set_field("generation/max_length", 49)(fields)
    set_field("precisions/fp32/weights", "gone.bin")(fields)
    with pytest.raises(ValidationError) as caught:
        parse(fields)
    lines = caught.value.errors()[0]["msg"].splitlines()
    assert len(lines) == 3


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "/etc/passwd",
        "fp32/../../secret",
        "./encoder.onnx",
        "fp32//encoder.onnx",
        "fp32/",
        "",
        "..",
        "fp32\\encoder.onnx",
        "a\x00b",
        "a\nb",
        "manifest.json",
    ],
)
def test_path_that_is_not_plainly_inside_the_bundle_is_refused(fields: Fields, path: str) -> None:
    entry = fields["files"]["fp32/weights.bin"]
    fields["files"][path] = entry
    with pytest.raises(ValidationError):
        parse(fields)
    with pytest.raises(ValidationError):
        GraphSpec(file=path, inputs=(), outputs=())


@pytest.mark.parametrize("sha256", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64])
def test_hash_must_be_lower_case_hexadecimal(fields: Fields, sha256: str) -> None:
    fields["files"]["fp32/weights.bin"]["sha256"] = sha256
    with pytest.raises(ValidationError, match="String should match pattern"):
        parse(fields)


def test_generation_defaults_agree_with_each_other() -> None:
    with pytest.raises(ValidationError, match="num_hypotheses 3 is more than beam_size 2"):
        GenerationDefaults(beam_size=2, num_hypotheses=3, max_length=5)
    with pytest.raises(ValidationError, match="min_length 6 is more than max_length 5"):
        GenerationDefaults(min_length=6, max_length=5)
    assert GenerationDefaults(sample=True, num_hypotheses=3, max_length=5).num_hypotheses == 3
    with pytest.raises(ValidationError, match="finite"):
        GenerationDefaults(length_penalty=float("nan"), max_length=5)
    assert GenerationDefaults(early_stopping="never", max_length=5).early_stopping == "never"


def test_shared_tokenizer_has_one_vocabulary_size() -> None:
    with pytest.raises(ValidationError, match="one shared model has one vocabulary size, got 10 for the source and 12"):
        SentencePieceDescription(source_model="t.model", source_vocab_size=10, target_vocab_size=12)


def test_tensor_is_listed_once() -> None:
    spec = TensorSpec(name="logits", dtype="float32", axes=("R", 4))
    with pytest.raises(ValidationError, match="output 'logits' is listed more than once"):
        GraphSpec(file="decoder.onnx", inputs=(spec,), outputs=(spec, spec))


def test_unknown_graph_is_refused() -> None:
    graph = GraphSpec(file="graph.onnx", inputs=(), outputs=())
    graphs = {"encoder": graph, "decoder": graph, "decodr": graph}
    with pytest.raises(ValidationError, match="graph 'decodr' is unknown; the graphs are encoder, decoder, sampler"):
        PrecisionVariant(graphs=graphs, weights="weights.bin")


def test_check_over_its_limit_cannot_have_passed() -> None:
    with pytest.raises(ValidationError, match="'logits' cannot have passed"):
        Check(name="logits", cases=3, worst=0.2, limit=0.1, passed=True)
    assert not Check(name="logits", cases=3, worst=0.2, limit=0.1, passed=False).passed
