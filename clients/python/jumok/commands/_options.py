"""Options that commands share: server or bundle, languages, limits, markup and terms."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from importlib.metadata import entry_points
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

import click
import grpc

from jumok import Alignment, Client, Score, Tls, Translation
from jumok._client import DEFAULT_TIMEOUT_S
from jumok._errors import UNREACHABLE
from jumok._transport.servers import HEALTH_CHECK, Opener, addresses
from jumok.commands._main import missing
from jumok_proto.conversion import PLACEHOLDER_KINDS
from jumok_proto.glossaries import read_tsv
from jumok_proto.markup import MarkupKind, MarkupRules

Command = Callable[..., None]
Decorator = Callable[[Command], Command]

TURN_S, LEAST_S = 1.0, 0.05
"""Longest and shortest wait for one of several servers."""


class LocalTranslator(AbstractContextManager["LocalTranslator"], Protocol):
    """An in-process translator of the server package; with the parameters of ``Client``."""

    def translate(self, texts: Sequence[str], **parameters: Any) -> list[Translation]:
        """Translate texts in one request."""

    def score(self, texts: Sequence[str], targets: Sequence[str], **parameters: Any) -> list[Score]:
        """Score translations in one request."""

    def align(
        self, texts: Sequence[str], targets: Sequence[str | None] | None = None, **parameters: Any
    ) -> list[Alignment]:
        """Compute the attention of texts and translations in one request."""


def all_of(*options: Decorator) -> Decorator:
    """Combine options into one decorator, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def timeout_option(default_s: float | None, description: str) -> Decorator:
    """Make the option ``--timeout``, in seconds; None: no limit."""
    return click.option(
        "--timeout",
        "timeout_s",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        default=default_s,
        show_default="no limit" if default_s is None else True,
        help=description,
    )


PEM = click.Path(exists=True, dir_okay=False, path_type=Path)
_ACCESS = ("tls", "tls_ca", "tls_certificate", "tls_key", "tls_name", "token")


def _access_option(name: str, **settings: Any) -> Decorator:
    """Make an option that ``access`` reads from the context; the command does not get it."""

    def remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
        context.meta[_access_key(parameter.name or "")] = value

    return click.option(name, expose_value=False, callback=remember, **settings)


def _access_key(name: str) -> str:
    return f"{__name__}.{name}"


def access(context: click.Context) -> tuple[Tls | None, str | None]:
    """Read TLS settings and token from the options."""
    use_tls, root, certificate, key, name, token = (context.meta[_access_key(name)] for name in _ACCESS)
    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-certificate and --tls-key need each other: give both, or neither")
    tls = None
    if use_tls or root or certificate or name:
        tls = Tls(root_certificates=root, client_certificate=certificate, client_key=key, override_name=name)
    if token and tls is None:
        raise click.UsageError("the token of --token or JUMOK_TOKEN is sent over TLS only: add --tls or --tls-ca")
    return tls, token or None


model_option = click.option("--model", default="", help="Name of the model, if the server holds several.")

server_options = all_of(
    click.option(
        "--server",
        metavar="HOST:PORT",
        envvar="JUMOK_SERVER",
        default="localhost:50051",
        show_default=True,
        show_envvar=True,
        help="Address of the server, or several with commas; unix:PATH is a Unix socket.",
    ),
    _access_option(
        "--wait",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        default=0.0,
        help="Wait this long for a server that is starting.  [default: 0]",
    ),
    _access_option("--tls", is_flag=True, help="Use TLS; the other --tls options imply it."),
    _access_option(
        "--tls-ca", metavar="FILE", type=PEM, help="Root certificates to check the server's certificate with, in PEM."
    ),
    _access_option(
        "--tls-certificate", metavar="FILE", type=PEM, help="Certificate of this client, for mutual TLS, in PEM."
    ),
    _access_option("--tls-key", metavar="FILE", type=PEM, help="Private key of the client's certificate, in PEM."),
    _access_option("--tls-name", metavar="HOST", help="Name in the server's certificate, if it differs from --server."),
    _access_option(
        "--token",
        envvar="JUMOK_TOKEN",
        show_envvar=True,
        help="Token of this caller, sent over TLS only. Other users of the machine can read a process's options, but "
        "not its variables.",
    ),
)
"""The parameter ``server``, and the options for ``access``."""

_BUNDLE_SETTINGS = ("precision", "shortlist")

target_options = all_of(
    server_options,
    click.option(
        "--bundle",
        type=click.Path(path_type=Path),
        help="Folder of a bundle to use in this process, without a server.",
    ),
    _access_option(
        "--precision",
        type=click.Choice(["auto", "fp32", "fp16", "int8"]),
        help="With --bundle: precision to run.  [default: auto]",
    ),
    _access_option(
        "--shortlist/--no-shortlist",
        default=None,
        help="With --bundle: restrict translations to the bundle's shortlist.  [default: no-shortlist]",
    ),
    model_option,
)
"""The parameters ``server``, ``bundle`` and ``model``, for ``open_target``."""

language_options = all_of(
    click.option("--source-language", metavar="TAG", help="Language of the texts, if the model has several."),
    click.option("--target-language", metavar="TAG", help="Language to translate into, if the model has several."),
)


def _dash_is_none(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path | None:
    return None if value == Path("-") else value


file_options = all_of(
    click.option(
        "--input",
        "source",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
        callback=_dash_is_none,
        help="File to read lines of, instead of standard input (-).",
    ),
    click.option(
        "--output",
        metavar="FILE",
        type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
        callback=_dash_is_none,
        help="File to write, instead of standard output (-); it changes only once all is written.",
    ),
)
"""The parameters ``source`` and ``output``; None: standard input or output."""

limit_options = all_of(
    click.option(
        "--truncate", is_flag=True, help="Cut texts that are too long for the model, instead of refusing them."
    ),
    timeout_option(120.0, "Seconds that one request may take; long input is sent in many."),
)

long_sentence_options = all_of(
    click.option(
        "--cut-long-sentences/--no-cut-long-sentences",
        default=None,
        help="Cut sentences that are too long for the model into parts, instead of refusing their texts; the default "
        "if sentences are split and not truncated.",
    ),
    click.option("--copy-unreadable", is_flag=True, help="Copy sentences that have nothing that the model can read."),
)
"""The parameters ``cut_long_sentences`` and ``copy_unreadable``."""

sentence_options = all_of(
    click.option(
        "--split-sentences/--no-split-sentences",
        default=None,
        help="Translate the sentences of each text one by one and join them; the default, unless several hypotheses, "
        "attention or a target prefix are wanted.",
    ),
    long_sentence_options,
)
"""The parameters ``split_sentences``, ``cut_long_sentences`` and ``copy_unreadable``."""


def repeatable_option(name: str, description: str, **settings: Any) -> Decorator:
    """Make a repeatable option, whose parameter has the plural name."""
    plural = name.strip("-").replace("-", "_") + "s"
    return click.option(name, plural, multiple=True, help=f"{description}; repeatable.", **settings)


def markup_options(command: Command) -> Command:
    """Add the options of markup, which become the parameters ``markup`` and ``markup_rules``."""

    @wraps(command)
    def with_rules(*arguments: Any, markup: MarkupKind | None, **others: Any) -> None:
        rules = MarkupRules(**{name: others.pop(name) for name in MarkupRules.__annotations__})
        if markup is None and rules != MarkupRules():
            raise click.UsageError("rules for tags need --markup: give html or xml")
        command(*arguments, markup=markup, markup_rules=rules if markup else None, **others)

    return all_of(
        click.option(
            "--markup",
            type=click.Choice(["html", "xml"]),
            help="Translate a document with tags; each tag is in the translation once.",
        ),
        repeatable_option("--ignore-tag", "Element that is not translated", metavar="NAME"),
        repeatable_option("--splitting-tag", "Element that separates sentences", metavar="NAME"),
        repeatable_option(
            "--non-splitting-tag", "Element inside of a sentence, although HTML has it as a block", metavar="NAME"
        ),
    )(with_rules)


def term_options(command: Command) -> Command:
    """Add the options for terms to a command, which gets those given as parameters, named as in ``TermOptions``."""

    @wraps(command)
    def with_terms(
        *arguments: Any,
        terms: tuple[str, ...],
        glossary: str | None,
        do_not_translate: tuple[str, ...],
        placeholders: tuple[str, ...],
        no_placeholders: bool,
        **others: Any,
    ) -> None:
        entries, stored = _entries(terms, glossary, local=others.get("bundle") is not None)
        found = {
            "glossary": entries,
            "stored_glossary": stored,
            "do_not_translate": do_not_translate,
        }
        if placeholders and no_placeholders:
            raise click.UsageError("--no-placeholders copies none: leave --placeholder out")
        found = {name: value for name, value in found.items() if value}
        command(*arguments, placeholders=placeholders or not no_placeholders, **found, **others)

    return all_of(
        repeatable_option("--term", "Term and its translation, which texts with the term get", metavar="SOURCE=TARGET"),
        click.option(
            "--glossary",
            metavar="FILE|NAME",
            help="File of terms, with a source term, a tab and a target term in each line; or the name of a glossary "
            "that the server keeps.",
        ),
        click.option(
            "--do-not-translate",
            metavar="TEXT",
            multiple=True,
            help="Text that is copied; * stands for letters, digits and _; repeatable.",
        ),
        repeatable_option(
            "--placeholder",
            "Kind of placeholders that are copied, in place of all kinds",
            type=click.Choice([*PLACEHOLDER_KINDS]),
        ),
        click.option("--no-placeholders", is_flag=True, help="Copy no placeholders: the model reads them as text."),
    )(with_terms)


def _entries(
    terms: Sequence[str], glossary: str | None, *, local: bool
) -> tuple[dict[str, tuple[str, ...]], str | None]:
    """Return the target terms by source term, and the name of a stored glossary.

    Args:
        glossary: a file, or the name of a stored glossary.
        local: True without a server, which keeps glossaries.

    Raises:
        click.UsageError: a term or the glossary cannot be read.
    """
    entries = dict[str, tuple[str, ...]]()
    stored = None
    if glossary is not None and Path(glossary).is_file():
        entries = _read_terms(Path(glossary))
    elif glossary is not None and (local or glossary != Path(glossary).name):
        raise click.UsageError(f"--glossary {glossary}: no such file; servers alone keep glossaries by name")
    else:
        stored = glossary
    for term in terms:
        source, equals, target = map(str.strip, term.partition("="))
        if not equals or not source or not target:
            raise click.UsageError(f"--term {term!r} needs a term, = and its translation")
        entries[source] = tuple(dict.fromkeys((*entries.get(source, ()), target)))
    return entries, stored


def _read_terms(file: Path) -> dict[str, tuple[str, ...]]:
    try:
        return {line.source: line.targets for line in read_tsv(file.read_text(encoding="utf-8"))}
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--glossary {file} cannot be read as UTF-8: {error}") from error
    except ValueError as error:
        raise click.UsageError(f"--glossary {file}: {error}") from error


def await_server(context: click.Context, servers: Sequence[str]) -> None:
    """Wait until one of the servers answers, for the time of ``--wait``."""
    wait_s = context.meta[_access_key("wait")]
    if not wait_s:
        return
    opener = Opener(*access(context))
    until = time.monotonic() + wait_s
    with ExitStack() as opened:
        checks = [
            opened.enter_context(opener.channel(server)).unary_unary(HEALTH_CHECK, None, None) for server in servers
        ]
        for check in cycle(checks):
            remaining_s = until - time.monotonic()
            try:
                check(b"", timeout=max(min(remaining_s, TURN_S), LEAST_S), wait_for_ready=True)
            except grpc.RpcError as error:
                if error.code() in UNREACHABLE:
                    if remaining_s > 0:
                        continue
                    raise click.ClickException(
                        f"no server answered for {wait_s:g} s at {' or '.join(servers)}"
                    ) from error
            return


def bundle_settings(context: click.Context) -> dict[str, Any]:
    """Return the options for the model of a bundle that were given."""
    settings = {name: context.meta[_access_key(name)] for name in _BUNDLE_SETTINGS}
    return {name: value for name, value in settings.items() if value is not None}


def open_client(context: click.Context, server: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Client:
    """Open a client of the server, with the options for access, once it answers."""
    tls, token = access(context)
    await_server(context, addresses(server))
    return Client(server, tls=tls, token=token, timeout_s=timeout_s)


def open_target(context: click.Context, server: str, bundle: Path | None) -> Client | LocalTranslator:
    """Open the server or the bundle; a bundle excludes the options of a server."""
    chosen = bundle_settings(context)
    if bundle is None:
        if chosen:
            raise click.UsageError(f"--{next(iter(chosen))} needs --bundle: a server has its own")
        return open_client(context, server)
    exclude_server_options(context)
    return open_bundle(bundle, **chosen)


def was_given(context: click.Context, parameter: str) -> bool:
    """True if a parameter was given on the command line."""
    return context.get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE


def exclude_server_options(context: click.Context) -> None:
    """Refuse the options of a server beside a bundle."""
    for parameter in ("server", "model", "wait", *_ACCESS):
        if was_given(context, parameter):
            flag = parameter.replace("_", "-")
            raise click.UsageError(f"--bundle excludes --{flag}: it uses one model in this process")


def open_bundle(bundle: Path, **settings: Any) -> LocalTranslator:
    """Open a bundle with the server package, found by its entry point."""
    (entry_point,) = entry_points(group="jumok.local", name="translator")
    try:
        translator: Callable[..., LocalTranslator] = entry_point.load()
    except ImportError as error:
        raise click.ClickException(f"--bundle {missing(error, entry_point)}") from error
    return translator(bundle, **settings)
