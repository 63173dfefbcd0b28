"""Tiny trained models of the tests, committed in `tests/data/models`: each processor tests the same weights.

`python -m tests.support.models.trained` exports the bundles again, with `--train` after training the weights.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import torch
from torch.nn import functional as F

from jumok_export.bundles.export import export_bundle
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.tracing import export_graphs
from jumok_export.models.attention import scaled_queries
from jumok_export.models.recurrent import Recurrent, RecurrentSizes, make_recurrent
from jumok_export.models.seq2seq import Seq2Seq
from jumok_export.models.transformer import Transformer, TransformerSizes
from jumok_export.shortlists.sources import ParallelText, ShortlistPlan
from jumok_export.training.checkpoint import BEST
from jumok_export.training.corpus import pad
from jumok_export.training.vocabulary import END, PAD, START, UNKNOWN, Vocabulary, train_vocabulary
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.support.checkpoints.marian_folders import trained_parameters, write_student
from tests.support.data import MODELS, Sentences, read_sentences
from tests.support.reversing import train_reversing

Model = TypeVar("Model", bound=Seq2Seq)


class Training(NamedTuple):
    """Recipe of a tiny model."""

    make: Callable[[int], Seq2Seq]
    updates: int
    seed: int = 1

    def untrained(self, vocabulary: int) -> Seq2Seq:
        """Make the model for a number of tokens, with random weights."""
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            return self.make(vocabulary)

    def train(self, sentences: Sentences, vocabulary: Vocabulary) -> tuple[Seq2Seq, list[float]]:
        """Return the trained model, and the loss before each update."""
        model = self.untrained(len(vocabulary))
        return model.eval(), learn(model, sentences, vocabulary, self.updates)


def transformer(vocabulary: int, **sizes: int) -> Transformer:
    """Make a Transformer of one layer each."""
    one: dict[str, Any] = {"width": 32, "heads": 2, "feed_forward": 64, "encoder_layers": 1, "decoder_layers": 1}
    shared = {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary, "max_positions": 64, "dropout": 0.0}
    return Transformer(TransformerSizes(**{**one, **sizes, **shared}))


def recurrent(vocabulary: int) -> Recurrent:
    """Make a recurrent model with attention."""
    sizes = RecurrentSizes(
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        cell="gru",
        attention="general",
        input_feeding=True,
        embedding=24,
        width=32,
        encoder_width=48,
        dropout=0.0,
    )
    return make_recurrent(sizes)


def other_transformer(vocabulary: int) -> Transformer:
    """Make a Transformer of other sizes."""
    return transformer(vocabulary, width=24, heads=3, feed_forward=32, decoder_layers=2)


# They have half learnt the sentences: their translations end, at varied lengths. The last one has learnt less.
TRAININGS: Mapping[str, Training] = {
    "tiny": Training(transformer, updates=120),
    "recurrent": Training(recurrent, updates=150),
    "other": Training(other_transformer, updates=60, seed=7),
}


def learn(model: Seq2Seq, sentences: Sentences, vocabulary: Vocabulary, updates: int) -> list[float]:
    """Train a model for a number of passes over the sentences; return the loss before each."""
    source_ids, source_lengths = pad([torch.tensor(vocabulary.encode(line)) for line in sentences[0]])
    target_ids, _ = pad([torch.tensor(vocabulary.encode(line)) for line in sentences[1]])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(updates):
        logits = model(source_ids, source_lengths, torch.full_like(source_lengths, START), target_ids)
        loss = F.cross_entropy(logits.flatten(0, 1), target_ids.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights_file(name: str) -> Path:
    """Return the path of a committed model's weights."""
    return MODELS / f"{name}.pt"


def committed(name: str, vocabulary: Vocabulary) -> Seq2Seq:
    """Return a committed model."""
    model = TRAININGS[name].untrained(len(vocabulary))
    model.load_state_dict(torch.load(weights_file(name), weights_only=True))
    return model.eval()


def trace(model: Seq2Seq, vocabulary: Vocabulary) -> dict[str, Graph]:
    """Trace a model's graphs in fp32, as a bundle has them."""
    with scaled_queries(model):
        return export_graphs(model, len(vocabulary), len(vocabulary))


def export_tiny(out: Path, *, vocabulary: Vocabulary, graphs: Mapping[str, Graph], **arguments: Any) -> Bundle:
    """Export a tiny model, whose graphs are traced already.

    Args:
        arguments: others of `export_bundle` than the usual ones.
    """
    settings: dict[str, Any] = {
        "tokenizer": SentencePieceTokenizer(vocabulary.model),
        "name": "tiny-en-de",
        "languages": Languages.of_pair("en", "de", suffix=(END,)),
        "special_tokens": SpecialTokens(pad=PAD, start=START, eos=(END,), unk=UNKNOWN, suppress=(PAD, UNKNOWN, START)),
        "limits": Limits(max_source_length=48, max_target_length=48),
        "generation": GenerationDefaults(beam_size=2, max_length=40),
    }
    with mock.patch("jumok_export.bundles.export.export_graphs", return_value=graphs):
        return export_bundle(**{**settings, "out": out, **arguments})


def bundle_settings(sentences: Sentences) -> dict[str, dict[str, Any]]:
    """Return the settings of the committed bundles by their folders; `trained` names one's model."""
    lexicon = ParallelText(sources=sentences[0], targets=sentences[1])
    return {
        "tiny-en-de": {"trained": "tiny"},
        "tiny-recurrent": {"trained": "recurrent", "name": "tiny-recurrent", "calibration": sentences[0]},
        "tiny-half": {"trained": "tiny", "precisions": ("fp32", "fp16")},
        "listed-en-de": {"trained": "tiny", "shortlist": ShortlistPlan(lexicon=lexicon, best=5, frequent=8)},
    }


def write_weights(out: Path) -> Vocabulary:
    """Train all models anew and write their weights; return the vocabulary."""
    sentences = read_sentences()
    lines = [*sentences[0], *sentences[1]]
    vocabulary = Vocabulary(train_vocabulary(lines, size=180, kind="unigram", character_coverage=1.0, seed=1))
    for name, training in TRAININGS.items():
        torch.save(training.train(sentences, vocabulary)[0].state_dict(), out / weights_file(name).name)
    write_student(out / "student", arrays=trained_parameters())
    with tempfile.TemporaryDirectory() as made:
        train_reversing(Path(made))
        checkpoint = torch.load(Path(made) / "run" / BEST, weights_only=True)
    torch.save({part: checkpoint[part] for part in ("jumok", "state_dict", "epoch")}, out / "reversing.ckpt")
    return vocabulary


def write_bundles(out: Path, vocabulary: Vocabulary) -> None:
    """Export the bundles of the committed weights anew."""
    for folder, settings in bundle_settings(read_sentences()).items():
        model = committed(settings.pop("trained"), vocabulary)
        shutil.rmtree(out / folder, ignore_errors=True)
        export_tiny(out / folder, vocabulary=vocabulary, model=model, graphs=trace(model, vocabulary), **settings)


def main() -> None:
    """Make the committed models again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train the weights anew")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.train:
        (MODELS / "student").mkdir(parents=True, exist_ok=True)
        vocabulary = write_weights(MODELS)
    else:
        vocabulary = Vocabulary((MODELS / "tiny-en-de" / "tokenizer.model").read_bytes())
    write_bundles(MODELS, vocabulary)


if __name__ == "__main__":
    main()
