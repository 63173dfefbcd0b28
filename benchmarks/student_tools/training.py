"""Training of a student of the tiny shape of mozilla/translations.

As there, it learns a teacher's translations by their cross-entropy without label smoothing and by guided alignment,
and at last with its weights in 8 bits, limited so that no sum of two products saturates in Bergamot's 16 bits. Weights
begin with a normal distribution: those of a long training have one, with few large values. So few are limited. Uniform
weights stay uniform in so short a training.
"""

import gzip
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.student_tools.distillation import EightBitWeights
from jumok_export.models.seq2seq import length_mask
from jumok_export.shortlists.ibm_model1 import align
from jumok_export.shortlists.lexicon import Lexicon
from tests.support.checkpoints.marian_folders import SPECIAL
from tests.support.checkpoints.marian_models import Student, padded
from tests.support.checkpoints.tokenizer_checkpoints import pieces

SIZES = {"width": 256, "heads": 8, "feed_forward": 1536, "encoder_layers": 6, "decoder_layers": 2}
"""student.tiny.yml of mozilla/translations: dim-emb, transformer-heads, transformer-dim-ffn, enc-depth, dec-depth."""
VOCABULARY = 8000
"""Tokens of both languages; a multiple of 8, as intgemm needs."""
BATCH_TOKENS = 800
LEARNING_RATE = 7e-4
WARM_UP = 150
"""Updates until the highest learning rate."""
EIGHT_BIT_EPOCHS = 1
"""Epochs at the end with weights in 8 bits."""
RESIDUAL = 0.3
"""Factor of the last matrices of residual branches before training: layers then begin near the identity."""
SEED = 1

GUIDED = 0.5
"""Weight of the loss of guided alignment, by which students learn where to look."""

Pair = tuple[list[int], list[int]]
Example = tuple[list[int], list[int], list[int]]
"""Source, target, and the position of the source token that each target token translates."""


def read_lines(path: Path) -> list[str]:
    """Read the sentences of a file compressed by gzip."""
    return gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()


def make_vocabulary(corpus: Path) -> bytes:
    """Train one SentencePiece model of both languages, with the options that Mozilla uses."""
    sentences = [line for language in ("en", "de") for line in read_lines(corpus / f"train.{language}.gz")]
    return pieces(sentences, VOCABULARY, byte_fallback=True, **SPECIAL)


def parallel_ids(vocabulary: bytes, *texts: Sequence[str]) -> list[Pair]:
    """Token ids of sentences and of their translations, each with the end token."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary)
    sides = [[[*ids, 0] for ids in processor.EncodeAsIds(list(side))] for side in texts]
    return list(zip(*sides, strict=True))


def train(
    corpus: Path, translations: Sequence[str], folder: Path, epochs: int, progress: Callable[[str], None]
) -> Student:
    """Train a student, from the last complete epoch in `folder` on.

    Args:
        translations: a teacher's, of the sentences of `train.en`.
        folder: gets `vocabulary.spm`, and `epoch-<n>.pt` after each epoch.
        epochs: passes over the corpus; the learning rate falls to 0 in the last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "vocabulary.spm"
    if not file.exists():
        file.write_bytes(make_vocabulary(corpus))
    pairs = parallel_ids(file.read_bytes(), read_lines(corpus / "train.en.gz"), translations)
    examples = aligned_pairs(pairs, lexicon_of(pairs, VOCABULARY))
    model = new_student(file.read_bytes(), dropout=0.05)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    done = 0
    while (folder / f"epoch-{done + 1}.pt").exists():
        done += 1
    if done:
        state = torch.load(folder / f"epoch-{done}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    weights = EightBitWeights(model)
    for epoch in range(done, epochs):
        started, losses = time.monotonic(), []
        torch.manual_seed(SEED + epoch)
        model.train()
        order = list(batches(examples, epoch))
        for number, batch in enumerate(order, start=1):
            step = epoch * len(order) + number
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(step / WARM_UP, (1 - (step - 1) / (epochs * len(order))) ** 0.5)
            loss = guided_loss(model, batch)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if epoch >= epochs - EIGHT_BIT_EPOCHS:
                weights.round()
            losses.append(loss.item())
            if number % 25 == 0:
                mean = sum(losses[-25:]) / 25
                seconds = time.monotonic() - started
                progress(f"epoch {epoch + 1}: {number} of {len(order)} updates, loss {mean:.3f}, {seconds:.0f} s")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, folder / "written")
        (folder / "written").rename(folder / f"epoch-{epoch + 1}.pt")
    return model.eval()


def new_student(vocabulary: bytes, *, dropout: float = 0.0) -> Student:
    """Make a student without training."""
    torch.manual_seed(SEED)
    size = sentencepiece.SentencePieceProcessor(model_proto=vocabulary).GetPieceSize()
    assert size % 8 == 0, size
    model = Student(size, SIZES, dropout=dropout)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "embedding" not in name and "output.weight" not in name:
                nn.init.xavier_normal_(weight)
            if name.endswith(("output_projection.weight", "feed_forward.3.weight")):
                weight.mul_(RESIDUAL)
    return model


def lexicon_of(pairs: Sequence[Pair], size: int) -> Lexicon:
    """Translation probabilities of tokens by IBM Model 1."""
    return align(
        [(np.array(source, np.int32), np.array(target, np.int32)) for source, target in pairs],
        source_vocabulary=size,
        target_vocabulary=size,
    )


def aligned_pairs(pairs: Sequence[Pair], lexicon: Lexicon) -> list[Example]:
    """Align each target token with the likeliest source token, of equal ones the nearest; ends with each other."""
    bounds = lexicon.offsets.tolist()
    targets, probabilities = lexicon.targets.tolist(), lexicon.probabilities.tolist()
    likely = [
        dict(zip(targets[first:last], probabilities[first:last], strict=True))
        for first, last in itertools.pairwise(bounds)
    ]
    found = []
    for source, target in pairs:
        slope = len(source) / len(target)
        places = [
            max(
                range(len(source)),
                key=lambda at: (likely[source[at]].get(token, 0.0), -abs(at - number * slope)),
            )
            for number, token in enumerate(target)
        ]
        found.append((source, target, [*places[:-1], len(source) - 1]))
    return found


def guided_loss(model: Student, batch: Sequence[Example]) -> torch.Tensor:
    """Mean cross-entropy of a batch's target tokens, and of the first head's attention."""
    source_ids, source_lengths = padded([source for source, _, _ in batch])
    target_ids, target_lengths = padded([target for _, target, _ in batch])
    places, _ = padded([places for _, _, places in batch])
    within = torch.arange(target_ids.shape[1]) < target_lengths[:, None]
    with torch.autocast("cpu", torch.bfloat16):
        mask = length_mask(source_lengths, source_ids.shape[1])[:, None, None, :]
        memory, _ = model.run_encoder(source_ids, mask)
        decoded, attention = model.run_decoder(memory, mask, model.shift(torch.zeros_like(source_lengths), target_ids))
        logits = model.logits(decoded[within])
    loss = F.cross_entropy(logits.float(), target_ids[within])
    for weights in attention:  # [B, heads, T, S]
        given = weights[:, 0].float().gather(2, places[..., None])[..., 0][within]
        loss = loss - GUIDED * given.clamp_min(1e-6).log().mean()
    return loss


def batches(examples: Sequence[Example], epoch: int) -> Iterator[list[Example]]:
    """Batches of pairs of similar length, in an order of their own in each epoch."""
    chance = random.Random(f"{SEED} {epoch}")
    made: list[list[Example]] = [[]]
    longest = 0
    for example in sorted(chance.sample(examples, len(examples)), key=lambda each: (len(each[1]), len(each[0]))):
        longest = max(longest, *map(len, example))
        if longest * (len(made[-1]) + 1) > BATCH_TOKENS:
            made.append([])
            longest = max(map(len, example))
        made[-1].append(example)
    chance.shuffle(made)
    yield from made
