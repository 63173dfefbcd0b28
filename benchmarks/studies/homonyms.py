"""Measure if a Transformer tells the meanings of words apart, and which heads of its encoder do it.

Contrastive pairs are scored by the service, as ScoreText does. Then the same model in PyTorch scores them again while
parts of it see less: the decoder only the encoder's states of the word, and the word in the encoder only itself, in all
heads or in one at a time.
"""

import argparse
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.common.data import TRANSFORMER
from benchmarks.common.progress import write_json
from benchmarks.common.trained import dequantized
from jumok_export.models.attention import MultiHeadAttention
from jumok_export.models.transformer import Transformer
from jumok_export.training.vocabulary import END, START
from jumok_serve import Translator

PAIRS = Path(__file__).with_suffix(".toml")
CONTEXT, ALONE = "with context", "word alone"
ENCODERS = DECODERS = (CONTEXT, ALONE)
"""Sight of the word in the encoder's self-attention, and of the decoder in its cross-attention."""
Heads = Sequence[tuple[int, int]]
"""Layer and head of each."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word with two meanings.

    Attributes:
        texts: a text for each meaning.
        right: the translation of each text.
        wrong: the same translation with the other meaning of the word.
    """

    word: str
    texts: tuple[str, str]
    right: tuple[str, str]
    wrong: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Homonyms:
    """Measurements of words with two meanings.

    A margin is the log-probability of the right translation less that of the wrong one, in nats. The shift of a word is
    the sum of its two margins. It is above 0 if the context moves the model to the right meaning, and contains no
    preference for a word of the translations.

    Attributes:
        margins: margins of the two texts of each word, by the service.
        shifts: mean shift in PyTorch, by `ENCODERS` and `DECODERS`: what each of them sees.
        heads: mean loss of shift if one head of the encoder does not see the context, and the decoder reads the word
            alone, [layers][heads].
    """

    margins: dict[str, tuple[float, float]]
    shifts: dict[str, dict[str, float]]
    heads: list[list[float]]

    @property
    def chosen(self) -> int:
        """Number of texts whose right translation scores higher."""
        return sum(margin > 0 for margins in self.margins.values() for margin in margins)

    @property
    def shifted(self) -> int:
        """Number of words whose context shifts the scores to the right meaning."""
        return sum(sum(margins) > 0 for margins in self.margins.values())


def read_words(path: Path = PAIRS) -> list[Word]:
    """Read the contrastive pairs."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["words"]
    return [
        Word(word=each["word"], **{key: tuple(each[key]) for key in ("texts", "right", "wrong")}) for each in tables
    ]


def score_words(translator: Translator, words: Sequence[Word]) -> dict[str, tuple[float, float]]:
    """Compute the margins of each word by the service's scores."""
    pairs = [(text, target) for each in words for text, *targets in _triples(each) for target in targets]
    scores = translator.score(*map(list, zip(*pairs, strict=True)), length_penalty=0.0)
    values = iter([score.score for score in scores])
    return {each.word: tuple(next(values) - next(values) for _ in each.texts) for each in words}  # type: ignore[misc]


def _triples(word: Word) -> Iterator[tuple[str, str, str]]:
    yield from zip(word.texts, word.right, word.wrong, strict=True)


class Hiding:
    """The committed Transformer in PyTorch, whose parts can be made to see less."""

    def __init__(self, translator: Translator, model: Transformer) -> None:
        self._tokenizer, self.model = translator.tokenizer, model

    def shift(self, word: Word, hidden: Heads, decoder: str = CONTEXT) -> float:
        """The shift of a word.

        Args:
            hidden: heads of the encoder in which the word's tokens and the end token see only themselves.
            decoder: of `DECODERS`; with the word alone the decoder reads the word's states and the end token's.
        """
        return sum(
            self._score(word.word, pair, hidden, decoder) - self._score(word.word, other, hidden, decoder)
            for text, right, wrong in _triples(word)
            for pair, other in [((text, right), (text, wrong))]
        )

    def _score(self, word: str, pair: tuple[str, str], hidden: Heads, decoder: str) -> float:
        source, ids = (torch.tensor([self._encode(line, target=side)]) for side, line in enumerate(pair))
        places, length = self.places(word, pair[0]), source.shape[1]
        with torch.no_grad(), self.hide(places, length, hidden, decoder):
            scores = self.model.score(
                source, torch.tensor([length]), torch.tensor([START]), ids, torch.tensor([ids.shape[1]])
            )
        return float(scores.sum())

    def _encode(self, text: str, *, target: int) -> list[int]:
        encode = self._tokenizer.encode_target if target else self._tokenizer.encode
        return [*encode(text), END]

    def places(self, word: str, text: str) -> list[int]:
        """Positions of the word's tokens in a text."""
        before, _, _ = text.partition(word)
        start, end = (len(self._tokenizer.encode(part)) for part in (before.rstrip(), before + word))
        return list(range(start, end))

    @contextmanager
    def hide(self, places: Sequence[int], length: int, hidden: Heads, decoder: str) -> Iterator[None]:
        """Hide tokens of a source within this context.

        Args:
            places: positions of the word's tokens.
            length: number of tokens, the end token included.
            hidden, decoder: see `shift`.
        """
        hooks = []
        read = [*places, length - 1]  # the end token is a place to attend to nothing, which heads need
        for layer, of_layer in enumerate(self.model.encoder):
            attention = cast(MultiHeadAttention, of_layer.self_attention)
            visible = torch.ones(1, attention.heads, length, length, dtype=torch.bool)
            for head in (head for number, head in hidden if number == layer):
                visible[0, head, read] = False
                visible[0, head, read, read] = True
            hooks.append(attention.register_forward_pre_hook(partial(_masked, visible=visible)))
        if decoder == ALONE:
            visible = torch.zeros(length, dtype=torch.bool)
            visible[read] = True
            for of_layer in self.model.decoder:
                cross = cast(MultiHeadAttention, of_layer.cross_attention)
                hooks.append(cross.register_forward_pre_hook(partial(_masked, visible=visible)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _masked(_: nn.Module, arguments: tuple[Any, ...], *, visible: Tensor) -> tuple[Any, ...]:
    query, memory, mask, *others = arguments
    return (query, memory, mask & visible, *others)


def measure(bundle: Path = TRANSFORMER, words: Sequence[Word] | None = None) -> Homonyms:
    """Measure a bundle with an int8 Transformer."""
    words = read_words() if words is None else words
    with Translator(bundle) as translator:
        margins = score_words(translator, words)
        hiding = Hiding(translator, dequantized(bundle))
        sizes = hiding.model.sizes
        every = [(layer, head) for layer in range(sizes.encoder_layers) for head in range(sizes.heads)]

        def mean(hidden: Heads, decoder: str) -> float:
            return sum(hiding.shift(each, hidden, decoder) for each in words) / len(words)

        shifts = {
            encoder: {decoder: mean([] if encoder == CONTEXT else every, decoder) for decoder in DECODERS}
            for encoder in ENCODERS
        }
        lost = {place: shifts[CONTEXT][ALONE] - mean([place], ALONE) for place in every}
        return Homonyms(
            margins=margins,
            shifts=shifts,
            heads=[[lost[layer, head] for head in range(sizes.heads)] for layer in range(sizes.encoder_layers)],
        )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure if a Transformer tells the meanings of words apart.")
    parser.add_argument("--words", nargs="+", default=[], help="only these; default: all")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    found = measure(words=[each for each in read_words() if each.word in options.words or not options.words])
    for word, margins in found.margins.items():
        print(f"{word:10} {margins[0]:8.2f} {margins[1]:8.2f} {sum(margins):8.2f}")
    texts = 2 * len(found.margins)
    print(f"right translation scores higher: {found.chosen} of {texts} texts")
    print(f"context shifts the scores to the right meaning: {found.shifted} of {len(found.margins)} words")
    for encoder, shifts in found.shifts.items():
        for decoder, shift in shifts.items():
            print(f"mean shift, encoder {encoder}, decoder {decoder}: {shift:.2f} nats")
    for layer, heads in enumerate(found.heads):
        print(f"layer {layer}: mean loss of shift by head", " ".join(f"{loss:+.2f}" for loss in heads))
    write_json(options.json, asdict(found))


if __name__ == "__main__":
    main()
