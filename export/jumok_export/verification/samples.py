"""Inputs of every graph in many shapes, for verification: random ones or sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jumok_export.quantization.calibration import Calibration
from jumok_export.verification.rollout import PlannedSentence, Rollout, pad, plan_rollout
from jumok_export.verification.sides import Arrays, Side, StepInputs
from jumok_serve.runtime.graphs import Integers, Pairs

SHAPES = 12
"""Random shapes per graph, after the smallest one."""
SOURCE_LENGTH, TARGET_LENGTH = 12, 10
"""Bounds of random lengths, in tokens; the model's own limits are checked once."""
LEAST_SLOTS, MOST_SLOTS, ROUNDS = 5, 10, 4
"""Sentences that are decoded at the same time, at least and at most, and rounds in which many sentences would decode.

A step of few rows takes as long as a step of more, as it reads the same weights.
"""
MOST_LOGITS = 2**27
"""Logits of a target that is scored at most: 512 MiB, several times over."""
OTHER_TOKENS = 0.25
"""Share of a translation's tokens that are replaced, so that a sentence's rows differ."""


@dataclass(frozen=True, kw_only=True)
class InputBounds:
    """Bounds of a model's inputs.

    Attributes:
        pad: token after the end of shorter sources.
        share: share of the usual number of inputs that are tried; less for large models, which take long.
    """

    source_vocabulary: int
    target_vocabulary: int
    start: int
    pad: int
    max_source_length: int
    max_target_length: int
    share: float = 1.0

    def some(self, number: int, least: int) -> int:
        """The share of a number of inputs, `least` or more."""
        return max(least, round(number * self.share))


Sources = tuple[Integers, Integers]
"""Source ids [B, S] and lengths [B]."""


class Samples:
    """Random inputs of every graph of a model, always the same.

    Args:
        side: encodes the steps' memory, and gives the shapes of their state.
    """

    def __init__(self, bounds: InputBounds, side: Side) -> None:
        self._bounds = bounds
        self._side = side
        self._source_length = min(SOURCE_LENGTH, bounds.max_source_length)
        self._target_length = min(TARGET_LENGTH, bounds.max_target_length)
        self._shapes = bounds.some(SHAPES, least=4)
        self._scored = min(bounds.max_target_length, max(1, MOST_LOGITS // bounds.target_vocabulary))

    def sources(self) -> Iterator[Sources]:
        """Yield sources of random shapes, the smallest first."""
        random = np.random.default_rng(1)
        yield self._source(random, 1, 1)
        for _ in range(self._shapes):
            yield self._source(random, *self._shape(random, self._source_length))

    def pairs(self) -> Iterator[Pairs]:
        """Yield sources and targets of random shapes, the smallest first."""
        random = np.random.default_rng(2)
        yield self._pair(random, 1, 1, 1)
        for _ in range(self._shapes):
            sentences, source = self._shape(random, self._source_length)
            target = int(random.integers(1, self._target_length + 1))
            yield self._pair(random, sentences, source, target)

    def steps(self) -> Iterator[StepInputs]:
        """Yield single steps over random memory and state, the smallest first."""
        random = np.random.default_rng(3)
        yield self._encoded_step(random, 1, 1, beam_size=1, parents=1, time=0)
        yield self._encoded_step(random, 3, self._source_length, beam_size=2, parents=1, time=0)
        for _ in range(2 * self._shapes):
            sentences, source = self._shape(random, self._source_length)
            beam_size, parents = (int(size) for size in random.integers(1, (6, 9)))
            time = int(random.integers(self._target_length))
            yield self._encoded_step(random, sentences, source, beam_size=beam_size, parents=parents, time=time)

    def longest(self) -> tuple[Pairs, StepInputs]:
        """The longest source and target, and the step at the longest target's last token.

        A target is shorter if its logits would take more than `MOST_LOGITS`.
        """
        random = np.random.default_rng(4)
        source, target = self._bounds.max_source_length, self._bounds.max_target_length
        ids = random.integers(self._bounds.source_vocabulary, size=(1, source))
        targets = random.integers(self._bounds.target_vocabulary, size=(1, target))[:, : self._scored]
        start = np.array([self._bounds.start])
        pair = Pairs(ids, np.array([source]), start, targets, np.array([targets.shape[1]]))
        self._source(random, 1, source)  # drawn as for other steps
        memory, _ = self._side.encode(*pair[:2])
        step = self._step(random, pair[1], memory, beam_size=1, parents=1, time=target - 1)
        return pair, step._replace(positions=np.array([target - 1]))

    def rollout(self, *, sentences: int, beam_size: int) -> Rollout:
        """A decode of several steps."""
        random = np.random.default_rng(beam_size)
        vocabulary, longest = self._bounds.target_vocabulary, self._target_length
        planned = [
            PlannedSentence(
                source=random.integers(
                    self._bounds.source_vocabulary, size=random.integers(1, self._source_length + 1)
                ),
                tokens=random.integers(vocabulary, size=(random.integers(min(2, longest), longest + 1) - 1, beam_size)),
            )
            for _ in range(self._bounds.some(sentences, least=5))
        ]
        return plan_rollout(
            planned, slots=_slots(planned), start=self._bounds.start, pad=self._bounds.pad, random=random
        )

    def _shape(self, random: np.random.Generator, longest: int) -> tuple[int, int]:
        sentences, length = random.integers(1, (6, longest + 1))
        return int(sentences), int(length)

    def _source(self, random: np.random.Generator, sentences: int, length: int) -> Sources:
        return _padded(random, (sentences, length), self._bounds.source_vocabulary, self._bounds.pad)

    def _pair(self, random: np.random.Generator, sentences: int, source: int, target: int) -> Pairs:
        vocabulary = self._bounds.target_vocabulary
        sources = self._source(random, sentences, source)
        # Targets are padded with token 0: the target vocabulary may lack the padding token.
        targets = _padded(random, (sentences, target), vocabulary, 0)
        return Pairs(*sources, random.integers(vocabulary, size=sentences), *targets)

    def _encoded_step(
        self, random: np.random.Generator, sentences: int, length: int, *, beam_size: int, parents: int, time: int
    ) -> StepInputs:
        ids, lengths = self._source(random, sentences, length)
        memory, _ = self._side.encode(ids, lengths)
        return self._step(random, lengths, memory, beam_size=beam_size, parents=parents, time=time)

    def _step(
        self,
        random: np.random.Generator,
        lengths: Integers,
        memory: Arrays,
        *,
        beam_size: int,
        parents: int,
        time: int,
    ) -> StepInputs:
        rows = len(lengths) * beam_size
        empty = self._side.empty_state()
        state = {name: _random_state(random, row, parents, time) for name, row in empty.items()}
        return StepInputs(
            token_ids=random.integers(self._bounds.target_vocabulary, size=rows),
            positions=random.integers(time + 1, size=rows),
            parents=random.integers(parents, size=rows),
            source_lengths=lengths,
            memory=memory,
            state=state,
        )


def _slots(planned: Sequence[PlannedSentence]) -> int:
    return min(MOST_SLOTS, max(LEAST_SLOTS, len(planned) // ROUNDS))


class SentenceSamples(Samples):
    """Sentences with their translations, instead of random tokens and state.

    Random inputs may leave the range that activation scales were calibrated for.

    Args:
        side: computes the steps' memory and state.
    """

    def __init__(self, bounds: InputBounds, side: Side, calibration: Calibration) -> None:
        super().__init__(bounds, side)
        self._start = calibration.start
        self._sources, self._targets = calibration.sources, calibration.targets

    def pairs(self) -> Iterator[Pairs]:
        """Yield batches of one to five sentences."""
        random = np.random.default_rng(2)
        for size in (1, *random.integers(1, 6, self._shapes).tolist()):
            chosen = random.integers(len(self._sources), size=size).tolist()
            sources = pad([self._sources[sentence] for sentence in chosen], self._bounds.pad)
            targets = pad([self._targets[sentence] for sentence in chosen], 0)
            yield Pairs(*sources, np.full(size, self._start), *targets)

    def longest(self) -> tuple[Pairs, StepInputs]:
        """Sentences one after another, up to the limits, with repeated state."""
        source = np.resize(np.concatenate(self._sources), (1, self._bounds.max_source_length))
        target = np.resize(np.concatenate(self._targets), (1, self._bounds.max_target_length))
        lengths, last = np.array([source.shape[1]]), target.shape[1] - 1
        scored = target[:, : self._scored]
        pair = Pairs(source, lengths, np.array([self._start]), scored, np.array([scored.shape[1]]))
        memory, _ = self._side.encode(source, lengths)
        row = target[:, -1], np.array([last]), np.array([0])
        return pair, StepInputs(*row, lengths, memory, self._state(last))

    def rollout(self, *, sentences: int, beam_size: int) -> Rollout:
        """A decode of several steps along translations, with some other tokens."""
        random = np.random.default_rng(beam_size)
        planned = []
        sentences = self._bounds.some(sentences, least=5)
        for sentence in np.linspace(0, len(self._sources) - 1, sentences).astype(int).tolist():
            target = self._targets[sentence][: self._target_length - 1]
            others = random.choice(target, (len(target), beam_size)) if len(target) else np.empty((0, beam_size), int)
            tokens = np.where(random.random(others.shape) < OTHER_TOKENS, others, target[:, None])
            planned.append(PlannedSentence(source=self._sources[sentence], tokens=tokens))
        return plan_rollout(planned, slots=_slots(planned), start=self._start, pad=self._bounds.pad, random=random)

    def _state(self, time: int) -> Arrays:
        """One row of state after `time` tokens: that of the middle sentence, repeated."""
        middle = len(self._sources) // 2
        source, target = self._sources[middle][None], self._targets[middle]
        lengths = np.array([source.shape[1]])
        memory, first_state = self._side.encode(source, lengths)
        empty = self._side.empty_state()
        state = {**empty, **first_state}
        for position, token in enumerate([self._start, *target[:-1]]):
            row = np.array([token]), np.array([position]), np.array([0])
            _, state = self._side.step(StepInputs(*row, lengths, memory, state))
        # An axis of size 0 before any token is time; it may have spare entries.
        places = np.arange(time) % len(target)
        for name, value in empty.items():
            for axis in (axis for axis, size in enumerate(value.shape) if size == 0):
                state[name] = state[name].take(places, axis)
        return state


def _padded(random: np.random.Generator, shape: tuple[int, int], vocabulary: int, pad: int) -> Sources:
    ids = random.integers(vocabulary, size=shape)
    lengths = random.integers(1, shape[1] + 1, size=shape[0])
    ids[np.arange(shape[1]) >= lengths[:, None]] = pad
    return ids, lengths


def _random_state(random: np.random.Generator, row: NDArray[np.generic], rows: int, time: int) -> NDArray[np.generic]:
    """Random state like `row` [1, ...] with `rows` rows.

    An axis of size 0 gets the size `time`.
    """
    shape = (rows, *(size or time for size in row.shape[1:]))
    return random.standard_normal(shape).astype(row.dtype)
