"""The same Marian checkpoints in CTranslate2, with its beam search set to stop where ours does.

CTranslate2 ends a beam search when ``round(patience * beam_size)`` hypotheses have ended, which with a patience of 1 is
``early_stopping=True``: the first K, and those that end in the same step. It divides a sum by a power of the
hypothesis' length as we do, but counts EOS only if it returns it (``return_end_token``). It forbids tokens before the
softmax, as we do when greedy, whereas beams forbid after it, as in ``generate``; the checkpoints here say
``renormalize_logits``, which makes the two one. So does its converter, which takes ``<pad>`` out of the vocabulary; we
have it in ``bad_words_ids``, as all published checkpoints do.

What cannot be set equal is compared as well, and may differ now and then: ``DIFFERENT`` says why.

The converter takes the encoder's number of heads for the decoder too, and takes the last token for ``<pad>``, so shapes
where these are wrong are left out.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import ctranslate2
import torch
from ctranslate2.converters import TransformersConverter

from jumok_proto.results import Translation
from jumok_serve.search.options import DecodingOptions
from tests.parity.checkpoints import Checkpoint, Shape, make_checkpoint
from tests.parity.compare import score_tolerance
from tests.parity.grid import OptionSet, cases
from tests.parity.oracle import Case
from tests.parity.run import imported, quiet, translate
from tests.parity.shapes import marian
from tests.parity.texts import Parallel

LONGEST = 38

DIFFERENT = {
    "length_penalty 0": "CTranslate2 then goes on until the best row of a step has ended, too",
    "early_stopping False": "CTranslate2 stops at the first K hypotheses that end, and does not look for better ones",
    "early_stopping never": "another stopping rule",
    "two end tokens": "CTranslate2 looks at 2 * K continuations however many tokens end a hypothesis, where generate "
    "looks at (1 + number of end tokens) * K",
}
"""Option sets under which the two search by different rules."""

Found = list[tuple[tuple[int, ...], float]]
"""Token ids and score of every hypothesis, best first."""


def plain_shapes() -> list[Shape]:
    """The shapes that the converter understands, with the decoding defaults that both sides can have."""
    return [
        replace(
            shape,
            name=f"{shape.name}-plain",
            generation=lambda token: {"bad_words_ids": [[token("<pad>")]], "renormalize_logits": True},
        )
        for shape in marian()
        if shape.configuration().share_encoder_decoder_embeddings
    ]


def option_sets(checkpoint: Checkpoint) -> list[OptionSet]:
    """Options that both have, and those of `DIFFERENT`."""
    beams = [(size, 1.0, LONGEST) for size in range(2, 9)]
    beams += [(4, penalty, LONGEST) for penalty in (-1.0, 0.6, 2.0)]
    beams += [(4, 1.0, length) for length in (1, 2, 6)]
    greedy = DecodingOptions(beam_size=1, max_length=LONGEST)
    beam = DecodingOptions(beam_size=4, num_hypotheses=4, early_stopping=True, length_penalty=1.0, max_length=LONGEST)
    options = {
        "greedy": greedy,
        "greedy, max_length 6": replace(greedy, max_length=6),
        "greedy, min_length 20": replace(greedy, min_length=20),
        **{
            f"beam {size}, length_penalty {penalty:g}, max_length {length}": replace(
                beam, beam_size=size, num_hypotheses=size, length_penalty=penalty, max_length=length
            )
            for size, penalty, length in beams
        },
        "beam 4, min_length 20": replace(beam, min_length=20),
        "length_penalty 0": replace(beam, length_penalty=0.0),
        "early_stopping False": replace(beam, early_stopping=False),
        "early_stopping never": replace(beam, early_stopping="never"),
        "two end tokens": replace(beam, end_tokens=(*checkpoint.end_tokens, checkpoint.token("▁!"))),
    }
    return [OptionSet(name=name, options=chosen) for name, chosen in options.items()]


class Peer:
    """A checkpoint in CTranslate2's format, in float32.

    Args:
        checkpoint: what to convert.
        folder: where to; made here.
    """

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        TransformersConverter(str(checkpoint.folder)).convert(str(folder))
        self._checkpoint = checkpoint
        self._translator = ctranslate2.Translator(
            str(folder),
            device="cpu",
            compute_type="float32",
            inter_threads=1,
            intra_threads=torch.get_num_threads(),
        )

    def translate(self, case: Case) -> Found:
        """Decodes one sentence."""
        tokenizer, options = self._checkpoint.tokenizer, case.options
        source = tokenizer.convert_ids_to_tokens(self._checkpoint.source_ids(case.text, case.pair))
        ends = self._checkpoint.end_tokens if options.end_tokens is None else options.end_tokens
        [result] = self._translator.translate_batch(
            [source],
            beam_size=options.beam_size or 1,
            num_hypotheses=options.num_hypotheses or 1,
            patience=1,
            length_penalty=1.0 if options.length_penalty is None else options.length_penalty,
            min_decoding_length=options.min_length or 0,
            max_decoding_length=options.max_length or LONGEST,
            end_token=tokenizer.convert_ids_to_tokens(list(ends)),
            return_end_token=True,
            return_scores=True,
        )
        return [
            (tuple(tokenizer.encoder[token] for token in tokens), score)
            for tokens, score in zip(result.hypotheses, result.scores, strict=True)
        ]


def differences(ours: Translation, theirs: Found, length_penalty: float) -> Iterator[str]:
    """Name the first difference, as against `generate`."""
    if len(ours.hypotheses) != len(theirs):
        yield f"{len(ours.hypotheses)} hypotheses, and {len(theirs)} with CTranslate2"
    for rank, (our, (tokens, score)) in enumerate(zip(ours.hypotheses, theirs, strict=False), start=1):
        tolerance = score_tolerance(score, score * max(len(tokens), 1) ** length_penalty)
        if our.token_ids != tokens:
            yield f"hypothesis {rank} is {list(our.token_ids)}, and {list(tokens)} with CTranslate2"
        elif not abs(our.score - score) <= tolerance:
            yield f"hypothesis {rank} scores {our.score}, and {score} with CTranslate2"


def compared(
    asked: Sequence[tuple[OptionSet, Case]], translations: Sequence[Translation], peer: Peer
) -> Iterator[tuple[OptionSet, Case, str | None]]:
    """Compare all translations; give the first difference of each, or None."""
    for (chosen, case), translation in zip(asked, translations, strict=True):
        penalty = 1.0 if case.options.length_penalty is None else case.options.length_penalty
        yield chosen, case, next(differences(translation, peer.translate(case), penalty), None)


def compare(sentences: Sequence[Parallel], progress: Callable[[str], None]) -> int:
    """Prints counts for every set of options; the exit status, 1 where equal rules give different results."""
    counts: dict[str, list[int]] = {}  # by option set: equal, different
    problems = []
    for shape in plain_shapes():
        with tempfile.TemporaryDirectory() as folder, quiet():
            checkpoint = make_checkpoint(shape, Path(folder) / shape.name)
            peer = Peer(checkpoint, Path(folder) / "ctranslate2")
            asked = list(cases(checkpoint, option_sets(checkpoint), sentences))
            with imported(checkpoint, Path(folder) / "bundle") as translator:
                progress(f"{shape.name}: converted and imported")
                translations = translate(translator, [case for _, case in asked])
            for chosen, case, what in compared(asked, translations, peer):
                counts.setdefault(chosen.name, [0, 0])[what is not None] += 1
                if what is not None and chosen.name not in DIFFERENT:
                    problems.append(f"{shape.name}, {chosen.name}, {case.text!r}: {what}")
    print(f"Marian checkpoints against CTranslate2 {ctranslate2.__version__}, fp32\n")
    width = max(map(len, counts))
    print(f"{'options':{width}}  equal  different")
    for name, (equal, different) in counts.items():
        print(f"{name:{width}}  {equal:5}  {different:9}")
    print("\nOf these the rules cannot be set equal, so that results may differ:")
    for name, reason in DIFFERENT.items():
        print(f"- {name}: {reason}")
    for problem in problems:
        print(problem)
    return 1 if problems else 0
