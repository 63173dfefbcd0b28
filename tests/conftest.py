"""Fixtures of all tests: a tiny corpus, small trained models and bundles."""

import fcntl
import hashlib
import logging
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
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
from jumok_export.training.corpus import pad
from jumok_export.training.vocabulary import END, PAD, START, UNKNOWN, Vocabulary, train_vocabulary
from jumok_serve import native
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.evaluation.parallel_text import read_lines
from jumok_serve.manifest.languages import Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.tokenizers.tokenizer import SentencePieceTokenizer

torch.set_num_threads(1)  # the models are so small that threads would only wait for each other
logging.getLogger("torch.__trace").propagate = False  # thousands of records an export, which pytest would keep

# What a shell runs in the background ignores Ctrl-C, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

DATA = Path(__file__).parent / "data"

Made = Callable[[str, Callable[[Path], object]], Path]


def pytest_sessionstart() -> None:
    """Stop if the native kernels were built from other sources: their tests would be skipped."""
    try:
        native.check(native.LIBRARY)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    except Exception:  # there are none, or this processor cannot run them
        return


SLOW = (
    "tests/benchmarks",
    "tests/faults",
    "tests/parity",
    "tests/clients/test_watch.py",
    "tests/export/importers/argos",
    "tests/export/importers/ctranslate2",
    "tests/export/importers/marian/test_engines.py",
    "tests/export/importers/marian/test_import.py",
    "tests/export/verification/test_noise.py",
    "tests/project/test_documents.py",
    "tests/project/test_packaging.py",
    "tests/serve/cli/test_named_models.py",
    "tests/serve/http/test_gateway.py",
)
"""Beginnings of the paths of slow tests."""
EXPORTING = (
    "tests/export/bundles",
    "tests/export/graphs/test_graphs.py",
    "tests/export/importers/huggingface/test_import",
    "tests/export/quantization/test_calibration.py",
    "tests/export/verification",
    "tests/project/test_committed_model.py",
)
"""Beginnings of the paths of tests that export models, or translate a whole test set."""
LONGEST_FIRST = (
    "test_documents.py",
    "test_noise.py",
    "test_offline.py",
    "test_quality.py",
    "test_gpu.py",
    "test_throughput.py",
    "test_step.py",
    "test_serving.py",
    "test_training.py",
)
"""Files with single tests of a quarter of a minute and more."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow and unit tests, and start with the longest ones, so that no process waits for another at the end.

    Groups of tests that one process runs (`xdist_group`) come before them, largest first.
    """
    for item in items:
        if item.path.relative_to(config.rootpath).as_posix().startswith(SLOW):
            item.add_marker("slow")
        elif is_unit(item):
            item.add_marker("unit")
    order = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def is_unit(item: pytest.Item) -> bool:
    """True if a test trains no model, exports none and starts no process."""
    assert isinstance(item, pytest.Function)
    starts_processes = {"subprocess", "jumok", "serving"} & vars(item.module).keys()
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    exports = (
        "made_once" in item.fixturenames
        or any(isinstance(value, str) and value.endswith("_bundle") for value in parameters)  # name of a fixture
        or item.path.relative_to(item.config.rootpath).as_posix().startswith(EXPORTING)
    )
    return not starts_processes and not exports and not item.get_closest_marker("slow")


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return the folder of a name, filled once for all processes; read only.

    The first process that asks fills it, and others wait meanwhile. In `JUMOK_TEST_CACHE` it lasts from run to run.
    """
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    if cache := os.environ.get("JUMOK_TEST_CACHE"):
        shared = Path(cache) / hash_of_exporters()
    shared.mkdir(exist_ok=True, parents=True)

    def make_once(name: str, fill: Callable[[Path], object]) -> Path:
        folder, filled = shared / name, shared / f"{name}.filled"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not filled.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
                folder.mkdir()
                fill(folder)
                filled.touch()
        return folder

    return make_once


def hash_of_exporters() -> str:
    """Return the hash of all code and data on which made folders depend."""
    root = DATA.parent.parent
    folders = (root / "export", root / "serve/jumok_serve/manifest", root / "serve/jumok_serve/bundle", DATA)
    files = [Path(__file__), *(file for folder in folders for file in sorted(folder.rglob("*")) if file.is_file())]
    hashed = hashlib.sha256(b"".join(file.read_bytes() for file in files if file.suffix != ".pyc"))
    return hashed.hexdigest()[:16]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the verdicts on bundles in the folder of the run, for all its processes."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    os.environ["JUMOK_CACHE"] = str(shared / "cache")


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
def tiny_model(sentences: tuple[list[str], list[str]], vocabulary: Vocabulary, made_once: Made) -> Transformer:
    """A Transformer of one layer each that has half learnt the sentences: its translations end, at varied lengths."""
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
    )

    def train(folder: Path) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = learnt(Transformer(sizes), sentences, vocabulary, updates=120)
        torch.save(model, folder / "model.pt")

    model: Transformer = torch.load(made_once("tiny-model", train) / "model.pt", weights_only=False)
    return model


@pytest.fixture(scope="session")
def tiny_recurrent(sentences: tuple[list[str], list[str]], vocabulary: Vocabulary, made_once: Made) -> Recurrent:
    """A recurrent model with attention that has half learnt them too."""
    sizes = RecurrentSizes(
        source_vocabulary=len(vocabulary),
        target_vocabulary=len(vocabulary),
        cell="gru",
        attention="general",
        input_feeding=True,
        embedding=24,
        width=32,
        encoder_width=48,
        dropout=0.0,
    )

    def train(folder: Path) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = learnt(make_recurrent(sizes), sentences, vocabulary, updates=150)
        torch.save(model, folder / "model.pt")

    model: Recurrent = torch.load(made_once("tiny-recurrent-model", train) / "model.pt", weights_only=False)
    return model


Model = TypeVar("Model", bound=Seq2Seq)


def learnt(model: Model, sentences: tuple[list[str], list[str]], vocabulary: Vocabulary, *, updates: int) -> Model:
    """Train a model for a number of passes over the sentences."""
    source_ids, source_lengths = pad([torch.tensor(vocabulary.encode(line)) for line in sentences[0]])
    target_ids, _ = pad([torch.tensor(vocabulary.encode(line)) for line in sentences[1]])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(updates):
        logits = model(source_ids, source_lengths, torch.full_like(source_lengths, START), target_ids)
        loss = F.cross_entropy(logits.flatten(0, 1), target_ids.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def tiny_graphs(tiny_model: Transformer, vocabulary: Vocabulary, made_once: Made) -> dict[str, Graph]:
    """The tiny model's graphs in fp32, as a bundle has them; not to be changed."""

    def export(folder: Path) -> None:
        with scaled_queries(tiny_model):
            graphs = export_graphs(tiny_model, len(vocabulary), len(vocabulary))
        (folder / "graphs.pickle").write_bytes(pickle.dumps(graphs))

    graphs: dict[str, Graph] = pickle.loads((made_once("tiny-graphs", export) / "graphs.pickle").read_bytes())
    return graphs


@pytest.fixture(scope="session")
def export_tiny(
    tiny_model: Transformer, tiny_graphs: dict[str, Graph], vocabulary: Vocabulary
) -> Callable[..., Bundle]:
    """Exports the tiny model into a folder; its graphs, which take longest, are made once and given every time.

    A test may give other graphs, another model and other arguments of `export_bundle`.
    """

    def export(out: Path, *, graphs: Mapping[str, Graph] = tiny_graphs, **arguments: Any) -> Bundle:
        settings: dict[str, Any] = {
            "model": tiny_model,
            "tokenizer": SentencePieceTokenizer(vocabulary.model),
            "name": "tiny-en-de",
            "languages": Languages.of_pair("en", "de", suffix=(END,)),
            "special_tokens": SpecialTokens(
                pad=PAD, start=START, eos=(END,), unk=UNKNOWN, suppress=(PAD, UNKNOWN, START)
            ),
            "limits": Limits(max_source_length=48, max_target_length=48),
            "generation": GenerationDefaults(beam_size=2, max_length=40),
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("jumok_export.bundles.export.export_graphs", lambda *_: graphs)
            return export_bundle(**{**settings, "out": out, **arguments})

    return export


@pytest.fixture(scope="session")
def tiny_bundle(export_tiny: Callable[..., Bundle], made_once: Made) -> Path:
    """The tiny model's verified bundle, in fp32 and int8; not to be changed."""
    return made_once("tiny-bundle", lambda folder: export_tiny(folder / "tiny-en-de")) / "tiny-en-de"


@pytest.fixture(scope="session")
def recurrent_bundle(
    export_tiny: Callable[..., Bundle],
    tiny_recurrent: Recurrent,
    sentences: tuple[list[str], list[str]],
    vocabulary: Vocabulary,
    made_once: Made,
) -> Path:
    """The recurrent model's verified bundle, in fp32 and calibrated int8; not to be changed."""

    def export(folder: Path) -> None:
        graphs = export_graphs(tiny_recurrent, len(vocabulary), len(vocabulary))
        settings = {"name": "tiny-recurrent", "model": tiny_recurrent, "calibration": sentences[0]}
        export_tiny(folder / "tiny-recurrent", graphs=graphs, **settings)

    return made_once("recurrent-bundle", export) / "tiny-recurrent"


@pytest.fixture(scope="session")
def half_bundle(export_tiny: Callable[..., Bundle], made_once: Made) -> Path:
    """The tiny bundle in fp32 and fp16, without int8; not to be changed."""

    def export(folder: Path) -> None:
        export_tiny(folder / "tiny-half", precisions=("fp32", "fp16"))

    return made_once("half-bundle", export) / "tiny-half"


@pytest.fixture(scope="session")
def listed_bundle(
    export_tiny: Callable[..., Bundle],
    sentences: tuple[list[str], list[str]],
    made_once: Made,
) -> Path:
    """The same with a shortlist that leaves out most of the vocabulary; not to be changed."""
    lexicon = ParallelText(sources=sentences[0], targets=sentences[1])
    plan = ShortlistPlan(lexicon=lexicon, best=5, frequent=8)
    return (
        made_once("listed-bundle", lambda folder: export_tiny(folder / "listed-en-de", shortlist=plan)) / "listed-en-de"
    )
