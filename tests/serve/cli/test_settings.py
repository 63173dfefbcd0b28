"""Settings from file, environment and flags: precedence, refusals and output."""

import os
import tomllib
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jumok_serve.cli.serve_commands import serve
from jumok_serve.cli.settings import MAX_FILE_BYTES, NAMES, Configuration, Effective, flag, read_configuration, variable
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.errors import ConfigurationError
from jumok_serve.service.limits import ServiceLimits
from tests.support.command import run_here


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jumok.toml"


def problems(file: Path | None = None, environment: dict[str, str] | None = None, **flags: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        read_configuration(file, environment or {}, flags)
    return list(caught.value.problems)


def test_precedence_of_flags_environment_file_and_defaults(bundle: Path, file: Path) -> None:
    file.write_text(f'bundles = ["{bundle}"]\nmax_texts = 1\nmax_calls = 1\nport = 1\n', encoding="utf-8")
    read = read_configuration(file, {"JUMOK_MAX_TEXTS": "2", "JUMOK_MAX_CALLS": "2"}, {"max_texts": "3", "port": None})
    settings = read.configuration
    assert (settings.max_texts, settings.max_calls, settings.port, settings.host) == (3, 2, 1, "127.0.0.1")
    assert settings.bundles == (bundle,)
    assert [read.given[name].origin for name in ("max_texts", "max_calls", "port")] == [
        "flag --max-texts",
        "environment JUMOK_MAX_CALLS",
        f"file {file}",
    ]


def test_every_setting_has_one_name_everywhere() -> None:
    assert variable("max_queue_tokens") == "JUMOK_MAX_QUEUE_TOKENS"
    assert flag("max_queue_tokens") == "--max-queue-tokens"
    assert flag("grace_s") == "--grace"
    assert len({flag(name) for name in NAMES}) == len(NAMES)


def test_the_defaults_are_those_of_the_parts(bundle: Path) -> None:
    settings = read_configuration(None, {}, {"bundles": (str(bundle),)}).configuration
    for limits in (EngineLimits(), ServiceLimits()):
        for name in set(vars(limits)) & set(NAMES):
            assert getattr(settings, name) == getattr(limits, name)
    assert set(vars(ServiceLimits())) <= set(NAMES)


def test_all_problems_are_listed_with_their_origin(file: Path) -> None:
    file.write_text("port = 70000\nreplicas = true\nprot = 1\n[limits]\nmax_texts = 1\n", encoding="utf-8")
    flags = {"max_texts": "0", "max_characters": "262145", "log_texts": True}
    found = problems(file, {"JUMOK_DEVICE": "gpu", "JUMOK_PROT": "1"}, **flags)
    for name, words in {
        f"prot (file {file}): unknown": "port",
        f"limits (file {file}): unknown": "jumok serve --help",
        "JUMOK_PROT (environment): unknown": "JUMOK_PORT",
        "bundles: none is given": "JUMOK_BUNDLES",
        f"port = 70000 (file {file})": "65535",
        f"replicas = True (file {file})": "number",
        "device = 'gpu' (environment JUMOK_DEVICE)": "'cpu', 'cuda' or 'auto'",
        "max_texts = '0' (flag --max-texts)": "greater than or equal to 1",
        "max_characters = '262145' (flag --max-characters)": "less than or equal to 262144",
        "log_texts": "log_requests",
    }.items():
        (problem,) = [one for one in found if one.startswith(name)]
        assert words in problem
    assert len(found) == 10


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tls_key": __file__}, "tls_key: needs tls_certificate too"),
        ({"tls_certificate": __file__}, "tls_certificate: needs tls_key too"),
        ({"tls_client_ca": __file__}, "tls_client_ca: needs tls_certificate too"),
        ({"tokens": __file__}, "tokens_without_tls"),
        ({"request_burst": "3"}, "request_burst: needs requests_per_second too"),
        ({"admin_port": "0"}, "admin_port: needs model_root too"),
        ({"port": "5000", "metrics_port": "5000"}, "metrics_port: 5000 is also port; give each its own port"),
        ({"model_root": "no-such-folder"}, "model_root = 'no-such-folder' (flag --model-root): is no folder"),
        ({"model_root": __file__}, "is no folder"),
        ({"requests_per_second": "0"}, "greater than 0"),
        ({"requests_per_second": "inf"}, "finite"),
        ({"grace_s": "nan"}, "finite"),
        ({"pivot": "plain English"}, "should be a language, such as en, or none"),
        ({"traces_endpoint": "localhost:4317"}, "should begin with http:// or https://"),
        ({"tls_certificate": "no-such-file", "tls_key": __file__}, "(flag --tls-certificate): is no file"),
        (
            {"tokens": "no-such-file", "tokens_without_tls": True},
            "is no file; make one with 'jumok token NAME --file no-such-file'",
        ),
    ],
)
def test_invalid_and_contradictory_settings_are_refused(bundle: Path, flags: dict[str, Any], words: str) -> None:
    (problem,) = problems(bundles=(str(bundle),), **flags)
    assert words in problem


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("JUMOK_MAX_TXTS", "the nearest known name is JUMOK_MAX_TEXTS"),
        ("JUMOK_DEVICES", "the nearest known name is JUMOK_DEVICE"),
        ("JUMOK_FOO", "'jumok serve --help' has all settings"),
        ("JUMOK_VERBOSITY", "'jumok serve --help' has all settings"),
    ],
)
def test_only_names_that_are_near_are_suggested(bundle: Path, name: str, words: str) -> None:
    assert problems(environment={name: "1"}, bundles=(str(bundle),)) == [f"{name} (environment): unknown; {words}"]


def test_each_wrong_bundle_is_named(bundle: Path, file: Path) -> None:
    found = problems(bundles=(str(bundle), "/no/such", str(bundle), __file__))
    assert found == [
        f"bundles = {path!r} (argument BUNDLE): is neither the folder of a bundle nor the name of a model, such as "
        "Helsinki-NLP/opus-mt-en-de"
        for path in ("/no/such", __file__)
    ]
    file.write_text(f'bundles = ["{bundle}", 5]\n', encoding="utf-8")
    (problem,) = problems(file)
    assert problem.startswith(f"bundles = 5 (file {file}): ")


def test_tokens_without_tls_can_be_allowed(bundle: Path) -> None:
    flags = {"bundles": (str(bundle),), "tokens": __file__, "tokens_without_tls": True}
    assert read_configuration(None, {}, flags).configuration.tokens == Path(__file__)


def test_a_file_that_is_no_toml_is_refused(file: Path, bundle: Path) -> None:
    file.write_text("port 1", encoding="utf-8")
    (problem,) = problems(file, bundles=(str(bundle),))
    assert problem.startswith(f"{file}: ")
    assert "line 1" in problem
    file.write_text("port = 1", encoding="utf-16")
    (problem,) = problems(file, bundles=(str(bundle),))
    assert problem == f"{file}: byte 1 is not UTF-8; save the file as UTF-8"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
        (lambda path: path.write_bytes(b"#" * (MAX_FILE_BYTES + 1)), "is too large"),
        (lambda path: path.write_text(f"port = {'[' * 10_000}"), "recursion"),
        (lambda path: path.write_text(f"port = {'1' * 5000}"), "integer string conversion"),
    ],
)
def test_what_is_no_file_of_settings_is_refused(
    file: Path, bundle: Path, make: Callable[[Path], object], words: str
) -> None:
    file.unlink(missing_ok=True)
    make(file)
    (problem,) = problems(file, bundles=(str(bundle),))
    assert problem.startswith(f"{file}: ") or str(file) in problem
    assert words in problem


def test_a_byte_order_mark_is_no_part_of_a_file(file: Path, bundle: Path) -> None:
    file.write_text(f'bundles = ["{bundle}"]\nport = 7\n', encoding="utf-8-sig")
    assert read_configuration(file, {}, {}).configuration.port == 7


def test_other_variables_are_ignored(bundle: Path) -> None:
    environment = {
        "JUMOK_SERVER": "a:1",
        "JUMOK_TOKEN": "secret",
        "JUMOK_NATIVE": "off",
        "JUMOK_PORT": "tcp://10.0.0.1:50051",  # as Kubernetes has it beside a Service named jumok
        "JUMOK_PORT_50051_TCP_ADDR": "10.0.0.1",
        "JUMOK_SERVICE_HOST": "10.0.0.1",
        "JUMOK_SERVICE_PORT_GRPC": "50051",
        "JUMOK_HOST": "",
        "PATH": "/bin",
    }
    read = read_configuration(None, environment, {"bundles": (str(bundle),)})
    assert list(read.given) == ["bundles"]


def test_a_server_with_a_model_root_needs_no_bundle(bundle: Path) -> None:
    read = read_configuration(None, {}, {"model_root": str(bundle.parent), "admin_port": "0"}).configuration
    assert (read.bundles, read.model_root, read.admin_port) == ((), bundle.parent, 0)


def test_bundles_of_the_environment_are_separated_as_in_path(bundle: Path) -> None:
    read = read_configuration(None, {"JUMOK_BUNDLES": f"{bundle}:{bundle.parent}"}, {})
    assert read.configuration.bundles == (bundle, bundle.parent)


def test_printed_configuration_reads_back(tmp_path: Path, file: Path) -> None:
    odd = tmp_path / 'ein "Bündel" \\ \U0001f600\x7f'
    odd.mkdir()
    flags = {"bundles": (str(odd),), "requests_per_second": "0.00001", "shortlist": True, "metrics_port": "0"}
    read = read_configuration(None, {}, flags)
    assert isinstance(read, Effective)
    file.write_text(read.toml(), encoding="utf-8")
    assert read_configuration(file, {}, {}).configuration == read.configuration
    written = tomllib.loads(read.toml())
    assert written.keys() == {name for name in NAMES if getattr(read.configuration, name) is not None}
    assert "shortlist = true  # flag --shortlist" in read.toml()


def test_command_prints_the_effective_configuration(bundle: Path, file: Path) -> None:
    file.write_text("max_texts = 7\n", encoding="utf-8")
    done = run_here("serve", bundle, "--config", file, "--print-config", "--port", "0")
    assert (done.returncode, done.stderr) == (0, b"")
    written = tomllib.loads(done.stdout.decode())
    assert (written["max_texts"], written["port"], written["bundles"]) == (7, 0, [str(bundle)])


def test_command_lists_all_problems() -> None:
    wrong = {
        "--port": "65536",
        "--replicas": "0",
        "--threads": "0",
        "--precision": "int3",
        "--max-batch-tokens": "0",
        "--grace": "-1",
    }
    done = run_here("serve", *chain.from_iterable(wrong.items()))
    assert (done.returncode, done.stdout) == (2, b"")
    for words in (*(f"(flag {name})" for name in wrong), "bundles: none"):
        assert words in done.stderr.decode()


def test_the_help_has_every_setting() -> None:
    shown = CliRunner().invoke(serve, ["--help"]).stdout
    for name, field in Configuration.model_fields.items():
        assert flag(name) in shown
        assert field.description
