"""An NLLB checkpoint with random weights, written in parts.

It never is in memory as a whole.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

from benchmarks.common.random_marian import SYLLABLES

PART_BYTES = 500 * 10**6
"""Most bytes of a weights file, unless one tensor has more."""
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_NLLB: Any = M2M100ForConditionalGeneration  # untyped


@dataclass(frozen=True, kw_only=True)
class NllbSizes:
    """Sizes of a checkpoint; defaults as NLLB-200-distilled-600M.

    Attributes:
        vocabulary: vocabulary size, language codes included.
        layers: layers of the encoder, and of the decoder.
        width: d_model.
        feed_forward: width of the hidden layers.
        heads: attention heads.
        languages: number of languages.
        half: True to store fp16.
    """

    vocabulary: int = 256_206
    layers: int = 12
    width: int = 1024
    feed_forward: int = 4096
    heads: int = 16
    languages: int = 202
    half: bool = False


def make_checkpoint(sizes: NllbSizes, folder: Path) -> None:
    """Save a checkpoint in a new folder, always the same."""
    folder.mkdir(parents=True)
    _save_tokenizer(sizes, folder)
    config = M2M100Config(
        vocab_size=sizes.vocabulary,
        d_model=sizes.width,
        encoder_layers=sizes.layers,
        decoder_layers=sizes.layers,
        encoder_ffn_dim=sizes.feed_forward,
        decoder_ffn_dim=sizes.feed_forward,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        architectures=["M2M100ForConditionalGeneration"],
    )
    config.save_pretrained(folder)
    generation = {"num_beams": 4, "max_length": 200, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    _write(folder / "generation_config.json", {**generation, "decoder_start_token_id": 2})
    found: dict[str, str] = {}
    for number, part in enumerate(_parts(config, half=sizes.half)):
        name = f"model-{number:05}.safetensors"
        save_file(part, folder / name)
        found |= dict.fromkeys(part, name)
    _write(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": found})


def _parts(config: M2M100Config, *, half: bool) -> Iterator[dict[str, Tensor]]:
    with torch.device("meta"):
        model = _NLLB(config)
    random = torch.Generator().manual_seed(0)
    part: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():  # a tied one has its first name
        if "norm" in name:
            values = torch.full(parameter.shape, float(name.endswith("weight")))
        else:
            values = torch.empty(parameter.shape).normal_(std=config.init_std, generator=random)
        part[name] = values.half() if half else values
        if sum(tensor.nbytes for tensor in part.values()) >= PART_BYTES:
            yield part
            part = {}
    yield part


def _save_tokenizer(sizes: NllbSizes, folder: Path) -> None:
    """Save byte pairs that merge letters to words of three syllables."""
    codes = [f"{first}{second}{third}_Latn" for first, second, third in itertools.product("abcdefgh", repeat=3)]
    letters = sorted({letter for syllable in SYLLABLES for letter in syllable})
    pairs = itertools.chain(
        (tuple(syllable) for syllable in SYLLABLES),
        itertools.product(SYLLABLES, SYLLABLES),
        ((one + two, three) for one, two, three in itertools.product(SYLLABLES, repeat=3)),
    )
    start = [*SPECIAL, "▁", *letters]
    merges = list(itertools.islice(pairs, sizes.vocabulary - len(start) - sizes.languages - 1))  # the last is <mask>
    vocabulary = {token: number for number, token in enumerate([*start, *(left + right for left, right in merges)])}
    make: Any = NllbTokenizer  # its annotations forget the pairs of merges
    tokenizer = make(
        vocabulary, merges, additional_special_tokens=codes[: sizes.languages], src_lang=codes[0], tgt_lang=codes[1]
    )
    tokenizer.save_pretrained(folder)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
