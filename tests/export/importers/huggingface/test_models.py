"""Models of checkpoints against transformers: whole targets, single steps, attention, and exported graphs."""

import functools
import inspect
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from jumok_export.bundles.recipe import write_variant
from jumok_export.bundles.variants import Folder
from jumok_export.importers.huggingface import ImportedModel, build_model
from jumok_export.verification.fp32 import verify_fp32
from jumok_export.verification.samples import InputBounds
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from tests.support.checkpoints.random_checkpoints import (
    CONFIGURATIONS,
    config_of,
    random_checkpoint,
    sentences,
    source_mask,
)

close = functools.partial(torch.testing.assert_close, atol=1e-4, rtol=1e-5)


@functools.cache
def imported(name: str) -> ImportedModel:
    """A model of all tensors that `save_pretrained` writes."""
    model = random_checkpoint(name)
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return build_model(config_of(model), load_file(Path(folder) / "model.safetensors"))


@pytest.mark.parametrize("name", CONFIGURATIONS)
@torch.no_grad()
def test_teacher_forcing_and_attention_are_those_of_transformers(name: str) -> None:
    theirs, ours = random_checkpoint(name), imported(name).model
    # `shared` of a checkpoint in which nothing is tied is in no one's use, in transformers either.
    untied = "untied" in name and "t5" not in name
    assert imported(name).unused == (("model.shared.weight",) if untied else ())
    source_ids, source_lengths, start_ids, target_ids, target_lengths = sentences(theirs)
    expected = theirs(
        input_ids=source_ids,
        attention_mask=source_mask(source_ids, source_lengths),
        decoder_input_ids=torch.cat((start_ids[:, None], target_ids[:, :-1]), dim=1),
        output_attentions=True,
    )
    close(ours(source_ids, source_lengths, start_ids, target_ids), expected.logits)
    scores = ours.score(source_ids, source_lengths, start_ids, target_ids, target_lengths)
    chosen = expected.logits.log_softmax(-1).gather(-1, target_ids[..., None])[..., 0]
    inside = torch.arange(9) < target_lengths[:, None]
    close(scores, chosen * inside)
    found = ours.align(source_ids, source_lengths, start_ids, target_ids, target_lengths)
    theirs_by_kind = (expected.cross_attentions, expected.encoder_attentions, expected.decoder_attentions)
    for sentence, (source, target) in enumerate(zip(source_lengths.tolist(), target_lengths.tolist(), strict=True)):
        sizes = ((target, source), (source, source), (target, target))
        for weights, layers, (queries, keys) in zip(found, theirs_by_kind, sizes, strict=True):
            wanted = torch.stack(layers, dim=1)[sentence, :, :, :queries, :keys]
            close(weights[sentence, :, :, :queries, :keys], wanted)


def their_steps(theirs: Any, source: Tensor, inputs: Tensor) -> Tensor:
    """Decode one sentence with transformers' cache; returns logits [T, V]."""
    mask = torch.ones(1, len(source), dtype=torch.long)
    encoded = theirs.get_encoder()(input_ids=source[None], attention_mask=mask)
    cache, logits = EncoderDecoderCache(DynamicCache(), DynamicCache()), []
    name = "cache" if "cache" in inspect.signature(theirs.forward).parameters else "past_key_values"  # before 5.24
    for token in inputs:
        given = {"encoder_outputs": encoded, "attention_mask": mask, "decoder_input_ids": token[None, None]}
        output = theirs(**given, use_cache=True, **{name: cache})
        logits.append(output.logits[0, -1])
    return torch.stack(logits)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@torch.no_grad()
def test_steps_are_those_of_transformers_with_rows_at_different_positions(name: str) -> None:
    theirs, ours = random_checkpoint(name), imported(name).model
    source_ids, source_lengths, start_ids, target_ids, _ = sentences(theirs)
    inputs = torch.cat((start_ids[:, None], target_ids[:, :-1]), dim=1)
    # A padding token that was decoded is a token like any other, but has no position in M2M100.
    inputs[:2, 4] = min(theirs.config.pad_token_id, inputs.max())
    expected = [
        their_steps(theirs, source_ids[sentence, :length], inputs[sentence])
        for sentence, length in enumerate(source_lengths[:2].tolist())
    ]
    memory, first_state = ours.encode(source_ids[:2], source_lengths[:2])
    assert first_state == {}
    # Two hypotheses of the first sentence, which have changed places at every step.
    first = {key: value[:1] for key, value in memory.items()}
    state, lead = ours.empty_state(), 3
    for position in range(lead):
        logits, state = ours.step(
            inputs[0, position].expand(2),
            torch.full((2,), position),
            torch.tensor([1, 0] if position else [0, 0]),
            source_lengths[:1],
            first,
            state,
        )
        close(logits, expected[0][position].expand(2, -1))
    # The second sentence joins, three steps later.
    for position in range(lead, inputs.shape[1]):
        second_position = position - lead
        logits, state = ours.step(
            torch.stack((inputs[0, position], inputs[1, second_position])),
            torch.tensor([position, second_position]),
            torch.tensor([0, 1]),
            source_lengths[:2],
            memory,
            state,
        )
        close(logits[0], expected[0][position])
        close(logits[1], expected[1][second_position])


@pytest.mark.parametrize("name", ["m2m100", "t5"])
@torch.no_grad()
def test_a_padding_token_within_a_source_is_treated_as_transformers_treats_it(name: str) -> None:
    theirs, ours = random_checkpoint(name), imported(name).model
    source_ids, _, start_ids, target_ids, _ = sentences(theirs)
    source_ids[0, 3], source_ids[0, 0] = theirs.config.pad_token_id, theirs.config.pad_token_id
    expected = theirs(
        input_ids=source_ids[:1],
        attention_mask=torch.ones(1, 11, dtype=torch.long),
        decoder_input_ids=torch.cat((start_ids[:1, None], target_ids[:1, :-1]), dim=1),
    )
    found = ours(source_ids[:1], torch.tensor([11]), start_ids[:1], target_ids[:1])
    close(found, expected.logits)


def test_facts_of_an_imported_model() -> None:
    two = imported("marian-two-vocabularies")
    assert (two.family, two.source_vocabulary, two.target_vocabulary, two.pad) == ("marian", 37, 29, 1)
    assert (two.max_source_length, two.max_target_length, two.unused) == (20, 20, ())
    t5 = imported("t5")
    assert (t5.family, t5.bounded, two.bounded) == ("t5", False, True)
    assert not t5.model.training


def attention_bytes(own: ImportedModel, length: int) -> int:
    """Size of the encoder's attention weights for one text."""
    _, encoder, _ = own.model.align(*(torch.ones(size, dtype=torch.long) for size in ((1, 3), 1, 1, (1, 1), 1)))
    return encoder.shape[1] * encoder.shape[2] * length * length * 4


@pytest.mark.parametrize(
    ("layers", "heads", "trained", "limit"), [(1, 2, 512, 4096), (6, 8, 512, 1024), (24, 16, 300, 300)]
)
def test_limit_of_relative_positions_suits_the_memory(layers: int, heads: int, trained: int, limit: int) -> None:
    sizes: dict[str, Any] = {"num_layers": layers, "num_heads": heads, "n_positions": trained}
    small: dict[str, Any] = {"vocab_size": 9, "d_model": 8, "d_kv": 2, "d_ff": 8}
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**small, **sizes))
    own = build_model(config_of(theirs), theirs.state_dict())
    assert (own.max_source_length, own.max_target_length) == (limit, limit)
    assert attention_bytes(own, limit) <= 2**28 or limit == trained
    assert attention_bytes(own, 2 * limit) > 2**28


@torch.no_grad()
@pytest.mark.parametrize("name", ["marian", "m2m100", "bart", "mbart", "pegasus", "t5"])
def test_the_longest_sentences_are_read_as_by_transformers(name: str) -> None:
    """The T5 reads texts beyond the length of its training; the others have no more positions."""
    theirs, own = random_checkpoint(name), imported(name)
    length = own.max_source_length if own.bounded else 700
    ids = torch.randint(3, 20, (1, length), generator=torch.Generator().manual_seed(2))
    start = torch.tensor([2])
    inputs = torch.cat((start[:, None], ids[:, :-1]), dim=1)
    expected = theirs(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=inputs).logits
    assert own.max_target_length == (length if own.bounded else own.max_source_length)
    close(own.model(ids, torch.tensor([length]), start, ids), expected)


@pytest.mark.parametrize("name", ["marian-two-vocabularies", "umt5"])
@pytest.mark.slow
def test_exported_graphs_compute_the_same(name: str, imported_graphs: Any, tmp_path: Path) -> None:
    """The kinds that `tests/parity/test_parity.py` does not import and verify."""
    own, exported = imported(name), imported_graphs(name)
    assert set(exported) >= {"encoder", "decoder", "scorer", "aligner"}
    graphs = Graphs(Folder(tmp_path, write_variant(exported, tmp_path, "fp32")), "fp32", device=CPU, threads=1)
    bounds = InputBounds(
        source_vocabulary=own.source_vocabulary,
        target_vocabulary=own.target_vocabulary,
        start=2,
        pad=own.pad,
        max_source_length=20,
        max_target_length=20,
    )
    report = verify_fp32(own.model, graphs, bounds)
    assert [check for check in report.checks if not check.passed] == []
