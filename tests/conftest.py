"""What all tests share: a tiny corpus, and a small trained model with its bundle."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from jumok_export.bundle import export_bundle
from jumok_export.corpus import pad
from jumok_export.transformer import Transformer, TransformerSizes
from jumok_export.vocabulary import END, PAD, START, UNKNOWN, Vocabulary, train_vocabulary
from jumok_serve.manifest import GenerationDefaults, Languages, Limits, SpecialTokens
from jumok_serve.parallel_text import read_lines
from jumok_serve.tokenizer import SentencePieceTokenizer

torch.set_num_threads(1)  # the models are so small that threads would only wait for each other

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def sentences() -> tuple[list[str], list[str]]:
    """A few dozen English sentences and their German translations."""
    return read_lines(DATA / "train.en"), read_lines(DATA / "train.de")


@pytest.fixture(scope="session")
def vocabulary(sentences: tuple[list[str], list[str]]) -> Vocabulary:
    """One vocabulary for both languages."""
    lines = [*sentences[0], *sentences[1]]
    return Vocabulary(train_vocabulary(lines, size=180, kind="unigram", character_coverage=1.0, seed=1))


@pytest.fixture(scope="session")
def tiny_model(sentences: tuple[list[str], list[str]], vocabulary: Vocabulary) -> Transformer:
    """A Transformer of one layer each that has half learnt the sentences: its translations end, at varied lengths."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        sizes = TransformerSizes(
            source_vocabulary=len(vocabulary),
            target_vocabulary=len(vocabulary),
            width=32,
            heads=2,
            feed_forward=64,
            encoder_layers=1,
            decoder_layers=1,
            max_positions=64,
            dropout=0.0,
            pad=PAD,
            start=START,
        )
        model = Transformer(sizes)
        source_ids, source_lengths = pad([torch.tensor(vocabulary.encode(line)) for line in sentences[0]])
        target_ids, _ = pad([torch.tensor(vocabulary.encode(line)) for line in sentences[1]])
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(120):
            logits = model(source_ids, source_lengths, target_ids)
            loss = F.cross_entropy(logits.flatten(0, 1), target_ids.flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def tiny_bundle(tiny_model: Transformer, vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's verified bundle, in fp32 and int8; not to be changed."""
    path = tmp_path_factory.mktemp("bundle") / "tiny-en-de"
    export_bundle(
        tiny_model,
        SentencePieceTokenizer(vocabulary.model),
        path,
        name="tiny-en-de",
        languages=Languages(source="en", target="de"),
        special_tokens=SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN, suppress=(PAD, UNKNOWN, START)),
        limits=Limits(max_source_length=48, max_target_length=48),
        generation=GenerationDefaults(beam_size=2, max_length=40),
    )
    return path
