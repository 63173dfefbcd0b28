"""A Marian checkpoint with random weights, as fast as a trained one.

The time per token is the same.

Its tokenizer has one random word per token, so a text of N words has N tokens.
"""

import io
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from torch import nn
from transformers import GenerationConfig, MarianConfig, MarianMTModel

SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprstvwz" for vowel in "aeiou"]
END = "</s>"
_MARIAN: Any = MarianMTModel  # untyped
_GENERATION: Any = GenerationConfig


@dataclass(frozen=True, kw_only=True)
class MarianSizes:
    """Sizes of a checkpoint; defaults as OPUS-MT, but for the vocabulary.

    Attributes:
        vocabulary: vocabulary size; published models have some 32,000 to 65,000.
        layers: layers of the encoder, and of the decoder.
        width: d_model.
        feed_forward: width of the hidden layers.
        heads: attention heads.
        positions: longest source or target.
    """

    vocabulary: int = 32_000
    layers: int = 6
    width: int = 512
    feed_forward: int = 2048
    heads: int = 8
    positions: int = 512


TINY = MarianSizes(vocabulary=300, layers=1, width=32, feed_forward=64, heads=2, positions=128)
"""Sizes that only show that a benchmark runs."""


def words(sizes: MarianSizes) -> list[str]:
    """All words of the vocabulary, without ``</s>``, ``<unk>`` and ``<pad>``."""
    spelled = ("".join(syllables) for syllables in itertools.product(SYLLABLES, repeat=3))
    return list(itertools.islice(spelled, sizes.vocabulary - 3))


def sentences(sizes: MarianSizes, count: int, *, tokens: int, seed: int) -> list[str]:
    """Random texts of `tokens` tokens each, end token included, by seed."""
    generator, known = random.Random(seed), words(sizes)
    return [" ".join(generator.choices(known, k=tokens - 1)) for _ in range(count)]


def source_tokens(text: str) -> list[str]:
    """The tokens of a text, with the end token."""
    return [*(f"▁{word}" for word in text.split()), END]


def make_checkpoint(sizes: MarianSizes, folder: Path) -> None:
    """Save a checkpoint in a new folder, always the same.

    It forces no token at the end, unlike published configurations: CTranslate2 ignores that setting.
    """
    folder.mkdir(parents=True)
    _save_tokenizer(words(sizes), folder)
    pad = sizes.vocabulary - 1
    configuration = MarianConfig(
        vocab_size=sizes.vocabulary,
        d_model=sizes.width,
        encoder_layers=sizes.layers,
        decoder_layers=sizes.layers,
        encoder_ffn_dim=sizes.feed_forward,
        decoder_ffn_dim=sizes.feed_forward,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        max_position_embeddings=sizes.positions,
        activation_function="swish",
        scale_embedding=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        forced_eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _MARIAN(configuration)
        nn.init.normal_(model.final_logits_bias, std=0.3)
    model.generation_config = _GENERATION(
        num_beams=4,
        max_length=sizes.positions,
        bad_words_ids=[[pad]],
        renormalize_logits=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=pad,
        decoder_start_token_id=pad,
    )
    model.save_pretrained(folder)


def _save_tokenizer(known: list[str], folder: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_lines(known),
        model_writer=model,
        model_type="word",
        vocab_size=len(known) + 3,
        character_coverage=1.0,
        num_threads=1,
        minloglevel=2,
    )
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(model.getvalue())
    tokens = [END, "<unk>", *(f"▁{word}" for word in known), "<pad>"]
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "eng", "target_lang": "deu"}
    for name, content in (
        ("vocab.json", {token: index for index, token in enumerate(tokens)}),
        ("tokenizer_config.json", {**settings, "separate_vocabs": False}),
    ):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _lines(known: list[str], length: int = 100) -> Iterator[str]:
    for start in range(0, len(known), length):
        yield " ".join(known[start : start + length])
