"""Tokens of callers, and the metadata that they come with."""

from pathlib import Path

from jumok_serve.service.auth.tokens import TokenFile, make_token

Metadata = tuple[tuple[str, str], ...]


def bearer(secret: str) -> Metadata:
    """Metadata of a call with a token."""
    return (("authorization", f"Bearer {secret}"),)


WRONG = bearer("wrong")
"""Metadata of a stranger."""


def token_file(folder: str | Path, *callers: str, **others: str) -> tuple[Path, list[str]]:
    """Write a file with tokens of callers who may translate, and of others with a scope; returns it and the secrets."""
    made = [make_token(name, (scope,)) for name, scope in (dict.fromkeys(callers, "translate") | others).items()]
    path = Path(folder) / "tokens"
    path.write_text("".join(f"{token.line()}\n" for _, token in made), encoding="utf-8")
    path.chmod(0o600)
    return path, [secret for secret, _ in made]


def tokens_of(folder: Path, **scopes: str) -> tuple[TokenFile, dict[str, str]]:
    """Make tokens, each with its name and a scope; returns them as a server reads them, and the secrets by name."""
    path, secrets = token_file(folder, **scopes)
    return TokenFile(path), dict(zip(scopes, secrets, strict=True))
