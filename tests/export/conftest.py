"""Shared fixtures: checkpoints' tokenizers and graphs of imported models."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from jumok_export.graphs.graph import Graph
from jumok_export.graphs.tracing import export_graphs
from jumok_export.importers.huggingface import build_model
from jumok_export.models.attention import scaled_queries
from tests.support.checkpoints.random_checkpoints import config_of, random_checkpoint
from tests.support.checkpoints.tokenizer_checkpoints import CHECKPOINTS, write
from tests.support.models.trained import MODELS


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
def imported_graphs(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Callable[[str], dict[str, Graph]]:
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
