"""Files of tokens."""

from pathlib import Path

from jumok_serve.service.auth.tokens import make_token


def token_file(folder: str | Path, *callers: str, **others: str) -> tuple[Path, list[str]]:
    """Write a file with tokens of callers who may translate, and of others with a scope; returns it and the secrets."""
    made = [make_token(name, (scope,)) for name, scope in (dict.fromkeys(callers, "translate") | others).items()]
    path = Path(folder) / "tokens"
    path.write_text("".join(f"{token.line()}\n" for _, token in made), encoding="utf-8")
    path.chmod(0o600)
    return path, [secret for secret, _ in made]
