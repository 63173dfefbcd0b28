"""Plain text: lines are texts, and all white space stays."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.files import made, rewritten, texts


@given(st.text(st.characters(exclude_categories=["Cs"])))
@made
def test_nothing_changes_without_a_change(content: str) -> None:
    assert rewritten(content, "text") == content
    kept = rewritten(content, "text", lambda _: "")
    assert kept.count("\n") == content.count("\n")
    assert [text.line for text in texts(content, "text")] == sorted({text.line for text in texts(content, "text")})


def test_lines_are_texts() -> None:
    content = "\n  A dog. It runs.\t\r\n***\n12\n\x0cTwo\u2028lines\n"
    assert [(text.content, text.line) for text in texts(content, "text")] == [
        ("A dog. It runs.", 2),
        ("Two\u2028lines", 5),
    ]
    assert rewritten(content, "text", str.upper) == "\n  A DOG. IT RUNS.\t\r\n***\n12\n\x0cTWO\u2028LINES\n"
