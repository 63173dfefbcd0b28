"""Small checkpoints of each family in Hugging Face's layout, trained for seconds so that their translations end.

Random weights repeat one token until the limit, and a search over them decides nothing. These models half learn to
translate made-up sentences: what they say ends at varied lengths, and several continuations are worth weighing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, PreTrainedConfig

from tests.parity.texts import Parallel, parallel_sentences

SENTENCES = 600
"""To learn from; tokenizers learn from the same."""

# Their constructors are untyped.
MODEL: Any = AutoModelForSeq2SeqLM
GENERATION: Any = GenerationConfig


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A direction of translation: what it takes to have it from ``generate``.

    Attributes:
        source: the checkpoint's code of the language.
        target: target sentences.
        task_prefix: stands before every source text.
        start: the decoder's start token, by its spelling, where it depends on the language.
        first: the forced first token.
    """

    source: str
    target: str
    task_prefix: str = ""
    start: str | None = None
    first: str | None = None

    @property
    def french(self) -> bool:
        """True if the target is French, not German."""
        return "fr" in self.target.lower()


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Recipe of one checkpoint.

    Attributes:
        family: the name that results are counted by.
        name: the folder's.
        pairs: the directions, which sentences take in turns.
        configuration: the model's settings, without those that the tokenizer decides.
        tokenize: trains a tokenizer and saves it.
        special: spelling of the tokens that the configuration names, by the configuration's key.
        generation: what ``generation_config.json`` says; given the ids of tokens by their spelling.
        multiple_of: the width of the logits is the next multiple, so that some of them are no token's.
        uncached: whether ``generate`` must do without its cache, which for T5 has as many layers as the encoder.
        named_languages: whether importing takes the names of the two languages, as the checkpoint has none.
        steps: of training.
    """

    family: str
    name: str
    pairs: tuple[Pair, ...]
    configuration: Callable[[], PreTrainedConfig]
    tokenize: Callable[[Path, Sequence[Parallel]], None]
    special: Mapping[str, str]
    generation: Callable[[Callable[[str], int]], Mapping[str, Any]] = lambda _: {}
    multiple_of: int = 1
    uncached: bool = False
    named_languages: bool = False
    steps: int = 250


class Vocabulary:
    """A tokenizer, as its users would call it.

    Args:
        folder: its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def token(self, spelling: str) -> int:
        """The id of a token that the vocabulary has.

        Raises:
            ValueError: it has not.
        """
        if spelling in getattr(self.tokenizer, "lang_code_to_token", {}):
            return int(self.tokenizer.get_lang_id(spelling))
        index = int(self.tokenizer.convert_tokens_to_ids(spelling))
        if index == self.tokenizer.unk_token_id and spelling != self.tokenizer.unk_token:
            raise ValueError(f"the vocabulary has no token {spelling!r}")
        return index

    def source_ids(self, text: str, pair: Pair) -> list[int]:
        """A source text as the encoder reads it, special tokens included."""
        if hasattr(self.tokenizer, "src_lang"):
            self.tokenizer.src_lang = pair.source
        return list(self.tokenizer(pair.task_prefix + text)["input_ids"])

    def target_ids(self, text: str) -> list[int]:
        """A target text, or its beginning, without special tokens."""
        if hasattr(self.tokenizer, "tgt_lang"):
            self.tokenizer.tgt_lang = self.tokenizer.src_lang
        return list(self.tokenizer(text_target=text, add_special_tokens=False)["input_ids"])

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, without special ones and languages, which M2M100's tokenizer spells out."""
        languages = getattr(self.tokenizer, "id_to_lang_token", {})
        kept = [token for token in token_ids if token not in languages]
        return str(self.tokenizer.decode(kept, skip_special_tokens=True))


class Checkpoint(Vocabulary):
    """A saved checkpoint, loaded as its users would: a model in float32 and its tokenizer.

    Args:
        folder: where ``make_checkpoint`` has saved it.
        shape: what it was made from.
    """

    def __init__(self, folder: Path, shape: Shape) -> None:
        super().__init__(folder)
        self.folder = folder
        self.shape = shape
        self.model = MODEL.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end a translation by default."""
        eos = self.model.generation_config.eos_token_id
        return tuple(eos) if isinstance(eos, list) else (eos,)


def make_checkpoint(shape: Shape, folder: Path) -> Checkpoint:
    """Trains a checkpoint and saves it in a new folder; the same every time on one machine."""
    folder.mkdir(parents=True)
    sentences = parallel_sentences(SENTENCES, seed=0)
    shape.tokenize(folder, sentences)
    vocabulary = Vocabulary(folder)
    tokenizer = vocabulary.tokenizer
    configuration = shape.configuration()
    for key, spelling in shape.special.items():
        setattr(configuration, key, vocabulary.token(spelling))
    configuration.vocab_size = shape.multiple_of * math.ceil(_tokens(tokenizer) / shape.multiple_of)
    if getattr(tokenizer, "separate_vocabs", False):
        configuration.decoder_vocab_size = len(tokenizer.target_encoder)
    elif hasattr(configuration, "decoder_vocab_size"):
        configuration.decoder_vocab_size = configuration.vocab_size
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODEL.from_config(configuration, attn_implementation="eager")
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                nn.init.normal_(buffer, std=0.3)
        examples = [
            _example(vocabulary, configuration, shape.pairs[index % len(shape.pairs)], sentence)
            for index, sentence in enumerate(sentences)
        ]
        _train(model, examples, pad=configuration.pad_token_id, steps=shape.steps)
    model.generation_config = GENERATION(
        **{
            "pad_token_id": configuration.pad_token_id,
            "eos_token_id": configuration.eos_token_id,
            "decoder_start_token_id": configuration.decoder_start_token_id,
            "max_length": 40,
            **shape.generation(vocabulary.token),
        }
    )
    model.save_pretrained(folder)
    return Checkpoint(folder, shape)


def _tokens(tokenizer: Any) -> int:
    """Count the source ids of a tokenizer; M2M100's omits its languages."""
    if hasattr(tokenizer, "num_madeup_words"):
        return int(tokenizer.encoder_size + len(tokenizer.lang_code_to_id) + tokenizer.num_madeup_words)
    return max(len(tokenizer), len(tokenizer.get_vocab()))


def _example(vocabulary: Vocabulary, configuration: Any, pair: Pair, sentence: Parallel) -> tuple[Tensor, Tensor]:
    """A source as the encoder reads it, and a target from its start token to EOS."""
    start = configuration.decoder_start_token_id if pair.start is None else vocabulary.token(pair.start)
    first = [] if pair.first is None else [vocabulary.token(pair.first)]
    text = sentence.french if pair.french else sentence.german
    target = [start, *first, *vocabulary.target_ids(text), configuration.eos_token_id]
    return torch.tensor(vocabulary.source_ids(sentence.english, pair)), torch.tensor(target)


def _train(model: nn.Module, examples: Sequence[tuple[Tensor, Tensor]], *, pad: int, steps: int) -> None:
    padded = [
        module for module in model.modules() if isinstance(module, nn.Embedding) and module.padding_idx is not None
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = [examples[index] for index in torch.randint(len(examples), (32,), generator=generator).tolist()]
        sources = pad_sequence([source for source, _ in chosen], batch_first=True, padding_value=pad)
        lengths = torch.tensor([len(source) for source, _ in chosen])
        targets = pad_sequence([target for _, target in chosen], batch_first=True, padding_value=-1)
        logits = model(
            input_ids=sources,
            attention_mask=(torch.arange(sources.shape[1]) < lengths[:, None]).long(),
            decoder_input_ids=targets[:, :-1].clamp(min=0),
            use_cache=False,
        ).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-1, label_smoothing=0.1)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        for embedding in padded:  # a tied output layer would move it: published checkpoints have zeros for padding
            nn.init.zeros_(embedding.weight[embedding.padding_idx])
    model.eval()
