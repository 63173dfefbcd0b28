"""The grid of options to compare: each alone and some together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jumok_proto.options import EarlyStopping
from jumok_serve.search.options import DecodingOptions
from tests.parity.checkpoints import Checkpoint
from tests.parity.oracle import Case
from tests.parity.texts import Parallel


@dataclass(frozen=True, kw_only=True)
class OptionSet:
    """Options with a name, and whether every sentence continues a beginning of its own."""

    name: str
    options: DecodingOptions
    prefixed: bool = False


def option_sets(checkpoint: Checkpoint) -> list[OptionSet]:
    """The whole grid; token ids are the checkpoint's, of words that its translations are full of."""
    common = _common_tokens(checkpoint)
    early_stoppings: tuple[EarlyStopping, ...] = (False, True, "never")
    stopped = DecodingOptions(beam_size=3, num_hypotheses=3, length_penalty=1.5, max_length=30)
    alone = {
        "defaults": DecodingOptions(),
        "greedy": DecodingOptions(beam_size=1),
        **{f"beam {size}": DecodingOptions(beam_size=size, num_hypotheses=size) for size in range(2, 9)},
        "two of beam 6": DecodingOptions(beam_size=6, num_hypotheses=2),
        **{
            f"length_penalty {penalty:g}": DecodingOptions(beam_size=4, num_hypotheses=4, length_penalty=penalty)
            for penalty in (-1.0, 0.0, 0.6, 2.0)
        },
        **{f"early_stopping {early}": replace(stopped, early_stopping=early) for early in early_stoppings},
    }
    greedy_and_beam = {
        "no_repeat_ngram_size 2": DecodingOptions(no_repeat_ngram_size=2),
        "no_repeat_ngram_size 3": DecodingOptions(no_repeat_ngram_size=3),
        "repetition_penalty 1.3": DecodingOptions(repetition_penalty=1.3),
        "repetition_penalty 0.8": DecodingOptions(repetition_penalty=0.8),
        "min_length 30": DecodingOptions(min_length=30, max_length=36),
        **{f"max_length {length}": DecodingOptions(min_length=0, max_length=length) for length in (1, 2, 6)},
        "suppress_tokens": DecodingOptions(suppress_tokens=common),
        "end_tokens": DecodingOptions(end_tokens=(*checkpoint.end_tokens, *common)),
        "forced_first_token": DecodingOptions(forced_first_token=common[0]),
        "several": _SEVERAL,
    }
    prefixed = {
        "target prefix": DecodingOptions(min_length=0, max_length=30),
        "target prefix and several": _SEVERAL,
    }
    return [
        *(OptionSet(name=name, options=options) for name, options in alone.items()),
        *(each for name, options in greedy_and_beam.items() for each in _greedy_and_beam(name, options)),
        *(each for name, options in prefixed.items() for each in _greedy_and_beam(name, options, prefixed=True)),
    ]


def quick_sets(checkpoint: Checkpoint) -> list[OptionSet]:
    """A few of them, which between them have every option."""
    wanted = {"defaults", "greedy", "beam 5", "early_stopping never", "suppress_tokens, beam", "end_tokens, greedy"}
    wanted |= {"max_length 2, beam", "several, beam", "target prefix, beam", "target prefix and several, greedy"}
    return [chosen for chosen in option_sets(checkpoint) if chosen.name in wanted]


def cases(
    checkpoint: Checkpoint, sets: Sequence[OptionSet], sentences: Sequence[Parallel]
) -> Iterator[tuple[OptionSet, Case]]:
    """Every sentence with every set of options; directions, and lengths of prefixes, change with the sentence."""
    pairs = checkpoint.shape.pairs
    for chosen in sets:
        for index, sentence in enumerate(sentences):
            pair = pairs[index % len(pairs)]
            target = sentence.french if pair.french else sentence.german
            prefix = " ".join(target.split()[: 1 + index % 3]) if chosen.prefixed else ""
            yield chosen, Case(text=sentence.english, pair=pair, options=chosen.options, prefix=prefix)


_REPEATING = DecodingOptions(no_repeat_ngram_size=2, repetition_penalty=1.1)
_SEVERAL = replace(_REPEATING, length_penalty=0.8, early_stopping="never", min_length=4, max_length=24)


def _greedy_and_beam(name: str, options: DecodingOptions, *, prefixed: bool = False) -> Iterator[OptionSet]:
    yield OptionSet(name=f"{name}, greedy", options=replace(options, beam_size=1), prefixed=prefixed)
    yield OptionSet(name=f"{name}, beam", options=replace(options, beam_size=4, num_hypotheses=4), prefixed=prefixed)


def _common_tokens(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Two tokens that many translations have: how the words for "the" and "street" end."""
    words = ("la", "rue") if checkpoint.shape.pairs[-1].french else ("der", "Gasse")
    return tuple(checkpoint.target_ids(word)[-1] for word in words)
