"""Tokenizers, and loading from a bundle."""

from pathlib import Path

from jumok_serve.manifest.tokenizers import (
    MosesBPEDescription,
    PieceVocabularyDescription,
    SentencePieceDescription,
    TokenizerDescription,
    TokenizerJsonDescription,
    WordListDescription,
)
from jumok_serve.tokenizers.moses_bpe import MosesBPETokenizer
from jumok_serve.tokenizers.piece_vocabulary import PieceVocabularyTokenizer
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from jumok_serve.tokenizers.tokenizer import Tokenizer
from jumok_serve.tokenizers.tokenizer_json import TokenizerJson
from jumok_serve.tokenizers.word_list import WordListTokenizer


def load_tokenizer(description: TokenizerDescription, folder: Path) -> Tokenizer:
    """Load the tokenizer of the bundle in ``folder``.

    Raises:
        ValueError: it does not load, or differs from its description.
    """
    match description:
        case PieceVocabularyDescription():
            return PieceVocabularyTokenizer.load(description, folder)
        case TokenizerJsonDescription():
            return TokenizerJson.load(description, folder)
        case SentencePieceDescription():
            return SentencePieceTokenizer.load(description, folder)
        case WordListDescription():
            return WordListTokenizer.load(description, folder)
        case MosesBPEDescription():
            return MosesBPETokenizer.load(description, folder)
