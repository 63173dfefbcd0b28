"""Models of one's own that cannot be exported: each refusal says what helps."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from jumok_export.bundles.export import export_bundle
from jumok_export.errors import ExportError, VerificationError
from jumok_export.models.seq2seq import Tensors
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import Limits, SpecialTokens
from jumok_serve.tokenizers.word_list import WordListTokenizer
from tests.support.models.random_models import OwnGRU

SPECIAL = ["<pad>", "<s>", "</s>"]
TOKENIZER = WordListTokenizer("character", [*SPECIAL, *"abcdefgh"], special_tokens=SPECIAL)


class Summing(OwnGRU):
    """Sums the source's embeddings up to its length, and decodes by a GRU."""

    scores_by_steps = True

    def __init__(self) -> None:
        super().__init__(6, TOKENIZER.vocab_size)

    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        inside = torch.arange(source_ids.shape[1]) < source_lengths[:, None]
        return {}, {"hidden": (self.embedding(source_ids) * inside[..., None]).sum(dim=1)}


class Unmasked(Summing):
    def score(self, sources: Tensor, lengths: Tensor, start: Tensor, targets: Tensor, ends: Tensor) -> Tensor:
        return super().score(sources, lengths, start, targets, torch.full_like(ends, targets.shape[1]))


class Backward(Summing):
    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        read, _ = self.reader(self.embedding(source_ids.flip(1)))
        return {}, {"hidden": read[:, -1]}


class Looping(Summing):
    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        hidden = torch.zeros(len(source_ids), 6)
        for position in range(source_ids.shape[1]):
            inside = (position < source_lengths)[:, None]
            hidden = torch.where(inside, torch.tanh(hidden + self.embedding(source_ids[:, position])), hidden)
        return {}, {"hidden": hidden}


class Deciding(Summing):
    def encode(self, source_ids: Tensor, source_lengths: Tensor) -> tuple[Tensors, Tensors]:
        read = zip(source_ids, source_lengths, strict=True)
        return {}, {"hidden": torch.stack([self.embedding(ids[: int(length)]).sum(dim=0) for ids, length in read])}


def export(model: nn.Module, out: Path) -> None:
    export_bundle(
        model.eval(),
        TOKENIZER,
        out,
        name="own",
        languages=Languages.of_pair("en", "de", suffix=(2,)),
        special_tokens=SpecialTokens(pad=0, start=1, eos=(2,), suppress=(0, 1)),
        limits=Limits(max_source_length=12, max_target_length=12),
        precisions=["fp32"],
    )


def made(kind: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return kind()


def test_the_model_itself_is_exported(tmp_path: Path) -> None:
    export(made(Summing), tmp_path / "bundle")
    assert (tmp_path / "bundle" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (Unmasked, "hint: `score` must be 0 after a target's end: mask it by target_lengths"),
        (Backward, "hint: a row must depend neither on other rows nor on padding after source_lengths: mask attention"),
    ],
)
def test_verification_says_what_usually_helps(kind: type[nn.Module], hint: str, tmp_path: Path) -> None:
    with pytest.raises(VerificationError) as caught:
        export(made(kind), tmp_path / "bundle")
    assert hint in str(caught.value)
    assert str(caught.value).count("hint: ") == 1
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(("kind", "line"), [(Looping, ""), (Deciding, "ids[: int(length)]")])
def test_methods_that_cannot_be_traced_are_named(
    kind: type[nn.Module],
    line: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Graphs that PyTorch prints go to the log."""
    refused = pytest.raises(ExportError, match="cannot be exported: PyTorch's exporter refuses `encode`")
    with caplog.at_level(logging.DEBUG, "jumok_export"), refused as caught:
        export(made(kind), tmp_path / "bundle")
    message = str(caught.value)
    assert line in message
    assert "hint: no Python loop, condition or size may depend on the number of tokens" in message
    assert len(message) < 900
    printed = {record.levelno for record in caplog.records if "def forward(self" in record.getMessage()}
    assert printed == ({logging.DEBUG} if kind is Deciding else set())
    assert capfd.readouterr() == ("", "")


def test_values_that_are_no_numbers_are_named_by_tensor(tmp_path: Path) -> None:
    model = made(Summing)
    with torch.no_grad():
        for name in ("writer.bias_hh_l0", "output.weight"):
            model.get_parameter(name).flatten()[2] = torch.nan
    with pytest.raises(ExportError, match=r"NaN or infinite values are in writer.bias_hh_l0, output.weight: export"):
        export(model, tmp_path / "bundle")
