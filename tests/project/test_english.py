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
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documented = [None, *node.body]
            for previous, statement in zip(documented, node.body, strict=False):
                if previous is None or isinstance(previous, ast.Assign | ast.AnnAssign):
                    value = statement.value if isinstance(statement, ast.Expr) else None
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
