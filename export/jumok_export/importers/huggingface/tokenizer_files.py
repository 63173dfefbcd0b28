"""Settings of a checkpoint's tokenizer, and the tokenizer.json that transformers makes of its files."""

import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_export.importers.huggingface.settings import shown
from jumok_serve.errors import ForeignCodeError
from jumok_serve.files import MOST_JSON_BYTES, UnusableFileError, parse_json, read_file
from jumok_serve.native import ForeignCode
from jumok_serve.tokenizers.piece_vocabulary import read_vocabulary

TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CLASS = "PreTrainedTokenizerFast"
"""General class of transformers, which runs any tokenizer.json."""

# Default class of a family's tokenizer.
_DEFAULT_CLASSES = {
    "bart": "BartTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "marian": "MarianTokenizer",
    "mbart": "MBartTokenizer",
    "mt5": "T5Tokenizer",
    "pegasus": "PegasusTokenizer",
    "t5": "T5Tokenizer",
}

LARGEST_ALPHABET = 512
"""Most tokens of a byte-pair model without merges: bytes and special tokens."""

CONTROL_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token")
"""Roles of special tokens that texts must not spell; the others are input."""


_TRANSFORMERS = ForeignCode("transformers")


class _AddedToken(BaseModel):
    content: str


class _Settings(BaseModel):
    """Types of the fields that are read; other fields may hold anything."""

    added_tokens_decoder: dict[int, _AddedToken] = {}
    additional_special_tokens: dict[str, Any] | list[Any] | None = None
    extra_special_tokens: dict[str, Any] | list[Any] | None = None
    language_codes: str | None = None
    src_lang: str | None = None
    source_lang: str | None = None
    tgt_lang: str | None = None
    target_lang: str | None = None


class TokenizerFiles:
    """A folder's tokenizer_config.json and special_tokens_map.json, read as transformers does.

    Attributes:
        stated_class: transformers' class of the tokenizer, as the files name it: "NllbTokenizerFast".
        class_name: the class without "Fast".

    Raises:
        CheckpointError: a file is no JSON, or names code of its own.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = folder
        settings = self.json("tokenizer_config.json") if self.has("tokenizer_config.json") else {}
        if "added_tokens_decoder" not in settings and self.has("special_tokens_map.json"):
            settings |= self.json("special_tokens_map.json")
        try:
            _Settings.model_validate(settings, strict=False)
        except ValidationError as error:
            raise CheckpointError(
                [
                    f"tokenizer_config.json: {'.'.join(map(str, one['loc']))}: {one['msg']}, got {shown(one['input'])}"
                    for one in error.errors()[:10]
                ]
            ) from error
        self.settings = settings
        if settings.get("auto_map"):
            raise CheckpointError(
                [
                    "tokenizer_config.json: auto_map names code of its own, which is never run; take auto_map out to "
                    "import without it"
                ]
            )
        named = settings.get("tokenizer_class") or config.get("tokenizer_class")
        self.stated_class = str(named or _DEFAULT_CLASSES.get(config.get("model_type", ""), ""))
        self.class_name = self.stated_class.removesuffix("Fast")

    def has(self, *names: str) -> bool:
        """True if the folder has all these files."""
        return all((self.folder / name).is_file() for name in names)

    def require(self, names: Sequence[str]) -> None:
        """Raise ``CheckpointError`` if the folder lacks any of these files."""
        missing = [name for name in names if not self.has(name)]
        if missing:
            raise CheckpointError(
                [f"{name} is missing: {self.class_name or 'the tokenizer'} needs it" for name in missing]
            )

    def json(self, name: str) -> dict[str, Any]:
        """Read a JSON object; raises ``CheckpointError`` for anything else."""
        try:
            content = parse_json(read_file(self.folder / name, MOST_JSON_BYTES))
        except UnusableFileError as error:
            raise CheckpointError([f"{name} {error}"]) from error
        if not isinstance(content, dict):
            raise CheckpointError([f"{name} is not a JSON object"])
        return content

    def token(self, name: str, default: str) -> str:
        """Special token of a role such as ``eos_token``, or the default."""
        return _spelling(self.settings.get(name)) or default

    def special_tokens(self, defaults: Mapping[str, str]) -> tuple[str, ...]:
        """Special tokens with and without a role; ``defaults`` by role."""
        by_role = {**defaults, **{role: value for role, value in self.settings.items() if role.endswith("_token")}}
        more = self.settings.get("extra_special_tokens") or self.settings.get("additional_special_tokens") or ()
        values = [*by_role.values(), *(more.values() if isinstance(more, dict) else more)]
        return tuple(dict.fromkeys(filter(None, map(_spelling, values))))

    def input_tokens(self, vocabulary: Mapping[str, int], control: Set[str]) -> dict[str, int]:
        """Find the ids of special tokens that texts may spell.

        Args:
            vocabulary: ids of the vocabulary's tokens; others have theirs in the files of added tokens.
            control: tokens that texts must not spell, besides those with such a role.

        Raises:
            CheckpointError: a token has no id, or strips the text around it.
        """
        kept_out = {*control, *filter(None, (_spelling(self.settings.get(role)) for role in CONTROL_ROLES))}
        added = self._added_tokens()
        spelled = [*self.special_tokens({}), *(token for token, (_, special) in added.items() if special)]
        found, problems = dict[str, int](), list[str]()
        for token in dict.fromkeys(spelled):
            number = vocabulary.get(token, added.get(token, (None, True))[0])
            if token in kept_out:
                continue
            if number is None:
                problems.append(f"the special token {token!r} has no id: save the tokenizer with save_pretrained")
            else:
                found[token] = number
        for entry in self.settings.get("added_tokens_decoder", {}).values():
            flags = [name for name in ("lstrip", "rstrip", "single_word") if entry.get(name)]
            if entry.get("content") in found and flags:
                problems.append(
                    f"{flags[0]} of the special token {entry['content']!r} is not supported: set it to false"
                )
        if problems:
            raise CheckpointError(problems)
        return found

    def _added_tokens(self) -> dict[str, tuple[int, bool]]:
        """Id of every added token, and True if it is special."""
        if "added_tokens_decoder" in self.settings:
            added = self.settings["added_tokens_decoder"].items()
            return {token["content"]: (int(number), bool(token.get("special"))) for number, token in added}
        if self.has("added_tokens.json"):
            special = set(self.special_tokens({}))
            numbered = read_vocabulary(self.folder / "added_tokens.json")
            return {token: (number, token in special) for token, number in numbered.items()}
        return {}

    def added_text_tokens(self) -> tuple[str, ...]:
        """Added tokens that are not special; transformers splits texts at their spelling."""
        return tuple(token for token, (_, special) in self._added_tokens().items() if not special)


def _spelling(token: object) -> str | None:
    """Spelling of a token in settings: a string, or an object's `content`."""
    spelled = token.get("content") if isinstance(token, dict) else token
    return spelled if isinstance(spelled, str) and spelled else None


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A tokenizer of the `tokenizers` library.

    Attributes:
        control: special tokens that texts must not spell.
        clean_up_spaces: True if transformers cleans up spaces in decoded texts.
    """

    content: bytes
    control: frozenset[str]
    clean_up_spaces: bool


def load_backend(files: TokenizerFiles) -> Backend:
    """Load the tokenizer through transformers; code of the checkpoint is not run.

    For some classes, transformers takes only the vocabulary from tokenizer.json, and sets up the rest itself, such as
    the normalization of text.

    Raises:
        CheckpointError: a missing or invalid tokenizer.
    """
    import transformers  # noqa: PLC0415 - slow to import
    from transformers import AutoTokenizer, __version__  # noqa: PLC0415

    own = getattr(transformers, files.class_name or TOKENIZER_CLASS, None)
    if own is None:
        raise CheckpointError(
            [
                f"transformers {__version__} has no tokenizer class {files.stated_class!r}: if the tokenizer needs "
                f"only {TOKENIZER_JSON}, set tokenizer_class to {TOKENIZER_CLASS!r} in tokenizer_config.json"
            ]
        )
    _require_sources(files, own)
    try:
        with _quiet(), _TRANSFORMERS:
            tokenizer = AutoTokenizer.from_pretrained(files.folder, local_files_only=True, trust_remote_code=False)
    except ForeignCodeError as error:
        reason = (_protobuf_problem() if not files.has(TOKENIZER_JSON) else None) or error.__cause__
        raise CheckpointError([f"transformers {__version__} cannot load the tokenizer: {reason}"]) from error
    found = type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise CheckpointError([f"{found} has no {TOKENIZER_JSON}: only transformers can run it"])
    content = tokenizer.backend_tokenizer.to_str().encode()
    # transformers does not clean up byte-pair texts, whose spaces are those of the text.
    model = json.loads(content)["model"]
    byte_pairs = "merges" in model
    if byte_pairs and not model["merges"] and len(model["vocab"]) > LARGEST_ALPHABET:
        size = len(model["vocab"])
        raise CheckpointError([f"the tokenizer has {size} tokens and no merges: texts would become single characters"])
    return Backend(
        content=content,
        control=frozenset(str(tokenizer.special_tokens_map.get(role)) for role in CONTROL_ROLES),
        clean_up_spaces=bool(tokenizer.clean_up_tokenization_spaces) and not byte_pairs,
    )


def _require_sources(files: TokenizerFiles, tokenizer_class: Any) -> None:
    """Raise ``CheckpointError`` if a class lacks some of its files.

    Without them, a class of transformers may load with only a few special tokens.
    """
    names: Mapping[str, str] = getattr(tokenizer_class, "vocab_files_names", {})
    sources = [name for part, name in names.items() if part != "tokenizer_file"]
    missing = [name for name in sources if not files.has(name)]
    if files.has(TOKENIZER_JSON) or not missing:
        return
    others = f", or {' and '.join(sources)}" if sources else ""
    found = "neither is there" if len(missing) == len(sources) else f"{' and '.join(missing)} is missing"
    raise CheckpointError([f"{files.class_name} is made of {TOKENIZER_JSON}{others}: {found}"])


def _protobuf_problem() -> str | None:
    """Reason why SentencePiece models cannot be parsed, if so; transformers reports another one."""
    try:
        importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except Exception as error:  # protobuf's VersionError, or it is not installed
        return f"it cannot read SentencePiece models here: {error}"
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils.logging import get_verbosity, set_verbosity  # noqa: PLC0415

    verbosity = get_verbosity()
    set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_verbosity(verbosity)
