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
    return [
        OptionSet(name="defaults", options=DecodingOptions()),
        OptionSet(name="greedy", options=DecodingOptions(beam_size=1)),
        *(
            OptionSet(name=f"beam {size}", options=DecodingOptions(beam_size=size, num_hypotheses=size))
            for size in range(2, 9)
        ),
        OptionSet(name="two of beam 6", options=DecodingOptions(beam_size=6, num_hypotheses=2)),
        *(
            OptionSet(
                name=f"length_penalty {penalty:g}",
                options=DecodingOptions(beam_size=4, num_hypotheses=4, length_penalty=penalty),
            )
            for penalty in (-1.0, 0.0, 0.6, 2.0)
        ),
        *(
            OptionSet(
                name=f"early_stopping {early_stopping}",
                options=DecodingOptions(
                    beam_size=3, num_hypotheses=3, early_stopping=early_stopping, length_penalty=1.5, max_length=30
                ),
            )
            for early_stopping in early_stoppings
        ),
        *_greedy_and_beam("no_repeat_ngram_size 2", DecodingOptions(no_repeat_ngram_size=2)),
        *_greedy_and_beam("no_repeat_ngram_size 3", DecodingOptions(no_repeat_ngram_size=3)),
        *_greedy_and_beam("repetition_penalty 1.3", DecodingOptions(repetition_penalty=1.3)),
        *_greedy_and_beam("repetition_penalty 0.8", DecodingOptions(repetition_penalty=0.8)),
        *_greedy_and_beam("min_length 30", DecodingOptions(min_length=30, max_length=36)),
        *(
            each
            for length in (1, 2, 6)
            for each in _greedy_and_beam(f"max_length {length}", DecodingOptions(min_length=0, max_length=length))
        ),
        *_greedy_and_beam("suppress_tokens", DecodingOptions(suppress_tokens=common)),
        *_greedy_and_beam("end_tokens", DecodingOptions(end_tokens=(*checkpoint.end_tokens, *common))),
        *_greedy_and_beam("forced_first_token", DecodingOptions(forced_first_token=common[0])),
        *_greedy_and_beam("several", _SEVERAL),
        *_greedy_and_beam("target prefix", DecodingOptions(min_length=0, max_length=30), prefixed=True),
        *_greedy_and_beam("target prefix and several", _SEVERAL, prefixed=True),
    ]


def quick_sets(checkpoint: Checkpoint) -> list[OptionSet]:
    """A few of them, which between them have every option."""
    wanted = {
        "defaults",
        "greedy",
        "beam 5",
        "early_stopping never",
        "suppress_tokens, beam",
        "end_tokens, greedy",
        "max_length 2, beam",
        "several, beam",
        "target prefix, beam",
        "target prefix and several, greedy",
    }
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


_SEVERAL = DecodingOptions(
    length_penalty=0.8,
    early_stopping="never",
    no_repeat_ngram_size=2,
    repetition_penalty=1.1,
    min_length=4,
    max_length=24,
)


def _greedy_and_beam(name: str, options: DecodingOptions, *, prefixed: bool = False) -> Iterator[OptionSet]:
    yield OptionSet(name=f"{name}, greedy", options=replace(options, beam_size=1), prefixed=prefixed)
    yield OptionSet(name=f"{name}, beam", options=replace(options, beam_size=4, num_hypotheses=4), prefixed=prefixed)


def _common_tokens(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Two tokens that many translations have: how the words for "the" and "street" end."""
    words = ("la", "rue") if checkpoint.shape.pairs[-1].french else ("der", "Gasse")
    return tuple(checkpoint.target_ids(word)[-1] for word in words)
