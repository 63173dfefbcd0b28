"""Our results against the reference's: the same tokens, and scores within 1e-4 + 1e-5 * |sum of token scores|.

A length penalty below 0 multiplies the sum by a power of the length, and with it the rounding of both sides: there the
tolerance is multiplied too.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from jumok_proto.results import FinishReason, Translation
from tests.parity.checkpoints import Checkpoint
from tests.parity.oracle import Answer, Case, Hypothesis, trace
from tests.parity.ties import is_tie

TIES = 0.002
"""Share of cases that may be ties."""
ENDED = 0.3
"""Share of hypotheses that must end by themselves for the comparison to say anything of how searches end."""
DISTINCT = 0.3
"""Share of cases whose best hypotheses must be unlike those of other cases."""


@dataclass
class Tally:
    """Counts of a comparison of one family.

    Attributes:
        cases: sentences with options.
        hypotheses: of the reference.
        equal: cases.
        ties: cases where the reference itself could have gone either way.
        differences: of the others, each with its case.
        refused: checkpoints that could not be imported, and why.
        ended: hypotheses that end by themselves.
        lifeless: results of the reference that are no hypotheses.
        lengths: how many hypotheses have each length.
        outputs: the best hypotheses, and of how many cases each is.
    """

    cases: int = 0
    hypotheses: int = 0
    equal: int = 0
    ties: int = 0
    ended: int = 0
    lifeless: int = 0
    differences: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    lengths: Counter[int] = field(default_factory=Counter)
    outputs: Counter[tuple[int, ...]] = field(default_factory=Counter)

    def add(self, checkpoint: Checkpoint, name: str, case: Case, ours: Translation, theirs: Answer) -> None:
        """Compares one case."""
        self.cases += 1
        self.hypotheses += len(theirs.hypotheses)
        self.ended += sum(hypothesis.ends for hypothesis in theirs.hypotheses)
        self.lifeless += theirs.lifeless
        self.lengths.update(len(hypothesis.token_ids) for hypothesis in theirs.hypotheses)
        self.outputs.update(hypothesis.token_ids for hypothesis in theirs.hypotheses[:1])
        what = next(differences(checkpoint, case, ours, theirs), None)
        if what is None:
            self.equal += 1
        elif is_tie([hypothesis.token_ids for hypothesis in ours.hypotheses], theirs, trace(checkpoint, case)):
            self.ties += 1
        else:
            self.differences.append(f"{checkpoint.shape.name}, {name}, {case.text!r}: {what}")

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})

    def problems(self) -> list[str]:
        """Reasons for failure or too few cases; empty on success."""
        problems = [*self.refused, *self.differences]
        if self.ties > TIES * self.cases:
            problems.append(f"{self.ties} of {self.cases} cases are ties, more than {TIES:.1%}")
        if self.ended < ENDED * self.hypotheses:
            problems.append(
                f"only {self.ended} of {self.hypotheses} hypotheses end by themselves, less than {ENDED:.0%}"
            )
        if len(self.outputs) < DISTINCT * self.cases:
            problems.append(f"only {len(self.outputs)} outputs of {self.cases} cases differ, less than {DISTINCT:.0%}")
        return problems


def differences(checkpoint: Checkpoint, case: Case, ours: Translation, theirs: Answer) -> Iterator[str]:
    """Name the first difference, most basic first."""
    read = len(checkpoint.source_ids(case.text, case.pair))
    if ours.source_token_count != read:
        yield f"the source has {ours.source_token_count} tokens, and {read} with Hugging Face"
    if len(ours.hypotheses) != len(theirs.hypotheses):
        yield f"{len(ours.hypotheses)} hypotheses, and {len(theirs.hypotheses)} with Hugging Face"
    for rank, (our, their) in enumerate(zip(ours.hypotheses, theirs.hypotheses, strict=False), start=1):
        tolerance = score_tolerance(their.score, their.total)
        if our.token_ids != their.token_ids:
            yield f"hypothesis {rank} is {list(our.token_ids)}, and {list(their.token_ids)} with Hugging Face"
        elif not abs(our.score - their.score) <= tolerance:
            yield f"hypothesis {rank} scores {our.score}, and {their.score} with Hugging Face"
        elif not (worst := max(map(_distance, our.token_scores, their.token_scores))) <= sum_tolerance(their.total):
            yield f"a token of hypothesis {rank} scores {worst:.2e} more or less than with Hugging Face"
        elif our.text != their.text:
            yield f"hypothesis {rank} reads {our.text!r}, and {their.text!r} with Hugging Face"
        elif (our.finish_reason is FinishReason.EOS) != their.ends:
            yield f"hypothesis {rank} ends by {our.finish_reason}, and with Hugging Face it {_ending(their)}"


def sum_tolerance(total: float) -> float:
    """Tolerance for token scores and their sums."""
    return 1e-4 + 1e-5 * abs(total)


def score_tolerance(score: float, total: float) -> float:
    """Tolerance for scores; `total` is the sum of token scores in `score`."""
    return sum_tolerance(total) * max(1.0, score / total if total else 1.0)


def _distance(ours: float, theirs: float) -> float:
    return abs(ours - theirs)


def _ending(hypothesis: Hypothesis) -> str:
    return "ends by a token" if hypothesis.ends else "ends by its length"
