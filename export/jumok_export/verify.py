"""Verification of exported graphs: PyTorch against ONNX Runtime, over random shapes and whole decodes.

What runs on ONNX Runtime's side is what serves: `jumok_serve.session.Graphs`.
"""

from collections.abc import Callable, Iterator, Sequence, Set

import numpy as np
from numpy.typing import NDArray
from torch import nn

from jumok_export.calibrate import Calibration
from jumok_export.choices import drawings, selections
from jumok_export.comparison import UNBOUNDED, Differences, Moved, RelativeError
from jumok_export.emulation import Int8Arithmetic
from jumok_export.rollout import Rollout, Row, RowScores, alone, pad, play
from jumok_export.runtime_side import GraphFailed, RuntimeSide
from jumok_export.samples import Frame, Samples, SentenceSamples
from jumok_export.sides import Arrays, Side, TorchSide
from jumok_serve.manifest import Check, VerificationReport
from jumok_serve.session import Floats, Graphs

QUANTIZATION_ERROR = 0.15
"""Limit of the relative error that int8 may bring to logits and attention weights: a model with more is not usable.

Measured on logits: 0.012 to 0.024 for random models of 1 to 12 layers, 0.013 to 0.017 for trained ones; with calibrated
activations 0.028 to 0.046 and 0.014 to 0.018.
"""
EXCESS_ERROR = 1.2
"""Limit of the error of int8 logits, as a multiple of what the same arithmetic costs in PyTorch.

A rounding that falls the other way makes single values differ, but not how large the error is: measured are 0.99 to
1.01, from one layer to twelve. Activations that are off by a hundredth of their range cost more than twice as much.
"""
MOVED_SENTENCES = 0.02
"""Limit of the share of sentences whose int8 scores depend on their company: 1 in 200, with room for chance.

Where sums in fp32 differ in their last bit with the shape of a batch, that now and then turns a rounding to 8 bits
over. Measured are 0 in 300 sentences for a trained Transformer of this package. One scale for the activations of a
whole batch moves nearly all of them.
"""
RESCORED_SENTENCES = 0.9
"""Limit of the share of sentences whose int8 scores differ between the steps and the one-pass scorer.

Those two do sum up in different orders, so roundings are turned over the more often the larger a model is: measured are
0 to 1 in 100 sentences with up to 6 layers, 7 in 100 with 12 of width 512 and 25 in 100 with 12 + 12 of width 1024;
there are models twice as deep and wide. What is broken in one of them moves all.
"""

HALF_ERROR = 0.02
"""Limit of the relative error that fp16 may bring to memory, state, logits and log-probabilities.

Its numbers have 11 bits, so one rounding is a share of 0.0005 at most. A number that is too large for 16 bits is an
error without bound.
"""
HALF_TOKENS = 0.05
"""Limit of the share of rows that fp16 gives another most likely token.

Only nearly equal ones change places: measured are 0 to 0.01 for random models, whose tokens are all about as likely.
"""

SCORED_AT_ONCE = 2**24
"""Logits that the one-pass scorer computes at once, where there is a choice: 64 MiB of them, several times over."""


def verify_fp32(model: nn.Module, graphs: Graphs, frame: Frame) -> VerificationReport:
    """Compares graphs in fp32 with the model that they were exported from.

    Args:
        model: in evaluation mode, on the CPU.
        graphs: its graphs.
        frame: its vocabularies and limits.
    """
    trial = _Trial(model, graphs, frame)
    return _report(
        trial.encoder,
        trial.step,
        trial.scorer,
        trial.aligner,
        trial.select,
        trial.sampler,
        trial.longest,
        trial.beams,
        trial.greedy,
    )


def verify_int8(
    model: nn.Module,
    graphs: Graphs,
    frame: Frame,
    *,
    weights: Sequence[NDArray[np.float32]],
    rectified: Set[str],
    calibration: Calibration | None = None,
) -> VerificationReport:
    """Compares graphs in int8 with the model that they were exported from, and scores alone with scores in company.

    Calibrated graphs are compared on the sentences of their calibration, others on random tokens.

    Args:
        model: in evaluation mode, on the CPU.
        graphs: its graphs.
        frame: its vocabularies and limits.
        weights: the matrices that are in 8 bits in the encoder or the decoder. If PyTorch computes with one of them by
            other means than linear layers and embeddings, what int8 should cost is not known and not compared.
        rectified: `rectified_weights` of the graphs before quantization.
        calibration: what gave the graphs constant scales, if they have any.
    """
    trial = _Trial(model, graphs, frame)
    arithmetic, activations = Int8Arithmetic(rectified=rectified), "one scale a row"
    if calibration is not None:
        trial.samples = SentenceSamples(frame, trial.torch, calibration)
        arithmetic = Int8Arithmetic(calibration.scales, rectified)
        activations = f"calibrated on {len(calibration.sources)} sentences"

    def decode() -> list[Check]:
        return trial.quantized_decode(weights, arithmetic, activations)

    return _report(trial.quantized_aligner, trial.select, trial.sampler, trial.quantized_longest, decode)


def verify_device(model: nn.Module, graphs: Graphs, frame: Frame) -> tuple[Check, ...]:
    """Compares graphs in fp32 for a device with the model; they run on the CPU, bound as they are on a device.

    What they share with those for the CPU, which scores and aligns, is not compared again.
    """
    trial = _Trial(model, graphs, frame)
    report = _report(trial.encoder, trial.step, trial.sampler, trial.beams)
    return tuple(check.model_copy(update={"name": f"device: {check.name}"}) for check in report.checks)


def verify_fp16(
    model: nn.Module, graphs: Graphs, frame: Frame, *, calibration: Calibration | None = None
) -> VerificationReport:
    """Compares graphs in fp16 with the model that they were exported from, on the CPU, bound as they are on a device.

    Args:
        model: in evaluation mode, on the CPU.
        graphs: its graphs.
        frame: its vocabularies and limits.
        calibration: has sentences to compare on, instead of random tokens.
    """
    trial = _Trial(model, graphs, frame)
    if calibration is not None:
        trial.samples = SentenceSamples(frame, trial.torch, calibration)
    return _report(
        trial.half_encoder, trial.half_one_pass, trial.select, trial.sampler, trial.half_longest, trial.half_decode
    )


def _report(*checks: Callable[[], list[Check]]) -> VerificationReport:
    outcomes: list[Check] = []
    for check in checks:
        try:
            outcomes += check()
        except GraphFailed as error:
            name = check.__name__.replace("_", " ")
            outcomes.append(Check(name=name, cases=1, worst=UNBOUNDED, limit=0.0, passed=False, detail=str(error)))
    return VerificationReport(checks=tuple(outcomes))


class _Trial:
    """A model, its graphs, and all that can be asked of the two."""

    def __init__(self, model: nn.Module, graphs: Graphs, frame: Frame) -> None:
        self.model = model
        self.torch = TorchSide(model)
        self.runtime = RuntimeSide(graphs)
        self.samples = Samples(frame, self.torch)
        self.graphs = graphs
        self.frame = frame
        self.aligns = hasattr(model, "align")

    def encoder(self) -> list[Check]:
        """Memory and first state, over random shapes."""
        differences = Differences("encoder")
        for inputs in self.samples.sources():
            for expected, found in zip(self.torch.encode(*inputs), self.runtime.encode(*inputs), strict=True):
                _compare_all(differences, expected, found)
        return [differences.check("every tensor of the memory and the first state; B and S from 1")]

    def step(self) -> list[Check]:
        """Logits and state of single steps over random memory and state."""
        logits, state = Differences("step logits"), Differences("step state")
        for inputs in self.samples.steps():
            expected, found = self.torch.step(*inputs), self.runtime.step(*inputs)
            logits.compare(expected[0], found[0])
            _compare_all(state, expected[1], found[1])
        detail = (
            "single steps over random memory and state, rows at different positions; B, K, S and P from 1, T from 0"
        )
        return [logits.check(detail), state.check(detail)]

    def scorer(self) -> list[Check]:
        """Log-probabilities of given targets."""
        differences = Differences("scorer")
        for inputs in self.samples.pairs():
            differences.compare(self.torch.score(*inputs), self.runtime.score(*inputs))
        return [differences.check("log-probabilities of all target tokens; B, S and T from 1")]

    def aligner(self) -> list[Check]:
        """Attention weights, of a model that has them."""
        differences = Differences("aligner")
        for inputs in self.samples.pairs() if self.aligns else ():
            for expected, found in zip(self.torch.align(*inputs), self.runtime.align(*inputs), strict=True):
                differences.compare(expected, found)
        return [differences.check("all attention weights; B, S and T from 1")] if self.aligns else []

    def quantized_aligner(self) -> list[Check]:
        """Attention weights in int8, of a model that has them."""
        error = RelativeError("aligner", QUANTIZATION_ERROR)
        for inputs in self.samples.pairs() if self.aligns else ():
            for expected, found in zip(self.torch.align(*inputs), self.runtime.align(*inputs), strict=True):
                error.compare(expected, found)
        return [error.check("root mean square error of all attention weights")] if self.aligns else []

    def select(self) -> list[Check]:
        """The best candidates under constraints, against log-softmax and a stable sort in PyTorch."""
        totals, wrong = Differences("select scores"), 0
        for selection in selections(self.frame.target_vocabulary):
            expected, found = selection.expected(), self.runtime.select(selection)
            if expected[0].shape != found[0].shape:
                raise GraphFailed(f"select returned {found[0].shape} candidates instead of {expected[0].shape}")
            for row in zip(expected[1], found[1], strict=True):  # a dead row must not widen another's tolerance
                totals.compare(*row)
            wrong += int((expected[0] != found[0]).sum())
        detail = "running scores of the best candidates, constrained before and after the log-softmax"
        return [totals.check(detail), _all_equal("select tokens", totals.cases, wrong)]

    def sampler(self) -> list[Check]:
        """What is drawn, against inversion sampling in PyTorch."""
        totals, wrong = Differences("sampler scores"), 0
        for drawing in drawings(self.frame.target_vocabulary):
            tokens, found = self.runtime.sample(drawing)
            if tokens.shape != drawing.tokens.shape:
                raise GraphFailed(f"sampler returned {tokens.shape} tokens instead of {drawing.tokens.shape}")
            totals.compare(drawing.totals, found)
            wrong += int((tokens != drawing.tokens).sum())
        detail = "running scores of what is drawn under constraints, at several temperatures, top-k and top-p"
        return [totals.check(detail), _all_equal("sampler tokens", totals.cases, wrong)]

    def longest(self) -> list[Check]:
        """The longest source and target that the limits allow."""
        differences = Differences("longest")
        pair, step = self.samples.longest()
        differences.compare(self.torch.score(*pair), self.runtime.score(*pair))
        differences.compare(self.torch.step(*step)[0], self.runtime.step(*step)[0])
        return [differences.check(self._longest())]

    def quantized_longest(self) -> list[Check]:
        """The longest source and target that the limits allow, in int8."""
        error = RelativeError("longest", QUANTIZATION_ERROR)
        pair, step = self.samples.longest()
        error.compare(self.torch.score(*pair), self.runtime.score(*pair))
        error.compare(_centred(self.torch.step(*step)[0]), _centred(self.runtime.step(*step)[0]))
        return [error.check(self._longest())]

    def _longest(self) -> str:
        source, target = self.frame.max_source_length, self.frame.max_target_length
        return (
            f"{target} target tokens given {source} source tokens, scored in one pass; and the step at the last of them"
        )

    def beams(self) -> list[Check]:
        """A decode with three hypotheses a sentence."""
        return self._decode(beam_size=3)

    def greedy(self) -> list[Check]:
        """A decode with one hypothesis a sentence."""
        return self._decode(beam_size=1)

    def _decode(self, beam_size: int) -> list[Check]:
        rollout = self.samples.rollout(sentences=20, beam_size=beam_size)
        logits, together = Differences(f"decode, beam {beam_size}"), RowScores(rollout)
        for expected, found in zip(self._play(rollout, self.torch), self._play(rollout, self.runtime), strict=True):
            logits.compare(expected, found)
            together.add(found)
        company, history = Differences(f"company, beam {beam_size}"), Differences(f"history, beam {beam_size}")
        for scores, by_itself, in_one_pass in self._recounts(rollout, together):
            company.compare(by_itself, scores)
            history.compare(in_one_pass, scores)
        return [logits.check(f"logits of {_story(rollout)}"), company.check(_COMPANY), history.check(_HISTORY)]

    def quantized_decode(
        self, weights: Sequence[NDArray[np.float32]], arithmetic: Int8Arithmetic, activations: str
    ) -> list[Check]:
        """A decode in int8 with two hypotheses a sentence."""
        rollout = self.samples.rollout(sentences=100, beam_size=2)
        logits, rounding = RelativeError("decode", QUANTIZATION_ERROR), RelativeError("rounding", QUANTIZATION_ERROR)
        together = RowScores(rollout)
        sides = (self.torch, self.runtime, TorchSide(self.model, arithmetic))
        for expected, found, rounded in zip(*(self._play(rollout, side) for side in sides), strict=True):
            logits.compare(_centred(expected), _centred(found))
            rounding.compare(_centred(expected), _centred(rounded))
            together.add(found)
        company, history = Moved("company", MOVED_SENTENCES), Moved("history", RESCORED_SENTENCES)
        for scores, by_itself, in_one_pass in self._recounts(rollout, together):
            company.compare(by_itself, scores)
            history.compare(in_one_pass, scores)
        error = logits.check(f"root mean square error of the logits of {_story(rollout)}; activations: {activations}")
        return [
            error,
            *([_excess(error, rounding)] if arithmetic.covers(weights) else []),
            company.check(f"share that differs: {_COMPANY}"),
            history.check(f"share that differs: {_HISTORY}"),
        ]

    def half_encoder(self) -> list[Check]:
        """Memory and first state in fp16, over random shapes."""
        error = RelativeError("encoder", HALF_ERROR)
        for inputs in self.samples.sources():
            for expected, found in zip(self.torch.encode(*inputs), self.runtime.encode(*inputs), strict=True):
                for name, value in expected.items():
                    error.compare(value, found[name])
        return [error.check("root mean square error of every tensor of the memory and the first state")]

    def half_one_pass(self) -> list[Check]:
        """Log-probabilities of given targets, and attention weights of a model that has them, in fp16."""
        scores, weights = RelativeError("scorer", HALF_ERROR), RelativeError("aligner", HALF_ERROR)
        for inputs in self.samples.pairs():
            scores.compare(self.torch.score(*inputs), self.runtime.score(*inputs))
            for expected, found in (
                zip(self.torch.align(*inputs), self.runtime.align(*inputs), strict=True) if self.aligns else ()
            ):
                weights.compare(expected, found)
        return [
            scores.check("root mean square error of the log-probabilities of all target tokens"),
            *([weights.check("root mean square error of all attention weights")] if self.aligns else []),
        ]

    def half_longest(self) -> list[Check]:
        """The longest source and target that the limits allow, in fp16: nothing is infinite."""
        error = RelativeError("longest", HALF_ERROR)
        pair, step = self.samples.longest()
        error.compare(self.torch.score(*pair), self.runtime.score(*pair))
        error.compare(_centred(self.torch.step(*step)[0]), _centred(self.runtime.step(*step)[0]))
        return [error.check(f"nothing infinite, and the root mean square error of {self._longest()}")]

    def half_decode(self) -> list[Check]:
        """A decode in fp16 with two hypotheses a sentence."""
        rollout = self.samples.rollout(sentences=40, beam_size=2)
        error, together = RelativeError("decode", HALF_ERROR), RowScores(rollout)
        rows = others = 0
        for expected, found in zip(self._play(rollout, self.torch), self._play(rollout, self.runtime), strict=True):
            error.compare(_centred(expected), _centred(found))
            together.add(found)
            rows += len(expected)
            others += int((expected.argmax(axis=-1) != found.argmax(axis=-1)).sum())
        company, history = Moved("company", MOVED_SENTENCES), RelativeError("history", HALF_ERROR)
        for scores, by_itself, in_one_pass in self._recounts(rollout, together):
            company.compare(by_itself, scores)
            history.compare(in_one_pass, scores)
        share = others / max(1, rows)
        return [
            error.check(f"root mean square error of the logits of {_story(rollout)}"),
            Check(
                name="tokens",
                cases=rows,
                worst=share,
                limit=HALF_TOKENS,
                passed=share <= HALF_TOKENS,
                detail="share of the rows of this decode whose most likely token is not that of fp32",
            ),
            company.check(f"share that differs: {_COMPANY}"),
            history.check(f"root mean square error: {_HISTORY}"),
        ]

    def _play(self, rollout: Rollout, side: Side) -> Iterator[Floats]:
        return play(rollout, side, self.runtime.memory_specs, self.runtime.state_specs)

    def _recounts(self, rollout: Rollout, together: RowScores) -> Iterator[tuple[Floats, Floats, Floats]]:
        """The running scores of every sentence's first row: of the decode, decoded alone, and by the scorer."""
        rows, scores = rollout.rows[:: rollout.beam_size], together.totals[:: rollout.beam_size]
        in_one_pass = self._scores(rows)
        for sentence, (row_scores, one_pass) in enumerate(zip(scores, in_one_pass, strict=True)):
            single = alone(rollout, sentence)
            by_itself = RowScores(single)
            for logits in self._play(single, self.runtime):
                by_itself.add(logits)
            yield row_scores, by_itself.totals[0], one_pass

    def _scores(self, rows: Sequence[Row]) -> Iterator[Floats]:
        """The running scores of some rows by the scorer, as many of them at once as the vocabulary has room for."""
        longest = max(len(row.history) for row in rows)
        size = max(1, SCORED_AT_ONCE // (longest * self.frame.target_vocabulary))
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            sources = pad([row.source for row in some], self.frame.pad)
            targets = pad([np.array(row.history[1:], np.int64) for row in some], 0)
            starts = np.array([row.history[0] for row in some])
            for scores, length in zip(self.runtime.score(*sources, starts, *targets), targets[1], strict=True):
                yield np.cumsum(scores[:length], dtype=np.float64)


_COMPANY = "scores of a sentence decoded among others and alone, with and without padding"
_HISTORY = "scores of a sentence summed up step by step and taken by the one-pass scorer"


def _story(rollout: Rollout) -> str:
    return (
        f"{len(rollout.sources)} sentences in {len(rollout.steps)} steps, each side with its own memory and state; "
        "rows are reordered, dropped, duplicated and newly admitted"
    )


def _all_equal(name: str, cases: int, wrong: int) -> Check:
    detail = "tokens that differ; of equally likely ones the lower comes first"
    return Check(name=name, cases=cases, worst=float(wrong), limit=0.0, passed=wrong == 0, detail=detail)


def _excess(error: Check, rounding: RelativeError) -> Check:
    least = rounding.check("").worst
    excess = error.worst / least if least else float(error.worst > 0)
    return Check(
        name="excess",
        cases=error.cases,
        worst=excess,
        limit=EXCESS_ERROR,
        passed=excess <= EXCESS_ERROR,
        detail=f"the same error as a multiple of what this rounding costs in PyTorch, which is {least:.3g}",
    )


def _compare_all(differences: Differences, expected: Arrays, found: Arrays) -> None:
    """Compares tensors of the same names."""
    for name, value in expected.items():
        differences.compare(value, found.get(name, np.empty(0)))


def _centred(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows without their mean: adding a constant to all of a row's logits changes nothing."""
    centred: NDArray[np.float32] = logits - logits.mean(axis=-1, keepdims=True)
    return centred
