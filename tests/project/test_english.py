"""Sources and documents keep to plain English: no filler words, and docstrings that open with their subject."""

import ast
import re
from collections.abc import Iterator

from tests.project.test_layout import ROOT, tracked

PATHS = ("serve", "export", "clients", "proto", "benchmarks", "docs", "README.md", "CONTRIBUTING.md", "SECURITY.md")
TEXTS = {".py", ".pyi", ".cc", ".h", ".proto", ".md", ".toml", ".yml", ".yaml"}
FILLERS = re.compile(
    r"\b(nobody|somebody|whoever|whomever|so many|of which|that there (is|are)|likewise)\b", re.IGNORECASE
)
OPENERS = re.compile(r"(What|Whether|Who|Whom|Whose|How|Which|Why)\b")


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring of a module."""
    for node in ast.walk(ast.parse(text)):
        for previous, expression in zip([None, *getattr(node, "body", [])], getattr(node, "body", []), strict=False):
            is_first = previous is None and not isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try)
            if (is_first or isinstance(previous, ast.Assign | ast.AnnAssign)) and isinstance(expression, ast.Expr):
                value = expression.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.lineno, value.value


def test_no_filler_words() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in tracked(*PATHS)
        if path.suffix in TEXTS
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if FILLERS.search(line)
    ]
    assert found == []


def test_no_docstring_opens_with_a_question_word() -> None:
    found = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path in tracked("serve", "export", "clients", "proto", "benchmarks", "tests", "deploy", "examples")
        if path.suffix == ".py"
        for line, text in docstrings((ROOT / path).read_text(encoding="utf-8"))
        if OPENERS.match(text)
    ]
    assert found == []
