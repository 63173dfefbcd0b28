"""Helpers of detokenization that all tokenizers share."""

from collections.abc import Sequence

# Spaces that English does not write, each with its replacement, in the order of removal.
_NEEDLESS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def clean_up_spaces(text: str) -> str:
    """Remove spaces before punctuation and n't, as Hugging Face's ``clean_up_tokenization_spaces`` does."""
    for spelled, clean in _NEEDLESS:
        text = text.replace(spelled, clean)
    return text


REPLACEMENT = "\ufffd"
"""Character that decoders write for bytes that are no character, or not yet."""

_BEGINNINGS = tuple(sorted({spelled[:end] for spelled, _ in _NEEDLESS for end in range(1, len(spelled))}, key=len))


def stable_text(text: str, *, clean_up: bool) -> str:
    """Return the beginning of a decoded text that further tokens cannot change.

    Left out are white space at the end, bytes that may become a character and, with ``clean_up``, endings that
    ``clean_up_spaces`` may still change. With ``clean_up`` the result is cleaned up.
    """
    beginnings = _BEGINNINGS if clean_up else ()
    text = _without_end(text, beginnings)
    return _without_end(clean_up_spaces(text), beginnings) if clean_up else text


def _without_end(text: str, beginnings: Sequence[str]) -> str:
    while True:
        shorter = text.rstrip().rstrip(REPLACEMENT)
        for beginning in beginnings:
            shorter = shorter.removesuffix(beginning)
        if shorter == text:
            return text
        text = shorter


def checked_ids(ids: Sequence[int], size: int) -> list[int]:
    """Plain integers, also from NumPy's.

    Raises:
        IndexError: an id beyond a vocabulary of ``size`` tokens.
    """
    checked = list(map(int, ids))
    if checked and not (min(checked) >= 0 and max(checked) < size):
        beyond = next(token for token in checked if not 0 <= token < size)
        raise IndexError(f"token {beyond} lies beyond the vocabulary of {size}")
    return checked
