"""Settings of a checkpoint's tokenizer, and the tokenizer.json that transformers makes of its files."""

import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jumok_export.importers.huggingface.errors import CheckpointError

TOKENIZER_JSON = "tokenizer.json"

# Default class of a family's tokenizer.
_DEFAULT_CLASSES = {
    "bart": "BartTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "marian": "MarianTokenizer",
    "mbart": "MBartTokenizer",
    "t5": "T5Tokenizer",
}


class TokenizerFiles:
    """A folder's tokenizer_config.json and special_tokens_map.json, read as transformers does.

    Attributes:
        class_name: transformers' class of the tokenizer, such as "NllbTokenizer".

    Raises:
        CheckpointError: a file is no JSON.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder = folder
        settings = self.json("tokenizer_config.json") if self.has("tokenizer_config.json") else {}
        if "added_tokens_decoder" not in settings and self.has("special_tokens_map.json"):
            settings |= self.json("special_tokens_map.json")
        self.settings = settings
        named = settings.get("tokenizer_class") or config.get("tokenizer_class")
        self.class_name = str(named or _DEFAULT_CLASSES.get(config.get("model_type", ""), "")).removesuffix("Fast")

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
            content = json.loads((self.folder / name).read_bytes())
        except ValueError as error:
            raise CheckpointError([f"{name} is not JSON: {error}"]) from error
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

    def added_text_tokens(self) -> tuple[str, ...]:
        """Added tokens that are not special; transformers splits texts at their spelling."""
        special = set(self.special_tokens({}))
        if "added_tokens_decoder" in self.settings:
            added = self.settings["added_tokens_decoder"].values()
            return tuple(token["content"] for token in added if not token.get("special", False))
        if self.has("added_tokens.json"):
            return tuple(token for token in self.json("added_tokens.json") if token not in special)
        return ()


def _spelling(token: object) -> str | None:
    """Spelling of a token in settings: a string, or an object's `content`."""
    spelled = token.get("content") if isinstance(token, dict) else token
    return spelled if isinstance(spelled, str) and spelled else None


@dataclass(frozen=True)
class Backend:
    """A tokenizer of the `tokenizers` library.

    Attributes:
        clean_up_spaces: True if transformers cleans up spaces in decoded texts.
    """

    content: bytes
    clean_up_spaces: bool


def load_backend(files: TokenizerFiles) -> Backend:
    """Load the tokenizer through transformers; code of the checkpoint is not run.

    For some classes, transformers takes only the vocabulary from tokenizer.json, and sets up the rest itself, such as
    the normalization of text.

    Raises:
        CheckpointError: a missing or invalid tokenizer.
    """
    from transformers import AutoTokenizer, __version__  # noqa: PLC0415 - slow to import

    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(files.folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # constructors and the library raise many types
        reason = _protobuf_problem() if not files.has(TOKENIZER_JSON) else None
        raise CheckpointError([f"transformers {__version__} cannot load the tokenizer: {reason or error}"]) from error
    found = type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise CheckpointError([f"{found} has no {TOKENIZER_JSON}: only transformers can run it"])
    # Without its files, a class of transformers may load with only a few special tokens.
    sources = [name for part, name in tokenizer.vocab_files_names.items() if part != "tokenizer_file"]
    if not files.has(TOKENIZER_JSON) and not files.has(*sources):
        raise CheckpointError([f"{found} is made of {TOKENIZER_JSON}, or {' and '.join(sources)}: neither is there"])
    content = tokenizer.backend_tokenizer.to_str().encode()
    # transformers does not clean up byte-pair texts, whose spaces are those of the text.
    byte_pairs = "merges" in json.loads(content)["model"]
    return Backend(content, bool(tokenizer.clean_up_tokenization_spaces) and not byte_pairs)


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
