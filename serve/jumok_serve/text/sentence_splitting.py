"""Texts as sentences to translate and the text between them, which is kept."""

from dataclasses import dataclass

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.manifest.language_codes import primary_language, writes_spaces
from jumok_serve.text.boundary_rules import marker_length
from jumok_serve.text.sentence_boundaries import sentence_spans

MAX_SENTENCES = 4096
"""Limit for all texts of a request together."""


@dataclass(frozen=True, slots=True)
class SplitText:
    """A text's sentences, and the text before, between and after them that is not translated.

    Attributes:
        sentences: sentences, [n]; a text without any has an empty one.
        kept: white space and markers of lists, [n + 1].
    """

    sentences: tuple[str, ...]
    kept: tuple[str, ...]

    def for_target(self, language: str) -> "SplitText":
        """Replace a single or no space between sentences by the target language's."""
        space = sentence_space(language)
        first, *between, last = self.kept
        return SplitText(self.sentences, (first, *(space if kept in {"", " "} else kept for kept in between), last))


def sentence_space(language: str) -> str:
    """Return the white space that a language, given by its tag, writes between sentences."""
    return " " if writes_spaces(language) else ""


def too_many_sentences() -> InvalidArgumentError:
    """Make the error of texts with too many sentences."""
    return InvalidArgumentError(
        f"a request takes at most {MAX_SENTENCES} sentences, all texts together: send several", field="contents"
    )


def split(text: str, language: str, *, max_sentences: int = MAX_SENTENCES, deadline: float | None = None) -> SplitText:
    """Split a text into sentences by sentencex and at line breaks.

    Sentences and kept text joined in turn are the text.

    Raises:
        InvalidArgumentError: the text has more than ``max_sentences`` sentences.
        DeadlineExceededError: the deadline, in `time.monotonic()` seconds, has passed.
    """
    sentences: list[str] = []
    kept: list[str] = []
    end = 0
    for start, after in sentence_spans(text, primary_language(language), deadline=deadline):
        first = start + marker_length(text[start:after])
        if first == after:
            continue
        if len(sentences) >= max_sentences:
            raise too_many_sentences()
        kept.append(text[end:first])
        sentences.append(text[first:after])
        end = after
    if not sentences:
        return SplitText(("",), (text, ""))
    return SplitText(tuple(sentences), (*kept, text[end:]))
