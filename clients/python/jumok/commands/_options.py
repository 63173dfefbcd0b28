"""Options that commands have in common: where to ask, which languages, and how to decode."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, Unpack

import click

from jumok import Alignment, AttentionKind, Client, EarlyStopping, Options, Score, Tls, Translation
from jumok.commands._main import missing

Command = Callable[..., None]
Decorator = Callable[[Command], Command]

EARLY_STOPPING: dict[str, EarlyStopping] = {"false": False, "true": True, "never": "never"}


class LocalTranslator(AbstractContextManager["LocalTranslator"], Protocol):
    """What translates with a bundle in this process: the one of the server room."""

    def translate(
        self,
        texts: Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        target_prefix: Sequence[str | None] | None = None,
        attention: bool = False,
        truncate: bool = False,
        split_sentences: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> list[Translation]:
        """Translate texts in one request."""

    def score(
        self,
        texts: Sequence[str],
        targets: Sequence[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        length_penalty: float | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[Score]:
        """Score translations in one request."""

    def align(
        self,
        texts: Sequence[str],
        targets: Sequence[str | None] | None = None,
        *,
        kinds: Sequence[AttentionKind] = ("cross",),
        layer: int | None = None,
        head: int | None = None,
        each_head: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[Alignment]:
        """Give attention of texts and translations in one request."""


def _all(*options: Decorator) -> Decorator:
    """One decorator for several options, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


PEM = click.Path(exists=True, dir_okay=False, path_type=Path)


def _access_option(name: str, **settings: Any) -> Decorator:
    """An option for ``access``, which a command need not name among its own."""

    def remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
        context.meta[_access_key(parameter.name or "")] = value

    return click.option(name, expose_value=False, callback=remember, **settings)


def _access_key(name: str) -> str:
    return f"{__name__}.{name}"


def access(context: click.Context) -> tuple[Tls | None, str | None]:
    """What the options say of how to reach the server: TLS, and the token."""
    names = ("tls", "tls_ca", "tls_certificate", "tls_key", "tls_name", "token")
    speak, root, certificate, key, name, token = (context.meta[_access_key(name)] for name in names)
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-certificate and --tls-key need each other: give both, or none")
    tls = None
    if speak or root or certificate or name:
        tls = Tls(root_certificates=root, client_certificate=certificate, client_key=key, override_name=name)
    if token and tls is None:
        raise click.UsageError("a token, of --token or JUMOK_TOKEN, is sent over TLS only: give --tls or --tls-ca too")
    return tls, token or None


server_options = _all(
    click.option(
        "--server",
        metavar="HOST:PORT",
        envvar="JUMOK_SERVER",
        default="localhost:50051",
        show_default=True,
        show_envvar=True,
        help="Server to ask.",
    ),
    _access_option("--tls", is_flag=True, help="Speak TLS; the other options that begin so imply it."),
    _access_option("--tls-ca", metavar="FILE", type=PEM, help="What the server's certificate is signed by, in PEM."),
    _access_option("--tls-certificate", metavar="FILE", type=PEM, help="This client's certificate, for mutual TLS."),
    _access_option("--tls-key", metavar="FILE", type=PEM, help="Private key of that certificate."),
    _access_option("--tls-name", metavar="HOST", help="Name in the server's certificate, where --server has another."),
    _access_option(
        "--token",
        envvar="JUMOK_TOKEN",
        show_envvar=True,
        help="What the server knows this caller by, over TLS; safer in the variable, which others cannot see.",
    ),
)
"""``server``, and what ``access`` finds in the context."""

place_options = _all(
    server_options,
    click.option(
        "--bundle",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Bundle to use in this process, without a server.",
    ),
    click.option("--model", default="", help="Name of the model, where the server holds several."),
)
"""``server``, ``bundle`` and ``model``, for ``open_place``."""

language_options = _all(
    click.option("--source-language", metavar="TAG", help="Language of the texts, where the model has several."),
    click.option("--target-language", metavar="TAG", help="Language to translate into, where the model has several."),
)

limit_options = _all(
    click.option(
        "--truncate", is_flag=True, help="Cut texts that are too long for the model, instead of refusing them."
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        default=120.0,
        show_default=True,
        help="Seconds that one request may take; a long input is sent in many.",
    ),
)

length_penalty_option = click.option(
    "--length-penalty", type=float, help="Divide scores by length to this power; more favours longer ones."
)

decoding_options = _all(
    click.option("--beam-size", type=int, help="Hypotheses kept while decoding, 1 to 64; 1 is greedy."),
    click.option("--num-hypotheses", type=int, help="Candidates to write for every text."),
    length_penalty_option,
    click.option(
        "--early-stopping",
        type=click.Choice(list(EARLY_STOPPING)),
        callback=lambda _context, _parameter, value: EARLY_STOPPING.get(value),
        help="When a beam search that has enough candidates stops: when a better one is unlikely (false), at once "
        "(true), or only when no better one is possible (never).",
    ),
    click.option("--min-length", type=int, help="Tokens that a translation has at least."),
    click.option("--max-length", type=int, help="Tokens that a translation has at most."),
    click.option("--no-repeat-ngram-size", type=int, help="Write no sequence of so many tokens twice; 0 allows it."),
    click.option("--repetition-penalty", type=float, help="Above 1, make tokens that have occurred less likely."),
    click.option(
        "--suppress-token",
        "suppress_tokens",
        metavar="ID",
        type=int,
        multiple=True,
        callback=lambda _context, _parameter, value: value or None,
        help="Token never to write; may be repeated.",
    ),
    click.option(
        "--end-token",
        "end_tokens",
        metavar="ID",
        type=int,
        multiple=True,
        callback=lambda _context, _parameter, value: value or None,
        help="Token that ends a translation, instead of the model's; may be repeated.",
    ),
    click.option("--forced-first-token", metavar="ID", type=int, help="Token that every translation begins with."),
    click.option(
        "--sample/--no-sample",
        default=None,
        help="Draw tokens at random instead of searching for the best; the following four ask for it too.",
    ),
    click.option("--temperature", type=float, help="Divide logits by this before tokens are drawn."),
    click.option("--top-k", type=int, help="Draw from so many of the most likely tokens; 0 is all."),
    click.option("--top-p", type=float, help="Draw from the most likely tokens that together reach this probability."),
    click.option("--seed", type=int, help="Draw the same tokens for the same text every time."),
)
"""All of ``Options``, by their names."""


def open_place(context: click.Context, server: str, bundle: Path | None) -> Client | LocalTranslator:
    """What to ask, to be closed: the server, or the bundle, which excludes what is said of a server."""
    if bundle is None:
        tls, token = access(context)
        return Client(server, tls=tls, token=token)
    for parameter in ("server", "model", "tls", "tls_ca", "tls_certificate", "tls_key", "tls_name", "token"):
        if context.get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE:
            flag = parameter.replace("_", "-")
            raise click.UsageError(f"--bundle and --{flag} exclude each other: a bundle is one model, here")
    return _local(bundle)


def _local(bundle: Path) -> LocalTranslator:
    """Open a bundle with what the server room offers; this room does not know it otherwise."""
    (entry_point,) = entry_points(group="jumok.local", name="translator")
    try:
        translator: Callable[[Path], LocalTranslator] = entry_point.load()
    except ImportError as error:
        raise click.ClickException(f"--bundle {missing(error, entry_point)}") from error
    return translator(bundle)
