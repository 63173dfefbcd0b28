"""One model in the forms that contenders need: a bundle, CTranslate2 models, a checkpoint."""

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ctranslate2.converters import TransformersConverter
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM

from benchmarks.common.data import TRANSFORMER, corpus
from benchmarks.common.processes import Contender, Program, size_on_disk
from benchmarks.common.progress import progress, quiet
from benchmarks.common.random_marian import MarianSizes, make_checkpoint, sentences, words
from benchmarks.common.trained import dequantized, specification
from jumok_export.bundles.export import export_bundle
from jumok_export.importers.huggingface.importing import import_checkpoint
from jumok_export.shortlists.lexicon import Lexicon
from jumok_export.shortlists.sources import ParallelText, ShortlistPlan
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.tokenizers.tokenizer import Tokenizer

COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}
"""CTranslate2's name of each precision; its models are stored in it."""
CALIBRATION_TEXTS = 64
BATCH_SENTENCES = (32, 16)
"""Sentences per batch for CTranslate2, besides equal shares of its workers: small batches stay in the caches."""
BATCH_TOKENS = (1024, 2048, 4096, 8192)
"""Source tokens per batch for CTranslate2, with sentences of several lengths."""
MEAN_WORDS, DEVIATION_WORDS, FEWEST_WORDS, MOST_WORDS = 14, 4.5, 5, 32
"""Lengths of random sentences in tokens, like the captions of Multi30k."""
SENTENCES = 512
LEARNT_FROM = 96
"""Sentences on which a random model learns to end its translations."""

OF_MANY, FREQUENT = 90, 4000
"""Translations of every source token that come from the frequent target tokens, by Zipf's law."""
OF_ITS_OWN = 10
"""Translations of every source token among all others."""
RIDGE = 100.0
STRETCH = 1.7
"""Factor by which the fitted lengths deviate more from their mean: regression shrinks deviations."""
SPARE = 8
"""Steps beyond the longest source that are fitted."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """Paths of the forms of one model.

    Attributes:
        bundle: bundle with the precisions that are measured.
        ctranslate2: folder by precision.
        checkpoint: checkpoint in Hugging Face's layout, or None.
        listed: True to use shortlists.
        sentencepiece: SentencePiece model that tokenizes as the bundle does, or None.
        texts: texts to translate with servers.
    """

    bundle: Path
    ctranslate2: Mapping[str, Path]
    checkpoint: Path | None = None
    listed: bool = False
    sentencepiece: Path | None = None
    texts: Sequence[str] = ()


def random_models(
    sizes: MarianSizes, folder: Path, precisions: Sequence[str], *, source_length: int, listed: bool = False
) -> Models:
    """Import and convert a checkpoint with random weights; files in the folder are reused."""
    with quiet():
        checkpoint = _made(folder / "checkpoint", partial(make_checkpoint, sizes))

    def export(out: Path) -> None:
        texts = sentences(sizes, CALIBRATION_TEXTS, tokens=source_length, seed=1)
        import_checkpoint(
            checkpoint,
            out,
            precisions=precisions,
            name="bundle",
            calibration=texts if "int8" in precisions else None,
            shortlist=ShortlistPlan(lexicon=MadeUpLexicon()) if listed else None,
            progress=progress,
        )

    def convert(compute_type: str, vocabulary_map: Path | None, out: Path) -> None:
        vmap = vocabulary_map and str(vocabulary_map)
        TransformersConverter(str(checkpoint)).convert(str(out), quantization=compute_type, vmap=vmap)

    return replace(_made_models(folder, precisions, export, convert, listed=listed), checkpoint=checkpoint)


def trained_models(folder: Path, precisions: Sequence[str], *, listed: bool = False) -> Models:
    """Export and convert the repository's model; files in the folder are reused."""
    original = Bundle.open(TRANSFORMER)
    manifest, tokenizer = original.manifest, original.tokenizer
    model = dequantized(TRANSFORMER)

    def export(out: Path) -> None:
        shortlist = None
        if listed:
            lexicon = ParallelText(sources=corpus("train.en"), targets=corpus("train.de"))
            shortlist = ShortlistPlan(lexicon=lexicon)
        export_bundle(
            model,
            tokenizer,
            out,
            precisions=precisions,
            name=manifest.name,
            languages=manifest.languages,
            special_tokens=manifest.special_tokens,
            limits=manifest.limits,
            generation=manifest.generation,
            calibration=corpus("val.en")[:CALIBRATION_TEXTS] if "int8" in precisions else None,
            shortlist=shortlist,
            progress=progress,
        )

    def convert(compute_type: str, vocabulary_map: Path | None, out: Path) -> None:
        out.mkdir()
        spec = specification(model, tokenizer.tokens(range(tokenizer.vocab_size)))
        if vocabulary_map is not None:
            spec.register_vocabulary_mapping(str(vocabulary_map))
        spec.validate()
        spec.optimize(compute_type)
        spec.save(str(out))

    made = _made_models(folder, precisions, export, convert, listed=listed)
    return replace(made, sentencepiece=TRANSFORMER / "tokenizer.model")


def _made_models(
    folder: Path,
    precisions: Sequence[str],
    export: Callable[[Path], None],
    convert: Callable[[str, Path | None, Path], None],
    *,
    listed: bool,
) -> Models:
    """Make what is missing of a model's bundle, its shortlist, and CTranslate2's models."""
    with quiet():
        bundle, lists = _made(folder / "-".join(("bundle", *sorted(precisions))), export), None
        if listed:
            lists = _made(folder / "vmap.txt", partial(save_vocabulary_map, Bundle.open(bundle)))
        converted = {
            precision: _made(
                folder / f"ctranslate2-{COMPUTE_TYPES[precision]}", partial(convert, COMPUTE_TYPES[precision], lists)
            )
            for precision in precisions
        }
    return Models(bundle=bundle, ctranslate2=converted, listed=listed)


def _made(path: Path, make: Callable[[Path], object]) -> Path:
    """Make a file or folder, atomically, unless it exists."""
    if not path.exists():
        progress(f"making {path.name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # a file is written over
        make(part)
        part.rename(path)
    return path


def ours(models: Models, precisions: Sequence[str]) -> dict[str, Contender]:
    """jumok's contender by precision."""
    # The folders of all precisions are left out here; each contender adds its own.
    shared = [path for path in models.bundle.iterdir() if path.name not in COMPUTE_TYPES]
    options = ["--shortlist"] if models.listed else []
    return {
        precision: Contender(
            program=Program.of(f"jumok {precision}", "jumok_side", models.bundle, precision, *options),
            size=size_on_disk(models.bundle / precision, *shared),
        )
        for precision in precisions
    }


def peers(models: Models, precisions: Sequence[str], *, threads: int) -> dict[str, list[Contender]]:
    """CTranslate2's contenders by precision: all divisions of the threads among workers."""
    options = ["--shortlist"] if models.listed else []
    options += ["--sentencepiece", str(models.sentencepiece)] if models.sentencepiece else []

    def contender(precision: str, workers: int) -> Contender:
        folder, each = models.ctranslate2[precision], threads // workers
        given = (folder, COMPUTE_TYPES[precision], workers, each, *options)
        program = Program.of(f"{workers}x{each}", "ctranslate2_side", *given)
        return Contender(program=program, size=size_on_disk(folder))

    divisions = [workers for workers in range(1, threads + 1) if threads % workers == 0]
    return {precision: [contender(precision, workers) for workers in divisions] for precision in precisions}


def in_smaller_batches(peers: Sequence[Contender]) -> Iterator[Contender]:
    """Yield CTranslate2's contenders, each also with batches smaller than a worker's equal share."""
    yield from peers
    for peer in peers:
        workers = int(peer.program.arguments[2])
        for size in BATCH_SENTENCES:
            yield replace(peer, batch_size=size, beyond=workers * size)


def in_batches_of_tokens(peers: Sequence[Contender]) -> Iterator[Contender]:
    """Yield CTranslate2's contenders with several batch sizes in tokens."""
    for peer in peers:
        for tokens in BATCH_TOKENS:
            yield replace(peer, batch_size=tokens, batch_type="tokens")


def generate(checkpoint: Path, *, threads: int) -> Contender:
    """The contender ``generate``."""
    program = Program.of("generate fp32", "generate_side", checkpoint, threads)
    return Contender(program=program, size=size_on_disk(checkpoint))


def served_random(sizes: MarianSizes, folder: Path) -> Models:
    """Make a Marian model with random weights, whose translations end.

    Existing files in the folder are reused.
    """

    def make(out: Path) -> None:
        make_checkpoint(sizes, out)
        spelled = {word: index for index, word in enumerate(words(sizes), start=2)}
        learnt_from = made_up(sizes, LEARNT_FROM, seed=0)
        learn_to_end(out, [[*(spelled[word] for word in text.split()), 0] for text in learnt_from])

    with quiet():
        _made(folder / "checkpoint", make)
    made = random_models(sizes, folder, ["int8"], source_length=MEAN_WORDS)
    return replace(made, texts=made_up(sizes, SENTENCES, seed=1))


def made_up(sizes: MarianSizes, count: int, *, seed: int) -> list[str]:
    """Sentences of random words, one token each, by seed."""
    generator, known = random.Random(seed), words(sizes)
    lengths = (round(generator.gauss(MEAN_WORDS, DEVIATION_WORDS)) for _ in range(count))
    return [" ".join(generator.choices(known, k=min(max(length, FEWEST_WORDS), MOST_WORDS))) for length in lengths]


@dataclass(frozen=True)
class MadeUpLexicon:
    """A random lexicon with lists as long as real text's.

    The lists also overlap as much.

    20 source tokens list some 1,000 target tokens, 32 such texts some 9,000 of 32,000.
    """

    origin: str = "made up"

    def lexicon(self, tokenizer: Tokenizer, progress: Callable[[str], None]) -> Lexicon:
        """See `jumok_export.shortlists.sources.LexiconSource`."""
        progress("making up a lexicon")
        random = np.random.default_rng(0)
        sources, targets = tokenizer.source_vocab_size, tokenizer.vocab_size
        frequent = random.permutation(targets)[: min(FREQUENT, targets)]
        shares = 1 / np.arange(1, len(frequent) + 1)
        rows = [
            np.unique(
                np.concatenate(
                    (
                        frequent[np.searchsorted(np.cumsum(shares), random.random(OF_MANY) * shares.sum())],
                        random.integers(targets, size=OF_ITS_OWN),
                    )
                )
            )
            for _ in range(sources)
        ]
        frequencies = np.zeros(targets)
        frequencies[frequent] = shares
        return Lexicon(
            offsets=np.cumsum([0, *map(len, rows)]),
            targets=np.concatenate(rows),
            probabilities=np.ones(sum(map(len, rows)), np.float32),
            frequencies=frequencies,
        )


def save_vocabulary_map(bundle: Bundle, path: Path) -> None:
    """Writes a bundle's shortlist in CTranslate2's format.

    Lines have a source token, a tab, and its target tokens.

    An empty source token stands for what is in every list. CTranslate2 takes the lists of a whole batch together.

    Raises:
        BundleError: the bundle has none.
    """
    shortlist, tokenizer = bundle.shortlist(), bundle.tokenizer
    spelled = tokenizer.tokens(range(tokenizer.vocab_size))
    always = shortlist.of([])
    lines = [("", always)]
    for source, token in enumerate(tokenizer.source_tokens(range(shortlist.sources))):
        own = np.setdiff1d(shortlist.of([source]), always, assume_unique=True)
        if len(own):
            lines.append((token, own))
    with path.open("w", encoding="utf-8") as file:
        for token, listed in lines:
            print(f"{token}\t{' '.join(spelled[target] for target in listed.tolist())}", file=file)


def learn_to_end(checkpoint: Path, sources: Sequence[Sequence[int]]) -> None:
    """Fit the end token's row in a Marian checkpoint, and save it: translations then are about as long as sources.

    Speed depends on sizes and on the distribution of weights; batching depends on lengths too, and random weights never
    end. A Transformer's hidden states hold its position and, through cross-attention, the source length. So ridge
    regression (Hoerl and Kennard, 1970) finds a row of the output layer, that of the end token, that counts the tokens
    left. Its logit rises by one per token and meets the maximum of the others at the end. The checkpoint has tied
    embeddings.

    Args:
        checkpoint: folder of the checkpoint.
        sources: token ids of the training sources, with end tokens.
    """
    auto: Any = AutoModelForSeq2SeqLM  # untyped
    model = auto.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for _ in range(2):  # the row is an input too, where a source ends
            _fit_end(model, [torch.tensor(source) for source in sources])
    model.save_pretrained(checkpoint)


def _fit_end(model: Any, sources: Sequence[Tensor]) -> None:
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    padded = pad_sequence(list(sources), batch_first=True, padding_value=pad)  # [B, S]
    lengths = torch.tensor([len(source) for source in sources])  # [B]
    steps = padded.shape[1] + SPARE
    written = torch.randint(2, pad, (len(sources), steps))  # [B, T]
    written[:, 0] = model.config.decoder_start_token_id
    output = model(
        input_ids=padded,
        attention_mask=(padded != pad).long(),
        decoder_input_ids=written,
        use_cache=False,
        output_hidden_states=True,
    )
    hidden = output.decoder_hidden_states[-1]  # [B, T, D]
    output.logits[..., end] = -torch.inf
    ends = lengths.float().mean() + STRETCH * (lengths - lengths.float().mean())  # [B]
    rising = (torch.arange(1, steps + 1) - ends[:, None]).clamp(-SPARE, SPARE)  # [B, T], 0 where it is to end
    wanted = (rising + output.logits.amax(-1).mean()).flatten()
    inputs = F.pad(hidden.flatten(0, 1), (0, 1), value=1.0)  # [B*T, D+1]
    penalty = RIDGE * torch.eye(inputs.shape[1])
    penalty[-1, -1] = 0
    found = torch.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ wanted)
    model.lm_head.weight[end] = found[:-1]
    model.final_logits_bias[0, end] = found[-1]
