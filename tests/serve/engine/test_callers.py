"""Callers: light and heavy ones, and which are present."""

import pytest

from jumok_proto.errors import RateLimitedError
from jumok_serve.engine.sentence import Decoded, Sentence
from jumok_serve.search.plan import SearchPlan
from jumok_serve.share import HEAVY_S, LIGHT_WORK, PRESENCE_S, Callers
from tests.support.search_cases import make_options

NOW = 1000.0


def sentence(caller: str, *, beam_size: int = 4) -> Sentence:
    options = make_options(beam_size=beam_size, max_length=100)
    return Sentence(source_ids=[5] * 17, plan=SearchPlan(options, 2), caller=caller)


def heavy_work(caller: str) -> list[Sentence]:
    one = sentence(caller)
    return [sentence(caller) for _ in range(LIGHT_WORK // one.work + 1)]


def test_a_caller_is_light_only_beside_a_heavy_one() -> None:
    callers = Callers()
    few, many = [sentence("few")], heavy_work("many")
    callers.arrived(few, NOW)
    assert not callers.is_light("few")
    callers.arrived(many, NOW)
    assert callers.is_light("few")
    assert not callers.is_light("many")
    many[0].future.set_result(Decoded((), 0.0, 0.0, 0.0))
    assert callers.is_light("few")  # until the end is settled
    callers.settle(NOW + 1)
    assert callers.is_light("few")  # the other one may send more at once
    assert callers.contended(NOW + 1)
    callers.settle(NOW + 1 + HEAVY_S)
    assert callers.is_light("few")
    callers.settle(NOW + 1 + HEAVY_S + 1e-3)
    assert not callers.is_light("few")
    assert not callers.any_heavy


@pytest.mark.parametrize(("beam_size", "most"), [(4, 5), (5, 4), (16, 1)])
def test_a_light_caller_has_few_sentences_or_one_with_a_wider_beam(beam_size: int, most: int) -> None:
    callers = Callers()
    callers.arrived(heavy_work("many"), NOW)
    callers.arrived([sentence("few", beam_size=beam_size) for _ in range(most)], NOW)
    assert callers.is_light("few")
    callers.arrived([sentence("few", beam_size=beam_size)], NOW)
    assert not callers.is_light("few")


def test_every_end_of_a_sentence_is_settled() -> None:
    callers = Callers()
    many = heavy_work("many")
    callers.arrived(many, NOW)
    for number, one in enumerate(many):
        if number % 3 == 0:
            one.future.cancel()
        elif number % 3 == 1:
            one.future.set_exception(ValueError("failed"))
        else:
            one.future.set_result(Decoded((), 0.0, 0.0, 0.0))
        one.future.cancel()  # ends it no second time
    callers.arrived([sentence("few")], NOW)
    assert callers.is_light("few")
    callers.settle(NOW)
    callers.settle(NOW + 2 * HEAVY_S)
    assert not callers.is_light("few")
    assert not callers.any_heavy


def test_callers_are_present_for_a_while_after_their_last_sentence() -> None:
    callers = Callers()
    assert not callers.several(NOW)
    one, other = sentence("one"), sentence("other")
    callers.arrived([one], NOW)
    assert not callers.several(NOW)
    callers.arrived([other], NOW + 1)
    assert callers.several(NOW + 1)
    assert not callers.contended(NOW + 1)
    one.future.cancel()
    callers.settle(NOW)
    assert callers.several(NOW + PRESENCE_S)
    assert not callers.several(NOW + PRESENCE_S + 1e-3)
    callers.arrived([sentence("one")], NOW + 100)  # the other still has work
    assert callers.several(NOW + 10_000)
    callers.arrived(heavy_work("one"), NOW + 10_000)
    assert callers.contended(NOW + 10_000)


def test_a_caller_with_old_work_is_present() -> None:
    """Beside one whose sentences come and end."""
    callers = Callers()
    callers.arrived(heavy_work("old"), NOW)
    for second in range(int(2 * PRESENCE_S)):
        callers.arrived([one := sentence("light")], NOW + second)
        one.future.cancel()
        callers.settle(NOW)
        assert callers.several(NOW + second + 0.5)
        assert callers.contended(NOW + second + 0.5)


def test_callers_with_much_work_contend_only_beside_one_with_little() -> None:
    callers = Callers()
    callers.arrived(heavy_work("one"), NOW)
    callers.arrived(heavy_work("other"), NOW)
    assert callers.several(NOW)
    assert not callers.contended(NOW)
    callers.arrived([light := sentence("light")], NOW + 1)
    callers.arrived([sentence("one"), sentence("other")], NOW + 2)  # later than the light one
    assert callers.contended(NOW + 10_000)
    light.future.cancel()
    callers.settle(NOW)
    assert callers.contended(NOW + 1 + PRESENCE_S)
    assert not callers.contended(NOW + 1 + PRESENCE_S + 1e-3)


def test_a_heavy_caller_that_comes_back_is_heavy_at_once_and_never_twice() -> None:
    callers = Callers()
    for second in range(3):
        callers.arrived(many := heavy_work("many"), NOW + second / 2)
        callers.arrived([few := sentence("few")], NOW + second / 2)
        assert callers.contended(NOW + second / 2)
        for one in (few, *many):
            one.future.cancel()
        callers.settle(NOW + second / 2)
        assert callers.contended(NOW + second / 2)  # the light one was there a moment ago
        callers.arrived([small := sentence("many")], NOW + second / 2)
        assert not callers.is_light("many")
        small.future.cancel()
    callers.settle(NOW + 10)
    assert not callers.any_heavy


def test_callers_that_are_gone_are_forgotten() -> None:
    callers = Callers()
    for number in range(100):
        one = sentence(str(number))
        callers.arrived([one], NOW + number)
        one.future.cancel()
    callers.settle(NOW)
    assert len(callers._last_seen) <= PRESENCE_S + 1
    assert callers._unfinished == {}


def ended(one: Sentence, steps: int) -> None:
    """End a sentence after some of its steps."""
    for _ in range(steps):
        one.search.advance(range(5, 13), [-float(rank) for rank in range(8)], [0, 1, 2, 3] * 2)
    one.future.set_result(Decoded((), 0.0, 0.0, 0.0))


def test_a_rate_counts_estimated_work_and_gives_back_what_was_not_used() -> None:
    first = sentence("a")
    work, steps = first.work, 3
    callers = Callers(work, 2 * work)
    for one in (first, second := sentence("a")):
        callers.charge("a", one.work, NOW)
        callers.arrived([one], NOW)
    with pytest.raises(RateLimitedError, match=f"more than {work} row steps per second; wait 1 s") as refused:
        callers.charge("a", work, NOW)
    assert refused.value.retry_after_s == pytest.approx(1.0)
    callers.charge("b", work, NOW)
    ended(first, steps)
    callers.settle(NOW)
    with pytest.raises(RateLimitedError) as refused:
        callers.charge("a", work, NOW)
    assert refused.value.retry_after_s == pytest.approx(4 * steps / work)
    second.future.cancel()  # before its first step: all is given back
    callers.settle(NOW)
    callers.charge("a", work, NOW)
    with pytest.raises(RateLimitedError) as refused:
        callers.charge("a", work, NOW)
    assert refused.value.retry_after_s == pytest.approx(4 * steps / work)
