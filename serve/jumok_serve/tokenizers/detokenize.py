"""What the tokenizers' ways back from ids to text have in common."""

from collections.abc import Sequence

# The spaces that a detokenizer of English would not write, each with what is left of it, in the order of removal.
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
    """What Hugging Face's ``clean_up_tokenization_spaces`` leaves of a text: no space before . ? ! , n't and such."""
    for spelled, clean in _NEEDLESS:
        text = text.replace(spelled, clean)
    return text


REPLACEMENT = "\ufffd"
"""What decoders write for bytes that are no character, or not yet."""

_BEGINNINGS = tuple(sorted({spelled[:end] for spelled, _ in _NEEDLESS for end in range(1, len(spelled))}, key=len))


def stable_text(text: str, *, clean_up: bool) -> str:
    """What of a text stays as it is whatever tokens are written behind those that it was decoded from.

    White space at its end may be taken away, and bytes may become a character. With ``clean_up`` the text is what
    ``clean_up_spaces`` is to change, which may make another of what stands behind its last spaces.
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
    """Plain integers (NumPy's are accepted too); ``IndexError`` for one beyond a vocabulary of ``size`` tokens."""
    checked = list(map(int, ids))
    if checked and not (min(checked) >= 0 and max(checked) < size):
        beyond = next(token for token in checked if not 0 <= token < size)
        raise IndexError(f"token {beyond} lies beyond the vocabulary of {size}")
    return checked
