"""Import of a checkpoint's tokenizer, and of the languages that its tokens name."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.language_codes import M2M100_LANGUAGES, MARIAN_CODE, language_tokens
from jumok_export.importers.huggingface.language_roles import (
    UNDETERMINED,
    Directions,
    every_language,
    one_source,
    prefixed,
    same_tags,
    task_pairs,
    tasks,
    with_forced_target,
)
from jumok_export.importers.huggingface.settings import shown
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
        notes: decisions that the checkpoint leaves open.
    """

    tokenizer: Tokenizer
    languages: Languages
    notes: tuple[str, ...] = ()


def read_tokenizer(
    folder: Path,
    config: Mapping[str, Any],
    *,
    source_language: str | None,
    target_language: str | None,
    source_vocabulary: int,
    target_vocabulary: int,
    forced_first: object = None,
) -> ImportedTokenizer:
    """Read the tokenizer of a checkpoint; code of the checkpoint is never run.

    Token ids and positions of language tokens are those of transformers' `AutoTokenizer` for the folder.

    Args:
        source_language: default source language, or name of the only one.
        target_language: default target language, or name of the only one.
        source_vocabulary: number of the model's source ids, which may exceed the tokenizer's.
        target_vocabulary: number of the model's target ids.
        forced_first: first token of translations by default; the token of a language names the default target.

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
            return _m2m100(files, requested, sizes, forced_first)
        return _tokenizer_json(files, config, requested, sizes, forced_first)
    except ValueError as error:
        raise CheckpointError([f"the tokenizer: {error}"]) from error


def _marian(files: TokenizerFiles, requested: Directions, sizes: tuple[int, int]) -> ImportedTokenizer:
    separate = bool(files.settings.get("separate_vocabs", False))
    files.require(["source.spm", "target.spm", "vocab.json", *(["target_vocab.json"] if separate else [])])
    vocabulary = read_vocabulary(files.folder / "vocab.json")
    codes = {match[1]: token for piece, token in vocabulary.items() if (match := MARIAN_CODE.fullmatch(piece))}
    roles = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
    spelled_codes = {f">>{code}<<" for code in codes}
    inputs = _check_pieces(files, vocabulary, sizes, languages=spelled_codes, control={*roles.values()})
    eos = _end(files, vocabulary)
    tokenizer = PieceVocabularyTokenizer(
        files.folder / "source.spm",
        files.folder / "target.spm",
        source_vocabulary=vocabulary | inputs,
        target_vocabulary=read_vocabulary(files.folder / "target_vocab.json") if separate else None,
        source_vocab_size=sizes[0],
        target_vocab_size=sizes[1],
        unknown=files.token("unk_token", "<unk>"),
        special_tokens=files.special_tokens(roles),
        input_tokens=tuple(inputs),
        leading_codes=True,
        clean_up_spaces=bool(files.settings.get("clean_up_tokenization_spaces", False)),
    )
    source, configured = SourceLanguage(suffix=(eos,)), _configured(files)
    if len(codes) > 1:
        notes = same_tags(codes)
        languages = one_source(source, codes, requested=requested, configured=configured)
    else:
        # `generate` puts a code before a text only if the text spells it; with several codes, a text must have one.
        notes = tuple(
            f"the only language code, {code}, is not put before texts, as in generate" for code in spelled_codes
        )
        configured = replace(configured, target=configured.target or next(iter(codes), None))
        languages = one_source(source, {}, requested=requested, configured=configured)
    return ImportedTokenizer(tokenizer, languages, notes)


def _m2m100(
    files: TokenizerFiles, requested: Directions, sizes: tuple[int, int], forced_first: object
) -> ImportedTokenizer:
    files.require(["sentencepiece.bpe.model", "vocab.json"])
    vocabulary = read_vocabulary(files.folder / "vocab.json")
    named = files.settings.get("language_codes") or "m2m100"
    if named not in M2M100_LANGUAGES:
        raise CheckpointError([f"language_codes is {named!r}; known are {', '.join(M2M100_LANGUAGES)}"])
    numbered = {code: len(vocabulary) + index for index, code in enumerate(M2M100_LANGUAGES[named].split())}
    languages = {code: token for code, token in numbered.items() if token < min(sizes)}
    spelled = {f"__{code}__": token for code, token in languages.items()}
    roles = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    codes = {f"__{code}__" for code in numbered}
    inputs = _check_pieces(files, vocabulary, sizes, languages=codes, control={*roles.values()})
    eos = _end(files, vocabulary)
    special = files.special_tokens({f"{role}_token": token for role, token in roles.items()})
    tokenizer = PieceVocabularyTokenizer(
        files.folder / "sentencepiece.bpe.model",
        source_vocabulary=vocabulary | spelled | inputs,
        source_vocab_size=sizes[0],
        target_vocab_size=sizes[1],
        unknown=files.token("unk_token", "<unk>"),
        special_tokens=tuple(dict.fromkeys([*special, *spelled])),
        input_tokens=tuple(inputs),
        clean_up_spaces=bool(files.settings.get("clean_up_tokenization_spaces", False)),
    )
    configured = with_forced_target(_configured(files), languages, forced_first)
    return ImportedTokenizer(
        tokenizer, every_language(languages, prefixed(eos), requested=requested, configured=configured)
    )


def _end(files: TokenizerFiles, ids: Mapping[str, int]) -> int:
    eos = files.token("eos_token", "</s>")
    if eos not in ids:
        raise CheckpointError([f"the tokenizer has no {eos!r}, the token that ends a sentence"])
    return ids[eos]


def _check_pieces(
    files: TokenizerFiles,
    vocabulary: Mapping[str, int],
    sizes: tuple[int, int],
    *,
    languages: Set[str],
    control: Set[str],
) -> dict[str, int]:
    """Return the ids of special tokens that texts may spell and that the model has.

    Raises:
        CheckpointError: settings with which transformers would segment texts differently.
    """
    problems = [
        f"tokenizer_config.json: the added token {token!r} is not special; texts that spell it cannot be cut there"
        for token in files.added_text_tokens()
        if token not in languages
    ]
    if files.settings.get("sp_model_kwargs"):
        problems.append(
            f"tokenizer_config.json: sp_model_kwargs must be empty, got {shown(files.settings['sp_model_kwargs'])}"
        )
    try:
        inputs = files.input_tokens(vocabulary, {*control, *languages})
    except CheckpointError as error:
        problems += error.problems
    if problems:
        raise CheckpointError(problems)
    return {token: number for token, number in inputs.items() if number < min(sizes)}


def _tokenizer_json(
    files: TokenizerFiles,
    config: Mapping[str, Any],
    requested: Directions,
    sizes: tuple[int, int],
    forced_first: object,
) -> ImportedTokenizer:
    backend = load_backend(files)
    library = tokenizers.Tokenizer.from_str(backend.content.decode("utf-8"))
    added = library.get_added_tokens_decoder().items()
    special = {token.content: number for number, token in added if token.special and number < min(sizes)}
    by_class = language_tokens(files, config, special.keys())
    codes = {} if by_class is None else by_class.read(special)
    source = _added_tokens(library)
    around = {*source.prefix, *source.suffix}
    separator = files.token("sep_token", "")
    tokenizer = TokenizerJson(
        backend.content,
        source_vocab_size=sizes[0],
        target_vocab_size=sizes[1],
        input_tokens=[
            token
            for token, number in special.items()
            if token not in backend.control and (number not in around or token == separator) and token not in codes
        ],
        clean_up_spaces=backend.clean_up_spaces,
    )
    if by_class is None:
        pairs = task_pairs(config)
        if pairs:
            return ImportedTokenizer(tokenizer, tasks(source, pairs, requested=requested))
        configured = _configured(files)
        unnamed = Directions(source=configured.source or UNDETERMINED, target=configured.target or UNDETERMINED)
        return ImportedTokenizer(tokenizer, one_source(source, {}, requested=requested, configured=unnamed))
    roles = by_class.roles(_end(files, special))
    configured = with_forced_target(_configured(files), codes, forced_first)
    return ImportedTokenizer(tokenizer, every_language(codes, roles, requested=requested, configured=configured))


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
