"""The comparison with Hugging Face's ``generate``, thinned: every family and every option once, few sentences."""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("transformers", minversion="5", reason="the oracle is Hugging Face's generate")

import torch

from jumok_proto.results import FinishReason, Translation
from jumok_serve.search.options import DecodingOptions
from jumok_serve.search.search import DEAD_SCORE
from tests.parity import __main__ as parity
from tests.parity.checkpoints import Checkpoint, make_checkpoint
from tests.parity.compare import Tally, differences, score_tolerance
from tests.parity.grid import cases, option_sets
from tests.parity.oracle import Answer, Case, Hypothesis, Settings, Trace, answer, trace
from tests.parity.run import Outcome, compare_named, quiet
from tests.parity.shapes import SHAPES
from tests.parity.texts import parallel_sentences
from tests.parity.ties import is_tie
from tests.support.servers.scripted import capitals

shares_checkpoint = pytest.mark.xdist_group("parity")
"""Of the tests with `checkpoint`, which one process makes, in half a minute."""
ONE_EACH = ("marian-two-targets", "nllb", "bart-3-heads", "mbart-3-heads", "pegasus", "t5-gated-untied", "mt5", "umt5")
BY_NAME = {shape.name: shape for shape in SHAPES}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoint]:
    with quiet():
        yield make_checkpoint(BY_NAME["marian-two-vocabularies"], tmp_path_factory.mktemp("parity") / "marian")


def case(**options: object) -> Case:
    [pair] = BY_NAME["marian-two-vocabularies"].pairs
    return Case(text="the old dog sees a bird .", pair=pair, options=DecodingOptions(**options))  # type: ignore[arg-type]


@pytest.fixture
def own_threads() -> Iterator[None]:
    """PyTorch has the same number of threads after the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ONE_EACH[2:])
def test_a_family_decodes_as_generate_does(name: str, own_threads: None) -> None:
    assert_equal(compare_named(name, quick=True, sentences=3))


def test_families_are_compared_in_processes_of_their_own() -> None:
    outcomes = parity.compare_all(ONE_EACH[:2], quick=True, sentences=3, processes=2)
    assert [outcome.shape for outcome in outcomes] == [*ONE_EACH[:2]]
    for outcome in outcomes:
        assert_equal(outcome)


def assert_equal(outcome: Outcome) -> None:
    tally = outcome.tally
    assert tally.refused == []
    assert tally.differences == []
    assert tally.cases == 30
    assert tally.equal >= 27  # ties, which another processor may decide otherwise, are 1 in 1,000 cases
    assert tally.ended > 30
    assert len(tally.lengths) > 5


def test_every_family_is_compared_with_every_default() -> None:
    """Those that no request can ask for are in the checkpoints' own settings."""
    wanted = {"bad_words_ids", "begin_suppress_tokens", "forced_eos_token_id", "renormalize_logits", "suppress_tokens"}
    for family in {shape.family for shape in SHAPES}:
        shapes = [shape for shape in SHAPES if shape.family == family]
        generation = [shape.generation(lambda _: 7) for shape in shapes]
        assert len(shapes) >= 3
        assert wanted <= {key for settings in generation for key in settings}
        assert any(isinstance(settings.get("eos_token_id"), list) for settings in generation), family


@shares_checkpoint
def test_the_grid_has_every_option(checkpoint: Checkpoint) -> None:
    asked = [chosen.options for chosen in option_sets(checkpoint)]
    of_sampling = {"sample", "temperature", "top_k", "top_p", "seed"}
    unknown_to_generate = {"coverage_penalty", "replace_unknowns"}
    for name in DecodingOptions.__dataclass_fields__.keys() - of_sampling - unknown_to_generate:
        assert len({getattr(options, name) for options in asked}) > 1, name
    assert {options.beam_size for options in asked} >= set(range(1, 9))
    prefixes = {case.prefix for _, case in cases(checkpoint, option_sets(checkpoint), parallel_sentences(3, seed=1))}
    assert len(prefixes) == 4  # one for every sentence, and none


@shares_checkpoint
def test_token_scores_add_up_to_the_scores_of_generate(checkpoint: Checkpoint) -> None:
    for options in (case(beam_size=4, num_hypotheses=4, length_penalty=0.7), case(beam_size=1, length_penalty=0.7)):
        found = answer(checkpoint, options)
        assert found.hypotheses
        for hypothesis in found.hypotheses:
            total = sum(hypothesis.token_scores)
            assert hypothesis.total == pytest.approx(total, abs=1e-4)
            assert hypothesis.score == pytest.approx(total / len(hypothesis.token_ids) ** 0.7, abs=1e-4)
            assert hypothesis.text == checkpoint.text(hypothesis.token_ids)


@shares_checkpoint
def test_rows_that_generate_never_brought_to_life_are_no_hypotheses(checkpoint: Checkpoint) -> None:
    """At the first step only one row is alive, and where one token is left it has one continuation."""
    found = answer(checkpoint, case(beam_size=3, num_hypotheses=3, max_length=1, min_length=0, forced_first_token=5))
    assert [hypothesis.token_ids for hypothesis in found.hypotheses] == [(5,)]
    assert found.lifeless == 2


@shares_checkpoint
def test_a_trace_has_the_rows_and_scores_of_every_step(checkpoint: Checkpoint) -> None:
    asked = case(beam_size=3, num_hypotheses=3, max_length=8)
    best = answer(checkpoint, asked).hypotheses[0]
    found = trace(checkpoint, asked)
    for step, token in enumerate(best.token_ids):
        row = found.rows[step].index(best.token_ids[:step])
        assert float(found.scores[step][row, token]) == pytest.approx(best.token_scores[step], abs=1e-6)


def given(scores: list[list[list[float]]], rows: list[list[tuple[int, ...]]], **settings: object) -> Trace:
    """A trace of given scores, [T][K][V]; token 0 ends a hypothesis."""
    chosen = {"beam_size": len(rows[0]), "length_penalty": 1.0, "early_stopping": True, "max_length": 9, **settings}
    return Trace(
        rows=tuple(map(tuple, rows)),
        scores=tuple(map(torch.tensor, scores)),
        settings=Settings(eos_ids=(0,), prompt=(1,), arguments={}, **chosen),  # type: ignore[arg-type]
    )


def answered(*hypotheses: tuple[int, ...]) -> Answer:
    return Answer(
        hypotheses=tuple(
            Hypothesis(token_ids=tokens, token_scores=(), score=0.0, total=0.0, text="", ends=True)
            for tokens in hypotheses
        ),
        lifeless=0,
    )


@pytest.mark.parametrize(("gap", "tie"), [(0.0, True), (5e-6, True), (1e-4, False), (1.0, False)])
def test_a_greedy_tie_is_one_of_the_two_tokens(gap: float, tie: bool) -> None:
    steps = given([[[-9.0, 0.0, -1.0]], [[-9.0, 2.0, 2.0 - gap]]], [[()], [(1,)]])
    assert is_tie([(1, 2)], answered((1, 1)), steps) is tie


@pytest.mark.parametrize(("gap", "tie"), [(5e-6, True), (1e-3, False)])
def test_a_beam_tie_is_where_one_of_two_rows_is_dropped(gap: float, tie: bool) -> None:
    """Of tokens 1, 2 and 3 two run on; what comes after does not depend on which."""
    first = [-9.0, -0.5, -1.0, -1.0 - gap]
    ending = [-0.1, -7.0, -8.0, -9.0]
    steps = given([[first, [DEAD_SCORE] * 4], [ending, ending]], [[(), ()], [(1,), (2,)]])
    assert is_tie([(1, 0), (3, 0)], answered((1, 0), (2, 0)), steps) is tie


@pytest.mark.parametrize(("gap", "tie"), [(5e-6, True), (1e-3, False)])
def test_a_beam_tie_may_be_of_two_ended_hypotheses(gap: float, tie: bool) -> None:
    first = [-9.0, -0.5, -1.0, -3.0]
    steps = given(
        [[first, [DEAD_SCORE] * 4], [[-1.0, -7.0, -8.0, -9.0], [-0.5 - gap, -7.0, -8.0, -9.0]]],
        [[(), ()], [(1,), (2,)]],
    )
    assert is_tie([(2, 0), (1, 0)], answered((1, 0), (2, 0)), steps) is tie


def test_a_missing_hypothesis_is_no_tie() -> None:
    assert not is_tie([(1, 0)], answered((1, 0), (2, 0)), given([[[0.0, 0.0]] * 2], [[(), ()]]))


@shares_checkpoint
def test_anything_that_differs_is_found(checkpoint: Checkpoint) -> None:
    asked = case(beam_size=2, num_hypotheses=2)
    theirs = answer(checkpoint, asked)
    any_of_them = capitals("a")
    ours = replace(
        any_of_them,
        hypotheses=tuple(
            replace(
                any_of_them.hypotheses[0],
                text=hypothesis.text,
                score=hypothesis.score,
                token_ids=hypothesis.token_ids,
                token_scores=hypothesis.token_scores,
                finish_reason=FinishReason.EOS if hypothesis.ends else FinishReason.LENGTH,
            )
            for hypothesis in theirs.hypotheses
        ),
        source_token_count=len(checkpoint.source_ids(asked.text, asked.pair)),
    )

    def found(translation: Translation) -> list[str]:
        return list(differences(checkpoint, asked, translation, theirs))

    first, second = ours.hypotheses
    changed = {
        "is [": replace(first, token_ids=(*first.token_ids[:-1], 9)),
        "scores": replace(first, score=first.score + 2e-3),
        "a token of hypothesis 1 scores": replace(
            first, token_scores=(first.token_scores[0] + 0.1, *first.token_scores[1:])
        ),
        "reads": replace(first, text="!"),
        "ends by": replace(first, finish_reason=FinishReason.LENGTH),
    }
    assert found(ours) == []
    for message, hypothesis in changed.items():
        [what] = found(replace(ours, hypotheses=(hypothesis, second)))
        assert message in what
    assert "1 hypotheses, and 2" in found(replace(ours, hypotheses=(first,)))[0]
    assert len(found(replace(ours, hypotheses=(second, first)))) == 2
    assert "the source has 3 tokens" in found(replace(ours, source_token_count=3))[0]


def test_a_negative_length_penalty_multiplies_the_tolerance_as_it_does_the_score() -> None:
    assert score_tolerance(-2.0, -20.0) == pytest.approx(3e-4)
    assert score_tolerance(-200.0, -20.0) == pytest.approx(3e-3)
    assert score_tolerance(0.0, 0.0) == pytest.approx(1e-4)


def test_a_tally_fails_for_differences_for_many_ties_and_for_saying_too_little() -> None:
    outputs: Counter[tuple[int, ...]] = Counter((token,) for token in range(300))
    good = Tally(cases=1000, hypotheses=2000, equal=998, ties=2, ended=600, outputs=outputs)
    assert good.problems() == []
    assert "3 of 1000 cases are ties" in replace(good, ties=3).problems()[0]
    assert "only 599 of 2000 hypotheses end" in replace(good, ended=599).problems()[0]
    assert "only 1 outputs of 1000" in replace(good, outputs=Counter({(1,): 1000})).problems()[0]
    difference = "marian, greedy, 'the dog': hypothesis 1 is [1]"
    assert replace(good, differences=[difference]).problems() == [difference]


def test_the_table_adds_up_families() -> None:
    tally = Tally(cases=4, hypotheses=8, equal=3, ties=1, ended=6, outputs=Counter([(1,), (2,)]))
    outcomes = [Outcome(shape=name, family="T5", tally=tally) for name in ("one", "two")]
    families = parity.by_family(outcomes)
    head, row, total = (line.split() for line in parity.table(families).splitlines())
    assert head[:2] == ["family", "cases"]
    assert row == ["T5", "8", "16", "6", "2", "(25.00%)", "0", "75%", "0", "2", "0"]
    assert total[1:] == row[1:]


def test_marian_translates_as_with_ctranslate2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2")
    from tests.parity import marian_ct2

    shapes = marian_ct2.plain_shapes()
    monkeypatch.setattr(marian_ct2, "plain_shapes", lambda: shapes[:1])
    assert marian_ct2.compare(parallel_sentences(3, seed=1), lambda _: None) == 0
    lines = [line.rsplit(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    counts = {line[0].strip(): line[1:] for line in lines if len(line) == 3}
    assert counts["greedy"] == counts["beam 5, length_penalty 1, max_length 38"] == ["3", "0"]


def test_the_script_names_the_checkpoints_that_there_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["parity", "--shape", "gpt"])
    with pytest.raises(SystemExit) as ended:
        parity.main()
    assert ended.value.code == 2
    assert "no such checkpoint: gpt; there are marian-3-heads, " in capsys.readouterr().err
