"""One checkpoint on its whole way: trained, imported, translated by both sides, compared."""

import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.common.progress import progress
from jumok_export.errors import ExportError
from jumok_export.importers.huggingface.importing import import_checkpoint
from jumok_proto.results import Translation
from jumok_serve import EngineLimits, Translator
from jumok_serve.tasks.model import TranslationParameters
from tests.parity.checkpoints import Checkpoint, Shape, make_checkpoint
from tests.parity.compare import Tally
from tests.parity.grid import OptionSet, cases, option_sets, quick_sets
from tests.parity.oracle import Case, answer
from tests.parity.shapes import SHAPES
from tests.parity.texts import Parallel, parallel_sentences

Progress = Callable[[str], None]
SEED = 1
"""Of the sentences to translate; those to train on have another."""
LONGEST = 64
"""Limit of an import in tokens; no case is longer. T5 would be verified with 4,096, which takes very long."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one checkpoint."""

    shape: str
    family: str
    tally: Tally


def compare_shape(
    shape: Shape,
    sets: Callable[[Checkpoint], Sequence[OptionSet]],
    sentences: Sequence[Parallel],
    progress: Progress,
) -> Outcome:
    """Makes a checkpoint, imports it, and compares every sentence with every set of options."""
    started = time.monotonic()
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder, quiet():
        checkpoint = make_checkpoint(shape, Path(folder) / shape.name)
        progress(f"{shape.name}: trained")
        asked = list(cases(checkpoint, sets(checkpoint), sentences))
        with imported(checkpoint, Path(folder) / "bundle") as translator:
            progress(f"{shape.name}: imported")
            translations = translate(translator, [case for _, case in asked])
        progress(f"{shape.name}: translated {len(asked)} cases")
        for (chosen, case), translation in zip(asked, translations, strict=True):
            tally.add(checkpoint, chosen.name, case, translation, answer(checkpoint, case))
    seconds = time.monotonic() - started
    progress(f"{shape.name}: {tally.equal} of {tally.cases} equal, {tally.ties} ties, {seconds:.0f} s")
    return Outcome(shape=shape.name, family=shape.family, tally=tally)


def compare_named(name: str, *, quick: bool, sentences: int) -> Outcome:
    """Compare the checkpoint of a name, on one core."""  # not in __main__, where a new process would not find it
    torch.set_num_threads(1)
    [shape] = [each for each in SHAPES if each.name == name]
    try:
        sets = quick_sets if quick else option_sets
        return compare_shape(shape, sets, parallel_sentences(sentences, seed=SEED), progress)
    except ExportError as error:  # the others have yet to be compared
        progress(f"{name}: {error}")
        return Outcome(shape=name, family=shape.family, tally=Tally(refused=[f"{name}: {error}"]))


@contextmanager
def imported(checkpoint: Checkpoint, bundle: Path) -> Iterator[Translator]:
    """A translator with what importing has made of the checkpoint; its queue takes any number of cases."""
    pair = checkpoint.shape.pairs[0]
    named = checkpoint.shape.named_languages
    import_checkpoint(
        checkpoint.folder,
        bundle,
        precisions=("fp32",),
        source_language=pair.source if named else None,
        target_language=pair.target if named else None,
        max_source_length=LONGEST,
        max_target_length=LONGEST,
    )
    translator = Translator(
        bundle,
        precision="fp32",
        threads=torch.get_num_threads(),
        limits=EngineLimits(max_queue_requests=10**6, max_queue_tokens=10**9),
    )
    with translator:
        yield translator


def translate(translator: Translator, asked: Sequence[Case]) -> list[Translation]:
    """Translates all cases at once: everything is submitted before anything is collected."""
    pending = [
        translator.submit(
            [case.text],
            TranslationParameters(
                options=case.options, source_language=case.pair.source, target_language=case.pair.target
            ),
            target_prefixes=[case.prefix] if case.prefix else None,
        )
        for case in asked
    ]
    return [one.collect()[0] for one in pending]


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' hints and progress bars."""
    hints: Any = transformers.utils.logging  # untyped
    hints.set_verbosity_error()
    hints.disable_progress_bar()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
