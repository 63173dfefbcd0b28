"""Import of a checkpoint's tokenizer, and of the languages that its tokens name."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.language_codes import M2M100_LANGUAGES, MARIAN_CODE, roles_and_code_pattern
from jumok_export.importers.huggingface.languages import (
    Directions,
    every_language,
    one_source,
    prefixed,
    task_pairs,
    tasks,
)
from jumok_export.importers.huggingface.tokenizer_files import TokenizerFiles, load_backend
from jumok_serve.manifest.languages import Languages, SourceLanguage
from jumok_serve.tokenizers.piece_vocabulary import PieceVocabularyTokenizer, read_vocabulary
from jumok_serve.tokenizers.tokenizer import Tokenizer
from jumok_serve.tokenizers.tokenizer_json import TokenizerJson


@dataclass(frozen=True)
class ImportedTokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        languages: languages and their special tokens, for the manifest.
    """

    tokenizer: Tokenizer
    languages: Languages


def read_tokenizer(
    folder: Path,
    config: Mapping[str, Any],
    *,
    source_language: str | None,
    target_language: str | None,
    source_vocabulary: int,
    target_vocabulary: int,
) -> ImportedTokenizer:
    """Read the tokenizer of a checkpoint; code of the checkpoint is never run.

    Token ids and positions of language tokens are those of transformers' `AutoTokenizer` for the folder.

    Args:
        source_language: default source language, or name of the only one.
        target_language: default target language, or name of the only one.
        source_vocabulary: number of the model's source ids, which may exceed the tokenizer's.
        target_vocabulary: number of the model's target ids.

    Raises:
        CheckpointError: a missing or invalid tokenizer, or an unknown language.
    """
    requested = Directions(source=source_language, target=target_language)
    files = TokenizerFiles(folder, config)
    sizes = (source_vocabulary, target_vocabulary)
    try:
        if files.class_name == "MarianTokenizer":
            return _marian(files, requested, sizes)
        if files.class_name == "M2M100Tokenizer":
            return _m2m100(files, requested, sizes)
        return _tokenizer_json(files, config, requested, sizes)
    except ValueError as error:
        raise CheckpointError([f"the tokenizer: {error}"]) from error


def _marian(files: TokenizerFiles, requested: Directions, sizes: tuple[int, int]) -> ImportedTokenizer:
    separate = bool(files.settings.get("separate_vocabs", False))
    files.require(["source.spm", "target.spm", "vocab.json", *(["target_vocab.json"] if separate else [])])
    vocabulary = read_vocabulary(files.folder / "vocab.json")
    codes = {match[1]: token for piece, token in vocabulary.items() if (match := MARIAN_CODE.fullmatch(piece))}
    _check_pieces(files, {f">>{code}<<" for code in codes})
    eos = _end(files, vocabulary)
    tokenizer = PieceVocabularyTokenizer(
        files.folder / "source.spm",
        files.folder / "target.spm",
        source_vocabulary=vocabulary,
        target_vocabulary=read_vocabulary(files.folder / "target_vocab.json") if separate else None,
        source_vocab_size=sizes[0],
        target_vocab_size=sizes[1],
        unknown=files.token("unk_token", "<unk>"),
        special_tokens=files.special_tokens({"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}),
        leading_codes=True,
        clean_up_spaces=bool(files.settings.get("clean_up_tokenization_spaces", False)),
    )
    source = SourceLanguage(suffix=(eos,))
    return ImportedTokenizer(tokenizer, one_source(source, codes, requested=requested, configured=_configured(files)))


def _m2m100(files: TokenizerFiles, requested: Directions, sizes: tuple[int, int]) -> ImportedTokenizer:
    files.require(["sentencepiece.bpe.model", "vocab.json"])
    vocabulary = read_vocabulary(files.folder / "vocab.json")
    named = files.settings.get("language_codes") or "m2m100"
    if named not in M2M100_LANGUAGES:
        raise CheckpointError([f"language_codes is {named!r}; known are {', '.join(M2M100_LANGUAGES)}"])
    numbered = {code: len(vocabulary) + index for index, code in enumerate(M2M100_LANGUAGES[named].split())}
    languages = {code: token for code, token in numbered.items() if token < min(sizes)}
    spelled = {f"__{code}__": token for code, token in languages.items()}
    _check_pieces(files, spelled.keys())
    eos = _end(files, vocabulary)
    roles = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    special = files.special_tokens({f"{role}_token": token for role, token in roles.items()})
    tokenizer = PieceVocabularyTokenizer(
        files.folder / "sentencepiece.bpe.model",
        source_vocabulary=vocabulary | spelled,
        source_vocab_size=sizes[0],
        target_vocab_size=sizes[1],
        unknown=files.token("unk_token", "<unk>"),
        special_tokens=tuple(dict.fromkeys([*special, *spelled])),
        clean_up_spaces=bool(files.settings.get("clean_up_tokenization_spaces", False)),
    )
    return ImportedTokenizer(
        tokenizer, every_language(languages, prefixed(eos), requested=requested, configured=_configured(files))
    )


def _end(files: TokenizerFiles, ids: Mapping[str, int]) -> int:
    eos = files.token("eos_token", "</s>")
    if eos not in ids:
        raise CheckpointError([f"the tokenizer has no {eos!r}, the token that ends a sentence"])
    return ids[eos]


def _check_pieces(files: TokenizerFiles, languages: Set[str]) -> None:
    """Refuse settings with which transformers would segment texts differently."""
    problems = [
        f"tokenizer_config.json: the added token {token!r} is not special; texts that spell it cannot be cut there"
        for token in files.added_text_tokens()
        if token not in languages
    ]
    if files.settings.get("sp_model_kwargs"):
        problems.append(
            f"tokenizer_config.json: sp_model_kwargs must be empty, got {files.settings['sp_model_kwargs']}"
        )
    if problems:
        raise CheckpointError(problems)


def _tokenizer_json(
    files: TokenizerFiles, config: Mapping[str, Any], requested: Directions, sizes: tuple[int, int]
) -> ImportedTokenizer:
    backend = load_backend(files)
    tokenizer = TokenizerJson(
        backend.content,
        source_vocab_size=sizes[0],
        target_vocab_size=sizes[1],
        clean_up_spaces=backend.clean_up_spaces,
    )
    library = tokenizers.Tokenizer.from_str(backend.content.decode("utf-8"))
    added = library.get_added_tokens_decoder().items()
    special = {token.content: number for number, token in added if token.special and number < min(sizes)}
    by_class = roles_and_code_pattern(files, config, special.keys())
    if by_class is None:
        source = _added_tokens(library)
        pairs = task_pairs(config)
        if pairs:
            return ImportedTokenizer(tokenizer, tasks(source, pairs, requested=requested))
        return ImportedTokenizer(tokenizer, one_source(source, {}, requested=requested, configured=_configured(files)))
    roles, pattern = by_class
    eos = _end(files, special)
    languages = {token: number for token, number in special.items() if pattern.fullmatch(token)}
    return ImportedTokenizer(
        tokenizer, every_language(languages, roles(eos), requested=requested, configured=_configured(files))
    )


def _added_tokens(library: tokenizers.Tokenizer) -> SourceLanguage:
    """Find the tokens that the tokenizer's post-processor puts around a text."""
    library.no_truncation()
    library.no_padding()
    text = "a"
    bare = library.encode(text, add_special_tokens=False).ids
    whole = library.encode(text).ids
    start = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    return SourceLanguage(prefix=tuple(whole[:start]), suffix=tuple(whole[start + len(bare) :]))


def _configured(files: TokenizerFiles) -> Directions:
    settings = files.settings
    return Directions(
        source=settings.get("src_lang") or settings.get("source_lang"),
        target=settings.get("tgt_lang") or settings.get("target_lang"),
    )
