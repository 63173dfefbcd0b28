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


def checked_ids(ids: Sequence[int], size: int) -> list[int]:
    """Plain integers (NumPy's are accepted too); ``IndexError`` for one beyond a vocabulary of ``size`` tokens."""
    checked = [int(token) for token in ids]
    beyond = [token for token in checked if not 0 <= token < size]
    if beyond:
        raise IndexError(f"token {beyond[0]} lies beyond the vocabulary of {size}")
    return checked
