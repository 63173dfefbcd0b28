"""Words and hard alignments against tables worked by hand, and alignments on the wire."""

from dataclasses import replace

import pytest

from jumok_proto.alignments import Alignment
from jumok_proto.attention import ATTENTION_KINDS, AlignedToken, AttentionWeights, Matrix
from jumok_proto.conversion import (
    alignments_from_proto,
    alignments_to_proto,
    kinds_from_proto,
    kinds_to_proto,
)
from jumok_proto.v1 import alignment_pb2

END = AlignedToken("</s>", special=True)
START = AlignedToken("<s>", special=True)
SOURCE = (AlignedToken("▁The"), AlignedToken("▁play"), AlignedToken("er"), END)
TARGET = (AlignedToken("▁Der"), AlignedToken("▁Spiel"), AlignedToken("er"), AlignedToken("."), END)
READ = (START, *TARGET[:-1])

CROSS: Matrix = (
    (0.5, 0.125, 0.25, 0.125),
    (0.25, 0.25, 0.25, 0.25),
    (0.0, 0.125, 0.375, 0.5),
    (0.0, 0.0, 0.25, 0.75),
    (0.125, 0.0, 0.0, 0.875),
)
ENCODER: Matrix = (
    (0.25, 0.25, 0.25, 0.25),
    (0.5, 0.25, 0.125, 0.125),
    (0.0, 0.5, 0.25, 0.25),
    (1.0, 0.0, 0.0, 0.0),
)
DECODER: Matrix = (
    (1.0, 0.0, 0.0, 0.0, 0.0),
    (0.5, 0.5, 0.0, 0.0, 0.0),
    (0.25, 0.5, 0.25, 0.0, 0.0),
    (0.0, 0.25, 0.25, 0.5, 0.0),
    (0.0, 0.0, 0.25, 0.25, 0.5),
)


def weights(
    rows: tuple[AlignedToken, ...], columns: tuple[AlignedToken, ...], mean: Matrix, *, each: bool = False
) -> AttentionWeights:
    by_head = ((mean, mean), (mean, mean)) if each else None
    return AttentionWeights(rows=rows, columns=columns, layers=(0, 1), heads=(0, 1), mean=mean, by_head=by_head)


ALIGNMENT = Alignment(
    target="Der Spieler.",
    source_tokens=SOURCE,
    target_tokens=TARGET,
    decoder_tokens=READ,
    cross=weights(TARGET, SOURCE, CROSS, each=True),
    encoder=weights(SOURCE, SOURCE, ENCODER),
    decoder=weights(TARGET, READ, DECODER),
    source_truncated=True,
    model="m",
    model_version="1",
)


def check(found: Matrix, expected: Matrix) -> None:
    assert [pytest.approx(row) for row in expected] == list(found)


def test_the_hard_alignment_of_a_table() -> None:
    # Special tokens neither have a pair nor are one; of equal weights the first counts.
    assert ALIGNMENT.pairs() == ((0, 0), (0, 1), (2, 2), (2, 3))
    assert ALIGNMENT.pairs(special=True) == ((0, 0), (0, 1), (3, 2), (3, 3), (3, 4))


def test_the_words_of_a_table() -> None:
    joined = ALIGNMENT.words()
    assert [str(token) for token in joined.source_tokens] == ["The", "player", "</s>"]
    assert [str(token) for token in joined.target_tokens] == ["Der", "Spieler.", "</s>"]
    assert [str(token) for token in joined.decoder_tokens] == ["<s>", "Der", "Spieler."]
    assert [token.special for token in joined.target_tokens] == [False, False, True]
    assert joined.cross is not None
    assert joined.encoder is not None
    assert joined.decoder is not None
    # Sums over the columns of ▁play and er, means over the rows of ▁Spiel, er and the full stop.
    cross = ((0.5, 0.375, 0.125), (0.25 / 3, 1.25 / 3, 1.5 / 3), (0.125, 0.0, 0.875))
    check(joined.cross.mean, cross)
    assert joined.cross.by_head is not None
    assert [list(heads) for heads in joined.cross.by_head] == [[joined.cross.mean] * 2] * 2
    check(joined.encoder.mean, ((0.25, 0.5, 0.25), (0.25, 0.5625, 0.1875), (1.0, 0.0, 0.0)))
    check(joined.decoder.mean, ((1.0, 0.0, 0.0), (0.25, 1.25 / 3, 1 / 3), (0.0, 0.0, 1.0)))
    for of_kind in (joined.cross, joined.encoder, joined.decoder):
        assert [sum(row) for row in of_kind.mean] == pytest.approx([1.0] * len(of_kind.rows))
    assert (joined.encoder.rows, joined.decoder.columns) == (joined.source_tokens, joined.decoder_tokens)
    assert joined.pairs() == ((0, 0), (1, 1))
    assert joined.words() == joined


def test_attention_that_was_not_requested_is_refused() -> None:
    alone = replace(ALIGNMENT, cross=None, encoder=None)
    assert alone.words().cross is None
    assert alone.attention("decoder") == ALIGNMENT.decoder
    with pytest.raises(
        ValueError, match="no attention of kind 'cross', only decoder: request it with the argument kinds"
    ):
        alone.pairs()


def test_a_text_without_tokens_has_no_pairs() -> None:
    nothing = AttentionWeights(rows=(), columns=(), layers=(0,), heads=(0,), mean=())
    empty = replace(ALIGNMENT, source_tokens=(), target_tokens=(), decoder_tokens=(), cross=nothing)
    assert empty.pairs() == ()
    only_special = replace(ALIGNMENT, source_tokens=(END,), cross=weights(TARGET, (END,), ((1.0,),) * 5))
    assert only_special.pairs() == ()


def test_alignments_survive_the_wire() -> None:
    nothing = replace(weights((), (), (), each=True), layers=(1,), by_head=(((), ()),))
    empty = replace(ALIGNMENT, target="", source_tokens=(), target_tokens=(), decoder_tokens=())
    sent = [ALIGNMENT, replace(empty, cross=nothing, encoder=None, decoder=None)]
    data = alignments_to_proto(sent).SerializeToString()
    assert alignments_from_proto(alignment_pb2.AlignTextResponse.FromString(data)) == sent


def test_weights_of_a_wrong_size_are_refused() -> None:
    message = alignments_to_proto([ALIGNMENT])
    message.alignments[0].encoder.mean.weights.append(0.5)
    with pytest.raises(ValueError, match="encoder has a matrix of 17 weights for 4 by 4 tokens"):
        alignments_from_proto(message)
    message = alignments_to_proto([ALIGNMENT])
    message.alignments[0].cross.by_head.pop()
    with pytest.raises(ValueError, match="cross has 3 matrices for 2 layers of 2 heads each"):
        alignments_from_proto(message)


def test_kinds_survive_the_wire() -> None:
    assert kinds_from_proto(kinds_to_proto(ATTENTION_KINDS)) == ATTENTION_KINDS
    assert kinds_from_proto([]) == ("cross",)
    for unknown in (0, 9):
        with pytest.raises(ValueError, match=f"kinds has the unknown value {unknown}"):
            kinds_from_proto([alignment_pb2.AttentionKind.ValueType(unknown)])
