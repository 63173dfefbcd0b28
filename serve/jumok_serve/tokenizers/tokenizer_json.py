"""Tokenizer from a ``tokenizer.json``, the file of Hugging Face's `tokenizers`."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers

from jumok_serve.manifest.tokenizers import TokenizerJsonDescription
from jumok_serve.native import ForeignCode
from jumok_serve.tokenizers.sentencepiece import checked_ids, clean_up_spaces, stable_text
from jumok_serve.tokenizers.tokenizer import Tokenizer

_TOKENIZERS = ForeignCode("tokenizers")

MAX_LOCKED = 1024
"""Most characters that are encoded with Python's lock held, for 1 ms. The library frees it for batches alone."""

UNTYPABLE = "\x00"
"""First character of special tokens inside the library; texts that contain it are refused."""


_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A token of one byte, for decoders with byte fallback."""


class TokenizerJson(Tokenizer):
    """The tokenizer of a ``tokenizer.json``, for both languages; safe in any number of threads.

    Encoding and decoding raise ForeignCodeError if the library fails.
    It encodes and decodes as the library does with `add_special_tokens=False` and `skip_special_tokens=True`:

    - Special tokens, the unknown token, and ids of the model that the tokenizer lacks decode to nothing.
    - Text that spells a special token is only text.
    - Truncation and padding in the file are ignored.

    Args:
        file: path or content of the file.
        source_vocab_size: number of the model's source ids; default: the tokenizer's.
        target_vocab_size: number of the model's target ids; default: the tokenizer's.
        input_tokens: special tokens that texts may spell.

    Raises:
        ValueError: the library cannot read the file, or texts could become ids over the model's size.
    """

    def __init__(
        self,
        file: Path | bytes,
        *,
        source_vocab_size: int | None = None,
        target_vocab_size: int | None = None,
        input_tokens: Sequence[str] = (),
        clean_up_spaces: bool = False,
    ) -> None:
        name = file.name if isinstance(file, Path) else "the tokenizer.json"
        self._file = file
        try:
            fields = json.loads(self._content())
            self._special = {token["id"]: token["content"] for token in fields["added_tokens"] if token["special"]}
            _make_untypable(fields, set(self._special.values()), set(input_tokens))
            with _TOKENIZERS:
                self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(fields))
                vocabulary = self._tokenizer.get_vocab()
            self.source_unknown = self.target_unknown = _unknown(fields["model"], vocabulary)
        except Exception as exc:  # a file may lack or hold anything
            raise ValueError(
                f"{name} is not a tokenizer.json that tokenizers {tokenizers.__version__} reads: {exc}"
            ) from exc
        self._only_appends = _only_appends(fields.get("decoder"))
        self._tokenizer.encode_special_tokens = True
        size = 1 + max(vocabulary.values(), default=0)
        self.source_vocab_size = source_vocab_size or size
        self.vocab_size = target_vocab_size or size
        smallest = min(self.source_vocab_size, self.vocab_size)
        largest = max((number for number in vocabulary.values() if number not in self._special), default=0)
        if largest >= smallest:
            raise ValueError(f"{name} has ids up to {largest}, but the model's ids end at {smallest - 1}")
        self._input_tokens = tuple(input_tokens)
        self._clean_up_spaces = clean_up_spaces

    def _content(self) -> bytes:
        return self._file.read_bytes() if isinstance(self._file, Path) else self._file

    @classmethod
    def load(cls, description: TokenizerJsonDescription, folder: Path) -> Self:
        """Load the described tokenizer from its file in ``folder``.

        Raises:
            ValueError: the file does not load.
        """
        return cls(folder / description.file, **description.settings)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``; none for an empty text."""
        with _TOKENIZERS:
            return self._encoding(text).ids

    def _encoding(self, text: str) -> tokenizers.Encoding:
        if len(text) <= MAX_LOCKED:
            return self._tokenizer.encode(text, add_special_tokens=False)
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return encoding

    def pieces(self, text: str) -> list[str]:
        """Return the tokens of ``text``, unknown ones as in it."""
        with _TOKENIZERS:
            encoding = self._encoding(text)
            ids, spelled, offsets = encoding.ids, encoding.tokens, encoding.offsets
            unknown = None if self.source_unknown is None else self._tokenizer.id_to_token(self.source_unknown)
        pieces = self._spelled(ids)
        for place, (token, (start, end)) in enumerate(zip(ids, offsets, strict=True)):
            if token == self.source_unknown:
                # A Unigram model spells it, with its mark of a word; others have its place.
                written = text[start:end].strip() or text[start:end]
                pieces[place] = written if spelled[place] == unknown else spelled[place]
        return pieces

    def encode_target(self, text: str) -> list[int]:
        """Return the token ids of ``text``; sources and targets share them."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of target token ids."""
        text = self._decoded(checked_ids(ids, self.vocab_size))
        return clean_up_spaces(text) if self._clean_up_spaces else text

    def decode_stable(self, ids: Sequence[int]) -> str:
        """Return the part of ``decode(ids)`` that further ids cannot change; empty if unknown."""
        if not self._only_appends:
            return ""
        known = checked_ids(ids, self.vocab_size)
        # A run of byte tokens is decoded as a whole: a further byte can change the text of all.
        while known and (known[-1] in self._special or _BYTE.fullmatch(self._token(known[-1]))):
            known.pop()
        return stable_text(self._decoded(known), clean_up=self._clean_up_spaces)

    def _decoded(self, ids: list[int]) -> str:
        with _TOKENIZERS:
            text: str = self._tokenizer.decode([token for token in ids if token not in self._special])
        return text

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of target token ids, "" for none."""
        return self._spelled(checked_ids(ids, self.vocab_size))

    def source_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of source token ids, "" for none."""
        return self._spelled(checked_ids(ids, self.source_vocab_size))

    def _spelled(self, ids: list[int]) -> list[str]:
        return [self._special.get(token) or self._token(token) for token in ids]

    def _token(self, token: int) -> str:
        with _TOKENIZERS:
            return self._tokenizer.id_to_token(token) or ""

    def save(self, folder: Path) -> TokenizerJsonDescription:
        """Write ``tokenizer.json`` into ``folder``."""
        (folder / "tokenizer.json").write_bytes(self._content())
        return TokenizerJsonDescription(
            file="tokenizer.json",
            source_vocab_size=self.source_vocab_size,
            target_vocab_size=self.vocab_size,
            input_tokens=self._input_tokens,
            clean_up_spaces=self._clean_up_spaces,
        )


def _unknown(model: Mapping[str, Any], vocabulary: Mapping[str, int]) -> int | None:
    """Id of a model's unknown token: by place in a Unigram model, else by spelling."""
    by_place, spelled = model.get("unk_id"), model.get("unk_token")
    return vocabulary.get(spelled) if by_place is None and isinstance(spelled, str) else by_place


def _make_untypable(fields: dict[str, Any], special: set[str], typable: set[str]) -> None:
    """Respell special tokens so that text cannot become one; drop post-processor, truncation and padding.

    Typable tokens become added words, at which the library cuts texts.

    To split no added tokens off is not enough: a Unigram model finds ``</s>`` in its vocabulary. A BPE model
    needs no respelling: it makes only tokens of its merges.
    """
    fields |= {"post_processor": None, "truncation": None, "padding": None}
    for added in fields["added_tokens"]:
        added["special"] = added["special"] and added["content"] not in typable
    special = special - typable
    model = fields["model"]
    if "merges" in model:
        return

    def respelled(token: str) -> str:
        return UNTYPABLE + token if token in special else token

    for added in fields["added_tokens"]:
        added["content"] = respelled(added["content"])
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {respelled(token): number for token, number in vocabulary.items()}
    else:
        model["vocab"] = [[respelled(token), score] for token, score in vocabulary]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = respelled(model["unk_token"])


def _only_appends(decoder: Any) -> bool:
    """True if further tokens change only the end of a decoder's text.

    Decoders of single tokens and of bytes do. A Replace does only for a single character, a Strip only without the end.
    """
    match decoder:
        case None | {"type": "BPEDecoder" | "ByteFallback" | "ByteLevel" | "Fuse" | "Metaspace" | "WordPiece"}:
            return True
        case {"type": "Replace", "pattern": {"String": str(one)}}:
            return len(one) == 1
        case {"type": "Strip", "stop": int(stop)}:
            return stop == 0
        case {"type": "Sequence", "decoders": [*decoders]}:
            return all(map(_only_appends, decoders))
    return False
