"""Real tokenizers of each family, trained on a few hundred sentences and saved in the family's own files.

SentencePiece trains those that are lists of pieces, ``tokenizers`` those that are byte-pair merges.
"""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    BartTokenizer,
    M2M100Tokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
    PegasusTokenizer,
    T5Tokenizer,
)
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES

Pieces = list[tuple[str, float]]
"""Spelling and score of each piece."""

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
"""The first ids of all families that come from fairseq."""


def sentencepiece_model(sentences: Sequence[str], *, size: int) -> bytes:
    """A model of ``size`` pieces, the first three ``<unk>``, ``<s>`` and ``</s>``."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=size,
        model_type="bpe",  # so few different words have too few parts in common for a unigram model to be grown
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def pieces(model: bytes) -> Pieces:
    """A model's pieces without its special ones."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [(processor.IdToPiece(index), processor.GetScore(index)) for index in range(3, processor.GetPieceSize())]


def unigram(sentences: Sequence[str], *, size: int) -> Pieces:
    """Pieces for a unigram model: the longer and the more frequent, the better their score."""
    return pieces(sentencepiece_model(sentences, size=size))


def byte_pairs(
    sentences: Sequence[str], *, size: int, split: pre_tokenizers.PreTokenizer
) -> tuple[dict[str, int], list[Any]]:
    """A byte-pair model behind the fairseq families' special tokens: ids by token, and the merges in order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.train_from_iterator(sentences, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *tokens])}
    return vocabulary, [(left, right) for left, right in model["merges"]]


def save_marian(
    folder: Path, source: Sequence[str], target: Sequence[str], *, separate: bool, codes: Sequence[str] = ()
) -> None:
    """``source.spm``, ``target.spm`` and ``vocab.json``, of both sides or with ``target_vocab.json`` of one each.

    A shared vocabulary ends with the language codes such as ``>>deu<<`` and with padding, as the published ones; where
    the sides have their own, of different sizes, the tokens that both need come first.
    """
    sides = [sentencepiece_model(source, size=70), sentencepiece_model(target, size=120)]
    if separate:
        vocabularies = [["</s>", "<unk>", "<pad>", *(piece for piece, _ in pieces(side))] for side in sides]
    else:
        shared = dict.fromkeys(piece for side in sides for piece, _ in pieces(side))
        vocabularies = [["</s>", "<unk>", *shared, *codes, "<pad>"]]
    for name, side in zip(("source.spm", "target.spm"), sides, strict=True):
        (folder / name).write_bytes(side)
    for name, tokens in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=False):
        _write_json(folder / name, {token: index for index, token in enumerate(tokens)})
    configuration = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": separate,
        "source_lang": "eng",
        "target_lang": "mul" if codes else "deu",
    }
    _write_json(folder / "tokenizer_config.json", configuration)


def save_m2m100(folder: Path, sentences: Sequence[str]) -> None:
    """``sentencepiece.bpe.model`` and ``vocab.json``; the 100 languages follow its tokens."""
    model = sentencepiece_model(sentences, size=170)
    tokens = [*SPECIAL, *(piece for piece, _ in pieces(model))]
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    _write_json(folder / "vocab.json", {token: index for index, token in enumerate(tokens)})
    M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model")).save_pretrained(folder)


def save_nllb(folder: Path, sentences: Sequence[str]) -> None:
    """``tokenizer.json`` with three languages."""
    vocabulary, merges = byte_pairs(sentences, size=180, split=pre_tokenizers.Metaspace())
    languages = ["deu_Latn", "eng_Latn", "fra_Latn"]
    NllbTokenizer(vocabulary, merges, additional_special_tokens=languages).save_pretrained(folder)


def save_bart(folder: Path, sentences: Sequence[str]) -> None:
    """``tokenizer.json`` of bytes."""
    vocabulary, merges = byte_pairs(sentences, size=180, split=pre_tokenizers.ByteLevel(add_prefix_space=False))
    BartTokenizer(vocabulary, merges).save_pretrained(folder)


def save_mbart(folder: Path, sentences: Sequence[str]) -> None:
    """``tokenizer.json`` with the 25 languages of the first mBART."""
    special, more = ([(token, 0.0) for token in tokens] for tokens in (SPECIAL, (*FAIRSEQ_LANGUAGE_CODES, "<mask>")))
    MBartTokenizer([*special, *unigram(sentences, size=170), *more]).save_pretrained(folder)


def save_mbart50(folder: Path, sentences: Sequence[str]) -> None:
    """``tokenizer.json`` with the 52 languages of mBART-50."""
    special = [(token, 0.0) for token in ("<unk>", "<s>", "</s>")]
    MBart50Tokenizer([*special, *unigram(sentences, size=170)]).save_pretrained(folder)


def save_pegasus(folder: Path, sentences: Sequence[str]) -> None:
    """``tokenizer.json`` without the tokens that only pretraining uses."""
    special = [(token, 0.0) for token in ("<pad>", "</s>", "<unk>", "<mask_1>", "<mask_2>")]
    PegasusTokenizer([*special, *unigram(sentences, size=170)], offset=2).save_pretrained(folder)


def save_t5(folder: Path, sentences: Sequence[str], *, sentinels: int) -> None:
    """``tokenizer.json`` with a number of ``<extra_id_...>``."""
    special = [(token, 0.0) for token in ("<pad>", "</s>", "<unk>")]
    T5Tokenizer([*special, *unigram(sentences, size=150)], extra_ids=sentinels).save_pretrained(folder)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
