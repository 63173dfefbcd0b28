"""Random decodes of several steps, as in a server.

Rows are reordered, dropped, duplicated and admitted.

A rollout is planned once and then played on both sides of a verification: they decode the same tokens, each over its
own memory and state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jumok_export.verification.comparison import log_sum
from jumok_export.verification.sides import Arrays, Side, StepInputs
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.graphs import Floats, Integers
from jumok_serve.runtime.tensors import LENGTH_STEP

NOISE = np.random.default_rng(9).standard_normal(2**16 + 1, np.float32)
"""Numbers that are repeated as memory after the end of sources; drawing them anew would take longer than decoding."""
_REPEATED = 2**22
"""Most numbers that are kept repeated: 16 MiB."""


@dataclass(frozen=True, kw_only=True)
class PlannedSentence:
    """One sentence of a rollout.

    Attributes:
        tokens: the tokens of its rows by step, [T, K]; T + 1 steps decode it.
    """

    source: Integers
    tokens: Integers


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One decoder step of a rollout.

    Attributes:
        sentences: the sentence in each slot, [B].
        joined: sentences that are encoded before this step.
        positions: position of every row, [R].
        parents: row of the step before that each row continues, [R]; -1 in a sentence's first step.
        histories: tokens of every row, from the start token to the one of this step.
        trimmed: True if the time axis is cut before this step, and sources get more padding.
    """

    sentences: tuple[int, ...]
    joined: tuple[int, ...]
    positions: Integers
    parents: Integers
    histories: tuple[tuple[int, ...], ...]
    trimmed: bool


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row at its sentence's last step.

    Attributes:
        history: the row's tokens, the start token first.
    """

    sentence: int
    source: Integers
    history: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Sources and the steps that decode them.

    Attributes:
        beam_size: rows of a sentence, K.
        pad: token after the end of shorter sources.
    """

    sources: tuple[Integers, ...]
    steps: tuple[PlannedStep, ...]
    beam_size: int
    pad: int

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row after its sentence's last step, in the order of the sentences."""
        last = {
            sentence: step.histories[slot * self.beam_size : (slot + 1) * self.beam_size]
            for step in self.steps
            for slot, sentence in enumerate(step.sentences)
        }
        return tuple(
            Row(sentence=sentence, source=self.sources[sentence], history=history)
            for sentence in sorted(last)
            for history in last[sentence]
        )


def plan_rollout(
    sentences: Sequence[PlannedSentence], *, slots: int, start: int, pad: int, random: np.random.Generator
) -> Rollout:
    """Plan a rollout in which sentences join and leave at random and change slots.

    Args:
        slots: sentences that are decoded at the same time.
    """
    k: int = sentences[0].tokens.shape[1]
    waiting = list(range(len(sentences)))
    running: dict[int, list[tuple[int, ...]]] = {}  # the histories of each sentence's rows
    previous: dict[int, int] = {}  # each sentence's first row in the step before
    steps = []
    while waiting or running:
        free = slots - len(running)
        joined = tuple(waiting[: int(random.integers(0 if running else 1, free + 1))] if free else ())
        del waiting[: len(joined)]
        running |= {sentence: [] for sentence in joined}
        present = tuple(int(sentence) for sentence in random.permutation(list(running)))
        positions: list[int] = []
        parents: list[int] = []
        histories: list[tuple[int, ...]] = []
        for sentence in present:
            before = running[sentence]
            chosen = random.integers(k, size=k)  # any order, some twice, some not at all
            running[sentence] = [(start,)] * k
            if before:
                tokens: list[int] = sentences[sentence].tokens[len(before[0]) - 1].tolist()
                running[sentence] = [(*before[parent], token) for parent, token in zip(chosen, tokens, strict=True)]
            parents += (previous[sentence] + chosen).tolist() if before else [-1] * k
            positions += [len(running[sentence][0]) - 1] * k
            histories += running[sentence]
        steps.append(
            PlannedStep(
                sentences=present,
                joined=joined,
                positions=np.array(positions),
                parents=np.array(parents),
                histories=tuple(histories),
                trimmed=bool(random.integers(2)),
            )
        )
        previous = {sentence: slot * k for slot, sentence in enumerate(present)}
        running = {name: rows for name, rows in running.items() if len(rows[0]) <= len(sentences[name].tokens)}
    sources = tuple(sentence.source for sentence in sentences)
    return Rollout(sources=sources, steps=tuple(steps), beam_size=k, pad=pad)


def alone(rollout: Rollout, sentence: int) -> Rollout:
    """The part of a rollout that decodes one sentence, without other sentences and padding."""
    k = rollout.beam_size
    steps: list[PlannedStep] = []
    before = 0  # the sentence's first row in the step before
    for step in rollout.steps:
        if sentence not in step.sentences:
            continue
        first = step.sentences.index(sentence) * k
        parents = step.parents[first : first + k]
        steps.append(
            PlannedStep(
                sentences=(0,),
                joined=() if steps else (0,),
                positions=step.positions[first : first + k],
                parents=parents - before if steps else parents,
                histories=step.histories[first : first + k],
                trimmed=False,
            )
        )
        before = first
    return Rollout(sources=(rollout.sources[sentence],), steps=tuple(steps), beam_size=k, pad=rollout.pad)


def play(
    rollout: Rollout, side: Side, memory_specs: Sequence[TensorSpec], state_specs: Sequence[TensorSpec]
) -> Iterator[Floats]:
    """Decode a rollout on one side, step by step.

    Args:
        memory_specs: axes of the decoder's memory.
        state_specs: axes of its state.

    Yields:
        Logits [R, V] of every step.
    """
    random = np.random.default_rng(0)
    padded = len(rollout.sources) > 1
    memory: dict[int, Arrays] = {}
    state = side.empty_state()
    for step in rollout.steps:
        parents = np.maximum(step.parents, 0)
        if step.joined:
            joining = [rollout.sources[sentence] for sentence in step.joined]
            encoded, first_state = side.encode(*pad(joining, rollout.pad, int(random.integers(4)) if padded else 0))
            for row, sentence in enumerate(step.joined):
                memory[sentence] = {name: value[row] for name, value in encoded.items()}
            if first_state:
                first_row = len(next(iter(state.values())))
                state = {name: np.concatenate((value, first_state[name])) for name, value in state.items()}
                for slot, sentence in enumerate(step.sentences):
                    if sentence in step.joined:
                        rows = slice(slot * rollout.beam_size, (slot + 1) * rollout.beam_size)
                        parents[rows] = first_row + step.joined.index(sentence)
        if step.trimmed:
            longest = int(step.positions.max())
            state = {spec.name: _cut(state[spec.name], spec, longest) for spec in state_specs}
        sources = [rollout.sources[sentence] for sentence in step.sentences]
        lengths = np.array([len(source) for source in sources])
        width = -(-int(lengths.max()) // LENGTH_STEP) * LENGTH_STEP + (LENGTH_STEP if padded and step.trimmed else 0)
        batch = {
            spec.name: _stack([memory[sentence][spec.name] for sentence in step.sentences], spec, lengths, width)
            for spec in memory_specs
        }
        tokens = np.array([history[-1] for history in step.histories])
        logits, state = side.step(StepInputs(tokens, step.positions, parents, lengths, batch, state))
        yield logits


class RowScores:
    """Running scores of a rollout's rows, as a search computes them."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._steps = iter(rollout.steps)
        self._wanted: dict[tuple[int, ...], set[int]] = {}
        self._scores: dict[tuple[int, ...], float] = {}
        for row in rollout.rows:
            for end in range(1, len(row.history)):
                self._wanted.setdefault((row.sentence, *row.history[:end]), set()).add(row.history[end])

    def add(self, logits: Floats) -> None:
        """Add the logits of the next step, [R, V]."""
        step = next(self._steps)
        places = [
            (step.sentences[row // self._rollout.beam_size], *history) for row, history in enumerate(step.histories)
        ]
        wanted = [row for row, place in enumerate(places) if place in self._wanted]
        rows = logits[wanted].astype(np.float64)
        for place, row, total in zip((places[row] for row in wanted), rows, log_sum(rows), strict=True):
            for token in self._wanted[place]:
                self._scores[*place, token] = float(row[token] - total)

    @property
    def totals(self) -> list[Floats]:
        """Running scores of every row of `rollout.rows` after each token, the start token excluded."""
        return [
            np.cumsum([self._scores[row.sentence, *row.history[: end + 1]] for end in range(1, len(row.history))])
            for row in self._rollout.rows
        ]


def pad(sequences: Sequence[Integers], token: int, extra: int = 0) -> tuple[Integers, Integers]:
    """Pad token ids to the longest plus `extra`: [B, T], lengths [B]."""
    lengths = np.array([len(sequence) for sequence in sequences])
    padded = np.full((len(sequences), int(lengths.max()) + extra), token)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded, lengths


def _cut(value: NDArray[Any], spec: TensorSpec, longest: int) -> NDArray[Any]:
    return value[tuple(slice(longest) if axis == "T" else slice(None) for axis in spec.axes)]


def _noise(size: int) -> Floats:
    """`NOISE`, repeated up to a size, read-only."""
    return _repeated_noise()[:size] if size <= _REPEATED else np.resize(NOISE, size)


@cache
def _repeated_noise() -> Floats:
    return np.resize(NOISE, _REPEATED)


def _stack(rows: Sequence[NDArray[Any]], spec: TensorSpec, lengths: Integers, width: int) -> NDArray[Any]:
    """Memory [B, ...] of sentences, with noise after the end of each source."""
    if "S" not in spec.axes:
        return np.stack(list(rows))
    shape = [len(rows), *(width if axis == "S" else int(axis) for axis in spec.axes[1:])]
    stacked = _noise(int(np.prod(shape))).reshape(shape).astype(rows[0].dtype)
    for target, row, length in zip(stacked, rows, lengths, strict=True):
        place = tuple(slice(length) if axis == "S" else slice(None) for axis in spec.axes[1:])
        target[place] = row[place]
    return stacked
