"""The models that are served, and what they are asked to translate."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.ends import learn_to_end
from benchmarks.common.models import corpus, random_models, trained_models
from benchmarks.common.random_marian import MarianSizes, make_checkpoint, words
from tests.parity.run import Progress, quiet

MEAN_WORDS, DEVIATION_WORDS, FEWEST_WORDS, MOST_WORDS = 14, 4.5, 5, 32
"""Lengths of made-up sentences: like the captions of Multi30k, in tokens."""
SENTENCES = 512
LEARNT_FROM = 96
"""Sentences that random weights learn from when to end."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """One model as every contender wants it.

    Attributes:
        bundle: ours.
        ctranslate2: its folder, int8.
        source: the SentencePiece model of sources.
        target: that of translations.
        texts: to translate.
    """

    bundle: Path
    ctranslate2: Path
    source: Path
    target: Path
    texts: Sequence[str]


def random_marian(sizes: MarianSizes, folder: Path, progress: Progress) -> ServedModel:
    """A Marian model whose random weights end their translations; what is in the folder already is kept."""
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        progress("making a checkpoint")
        with quiet():
            part = folder / f"{checkpoint.name}.new"
            make_checkpoint(sizes, part)
            spelled = {word: index for index, word in enumerate(words(sizes), start=2)}
            sentences = made_up(sizes, LEARNT_FROM, seed=0)
            learn_to_end(part, [[*(spelled[word] for word in sentence.split()), 0] for sentence in sentences])
            part.rename(checkpoint)
    made = random_models(sizes, folder, source_length=MEAN_WORDS, progress=progress)
    return ServedModel(
        bundle=made.bundle,
        ctranslate2=made.ctranslate2["int8"],
        source=checkpoint / "source.spm",
        target=checkpoint / "target.spm",
        texts=made_up(sizes, SENTENCES, seed=1),
    )


def made_up(sizes: MarianSizes, count: int, *, seed: int) -> list[str]:
    """Sentences of random words, a token each, the same for the same seed."""
    generator, known = random.Random(seed), words(sizes)
    lengths = (round(generator.gauss(MEAN_WORDS, DEVIATION_WORDS)) for _ in range(count))
    return [" ".join(generator.choices(known, k=min(max(length, FEWEST_WORDS), MOST_WORDS))) for length in lengths]


def trained(folder: Path, progress: Progress) -> ServedModel:
    """The model of the repository, with the test sentences of its corpus; what is in the folder already is kept.

    Raises:
        FileNotFoundError: the corpus is not here.
    """
    texts = corpus("test_2016_flickr.en")
    made = trained_models(folder, progress=progress)
    tokenizer = made.bundle / "tokenizer.model"
    return ServedModel(
        bundle=made.bundle,
        ctranslate2=made.ctranslate2["int8"],
        source=tokenizer,
        target=tokenizer,
        texts=texts,
    )
