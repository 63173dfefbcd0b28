"""Tokens of callers, and the metadata that they come with."""

from pathlib import Path

from jumok_serve.service.auth.tokens import TokenFile, make_token

Metadata = tuple[tuple[str, str], ...]


def bearer(secret: str) -> Metadata:
    """Metadata of a call with a token."""
    return (("authorization", f"Bearer {secret}"),)


WRONG = bearer("wrong")
"""Metadata of a stranger."""


def tokens_of(folder: Path, **scopes: str) -> tuple[TokenFile, dict[str, str]]:
    """Make tokens, each with its name and a scope; returns their file and the secrets by name."""
    made = {name: make_token(name, [scope]) for name, scope in scopes.items()}
    file = folder / "tokens"
    file.write_text("".join(f"{token.line()}\n" for _, token in made.values()), encoding="utf-8")
    return TokenFile(file), {name: secret for name, (secret, _) in made.items()}
