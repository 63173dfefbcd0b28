"""Marian's vocabularies: SentencePiece models, or `vocab.yml` with a SentencePiece model for each language."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.language_codes import MARIAN_CODE
from jumok_serve.files import UnusableFileError, read_file
from jumok_serve.tokenizers.piece_vocabulary import PieceVocabularyTokenizer
from jumok_serve.tokenizers.sentencepiece import SentencePieceTokenizer
from jumok_serve.tokenizers.tokenizer import Tokenizer

END, UNKNOWN = "</s>", "<unk>"
MOST_BYTES = 2**28
"""Bytes of a vocabulary."""
_LISTS = (".yml", ".yaml", ".json")
_ENTRY = re.compile(r"(.*):\s*(\d{1,9})\s*,?\s*")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_ESCAPES = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    "_": "\xa0", "N": "\x85", "L": "\u2028", "P": "\u2029",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MarianVocabulary:
    """A model's tokenizer.

    Attributes:
        end: token that ends sources; of targets it has the same id.
        unknown: target token of unknown pieces.
        codes: id of the token of each target language, by language code.
    """

    tokenizer: Tokenizer
    end: int
    target_end: int
    unknown: int | None
    codes: dict[str, int] = field(default_factory=dict)


def read_vocabulary(vocabularies: Sequence[Path], pieces: Sequence[Path], sizes: tuple[int, int]) -> MarianVocabulary:
    """Read the vocabularies of a model.

    Args:
        vocabularies: one of both languages, or one for source and one for target.
        pieces: SentencePiece models that cut texts for vocabularies that are lists.
        sizes: numbers of the model's source and target tokens.

    Raises:
        CheckpointError: missing or unfit files.
    """
    source, target = vocabularies[0], vocabularies[-1]
    try:
        if source.suffix == target.suffix == ".spm":
            tokenizer: Tokenizer = SentencePieceTokenizer(
                read_file(source, MOST_BYTES), None if source == target else read_file(target, MOST_BYTES)
            )
            codes: dict[str, int] = {}
        elif {source.suffix, target.suffix} <= {*_LISTS}:
            tokenizer, codes = _of_lists(source, target, pieces, sizes)
        else:
            names = " and ".join(dict.fromkeys((source.name, target.name)))
            raise CheckpointError([f"{names} must be SentencePiece models (.spm) or lists of tokens (.yml)"])
    except UnusableFileError as error:
        raise CheckpointError([f"the vocabulary {error}"]) from error
    except ValueError as error:
        raise CheckpointError([f"the vocabulary: {error}"]) from error
    found = (tokenizer.source_vocab_size, tokenizer.vocab_size)
    if found != sizes:
        raise CheckpointError(
            [
                f"the vocabularies are not the model's: {source.name} has {found[0]} source tokens and {target.name} "
                f"{found[1]} target tokens, the model has {sizes[0]} and {sizes[1]}"
            ]
        )
    spelled, target_spelled = tokenizer.source_tokens(range(sizes[0])), tokenizer.tokens(range(sizes[1]))
    if END not in spelled or END not in target_spelled:
        raise CheckpointError([f"the vocabulary has no {END!r}, the token that ends a sentence"])
    return MarianVocabulary(
        tokenizer=tokenizer,
        end=spelled.index(END),
        target_end=target_spelled.index(END),
        unknown=target_spelled.index(UNKNOWN) if UNKNOWN in target_spelled else None,
        codes=codes,
    )


def _of_lists(
    source: Path, target: Path, pieces: Sequence[Path], sizes: tuple[int, int]
) -> tuple[Tokenizer, dict[str, int]]:
    if not pieces:
        raise CheckpointError(
            [
                f"{source.name} is a list of tokens, and there is no source.spm and target.spm that cut texts into "
                "them; models with other subwords, such as BPE after Moses' tokenizer, are not supported"
            ]
        )
    ids = read_list(source)
    tokenizer = PieceVocabularyTokenizer(
        pieces[0],
        pieces[-1],
        source_vocabulary=ids,
        target_vocabulary=None if source == target else read_list(target),
        source_vocab_size=sizes[0],
        target_vocab_size=sizes[1],
        unknown=UNKNOWN,
        special_tokens=(END, UNKNOWN),
        leading_codes=True,
    )
    return tokenizer, {match[1]: number for piece, number in ids.items() if (match := MARIAN_CODE.fullmatch(piece))}


def read_list(path: Path) -> dict[str, int]:
    """Read the id of every token from lines such as `"▁the": 5`.

    Line by line, as YAML would take some characters in tokens for line ends.

    Raises:
        UnusableFileError: other content; the message begins with the file's name.
    """
    ids: dict[str, int] = {}
    key: str | None = None
    for number, line in enumerate(read_file(path, MOST_BYTES).decode("utf-8", "replace").split("\n"), start=1):
        stripped = line.strip("\r")
        if not stripped.strip() or stripped in {"{", "}", "---"}:
            continue
        if stripped.startswith("? "):  # a long token stands in a line of its own
            key = stripped[2:]
            continue
        entry = _ENTRY.fullmatch(stripped)
        if entry is None:
            raise UnusableFileError(f"{path.name}, line {number}: not a token and its number: {line[:80]!r}")
        ids[_token(entry[1].strip(" ") if key is None else key)] = int(entry[2])
        key = None
    if len(set(ids.values())) < len(ids):
        raise UnusableFileError(f"{path.name} gives several tokens the same number")
    return ids


def _token(spelled: str) -> str:
    if len(spelled) > 1 and spelled[0] == spelled[-1] == '"':
        return _ESCAPE.sub(_unescape, spelled[1:-1])
    if len(spelled) > 1 and spelled[0] == spelled[-1] == "'":
        return spelled[1:-1].replace("''", "'")
    return spelled


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    if len(escaped) > 1:
        number = int(escaped[1:], 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    return _ESCAPES.get(escaped, escaped)
