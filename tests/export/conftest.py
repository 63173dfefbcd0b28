"""Fixtures of tests with PyTorch: the tiny models, tokenizers of checkpoints and graphs of imported models."""

import logging
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from jumok_export.graphs.graph import Graph
from jumok_export.graphs.tracing import export_graphs
from jumok_export.importers.huggingface import build_model
from jumok_export.models.attention import scaled_queries
from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import Vocabulary
from jumok_serve.bundle.bundle import Bundle
from tests.conftest import Made
from tests.support.checkpoints.random_checkpoints import config_of, random_checkpoint
from tests.support.checkpoints.tokenizer_checkpoints import CHECKPOINTS, write
from tests.support.data import MODELS
from tests.support.models import trained
from tests.support.models.trained import committed, trace

torch.set_num_threads(1)  # the models are so small that threads would only wait for each other
logging.getLogger("torch.__trace").propagate = False  # thousands of records an export, which pytest would keep

Graphs = dict[str, Graph]


@pytest.fixture(scope="session")
def vocabulary(tiny_bundle: Path) -> Vocabulary:
    """One vocabulary for both languages."""
    return Vocabulary((tiny_bundle / "tokenizer.model").read_bytes())


@pytest.fixture(scope="session")
def tiny_model(vocabulary: Vocabulary) -> Transformer:
    """A Transformer of one layer each that has half learnt the sentences: its translations end, at varied lengths."""
    model = committed("tiny", vocabulary)
    assert isinstance(model, Transformer)
    return model


@pytest.fixture(scope="session")
def tiny_graphs(tiny_model: Transformer, vocabulary: Vocabulary, made_once: Made) -> dict[str, Graph]:
    """The tiny model's graphs in fp32, as a bundle has them; not to be changed."""

    def export(folder: Path) -> None:
        (folder / "graphs.pickle").write_bytes(pickle.dumps(trace(tiny_model, vocabulary)))

    graphs: dict[str, Graph] = pickle.loads((made_once("tiny-graphs", export) / "graphs.pickle").read_bytes())
    return graphs


@pytest.fixture(scope="session")
def export_tiny(tiny_model: Transformer, tiny_graphs: Graphs, vocabulary: Vocabulary) -> Callable[..., Bundle]:
    """Exports the tiny model into a folder; its graphs, which take longest, are made once and given every time.

    A test may give other graphs, another model and other arguments of `export_bundle`.
    """
    return partial(trained.export_tiny, vocabulary=vocabulary, model=tiny_model, graphs=tiny_graphs)


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make the tokenizer of a kind of checkpoint in a fresh folder, with a config.json."""

    def fresh(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        save, config = CHECKPOINTS[kind]
        save(folder)
        write(folder / "config.json", config)
        return folder

    return fresh


@pytest.fixture(scope="session")
def imported_graphs(made_once: Made) -> Callable[[str], dict[str, Graph]]:
    """Graphs in fp32 of a random checkpoint; read-only."""

    def of(name: str) -> dict[str, Graph]:
        def export(folder: Path) -> None:
            theirs = random_checkpoint(name)
            own = build_model(config_of(theirs), theirs.state_dict())
            with scaled_queries(own.model):
                graphs = export_graphs(own.model, own.source_vocabulary, own.target_vocabulary)
            (folder / "graphs.pickle").write_bytes(pickle.dumps(graphs))

        graphs: dict[str, Graph] = pickle.loads((made_once(f"imported-{name}", export) / "graphs.pickle").read_bytes())
        return graphs

    return of


@pytest.fixture(scope="session")
def reversing() -> Path:
    """The checkpoint of a Transformer that reverses words, with a guided head."""
    return MODELS / "reversing.ckpt"
