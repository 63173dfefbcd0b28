"""The jumok command: sub-commands, missing extras, one line and an exit code per failure."""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

import pytest

import jumok
from tests.support.command import run_here
from tests.support.hang import HANG_S


def command(*arguments: str, absent: Sequence[str] = (), setup: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a process where some packages cannot be imported."""
    program = f"""
import sys
for name in {list(absent)!r}:
    sys.modules[name] = None
sys.argv = ["jumok", *{list(arguments)!r}]
{setup}
from jumok.__main__ import main
main()
"""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def check_one_line(done: subprocess.CompletedProcess[str], said: str, code: int = 1) -> None:
    """Check that a command has failed with one line that says something."""
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_version_is_that_of_the_package() -> None:
    module = subprocess.run([sys.executable, "-m", "jumok", "--version"], capture_output=True, text=True, check=True)
    for done in (command("--version"), module):
        assert (done.returncode, done.stdout) == (0, f"jumok, version {jumok.__version__}\n")


def test_without_click_the_command_names_the_extra() -> None:
    said = "jumok: the command line needs click; install it with: pip install 'jumok[cli]'\n"
    check_one_line(command("--help", absent=["click"]), said, code=2)


SERVER = ["numpy", "onnxruntime", "pydantic"]
"""Packages that an installation for clients lacks, as it lacks those below."""
EXPORTS = ["torch", "lightning", "onnx", "onnxscript"]


@pytest.mark.parametrize(
    ("arguments", "absent", "extra"),
    [
        (["serve", "bundle"], ["onnxruntime"], "serve"),
        (["inspect", "bundle"], ["pydantic"], "serve"),
        (["evaluate", "/", "--source", __file__, "--reference", __file__], ["sacrebleu"], "serve,evaluate"),
        (["translate", "--bundle", "/", "text"], ["onnxruntime"], "serve"),
        (["score", "--bundle", "/", "text", "Text"], ["onnxruntime"], "serve"),
        (["attention", "--bundle", "/", "text", "--out", "a.png"], ["onnxruntime"], "serve"),
        (["attention", "text", "--out", "a.png"], ["matplotlib"], "plot"),
        *(([name, "x"], EXPORTS, "serve,export") for name in ("add-native", "ensemble", "export", "train")),
        (["import", "x"], EXPORTS, "serve,import"),
    ],
)
def test_a_missing_package_names_its_extra(arguments: list[str], absent: list[str], extra: str) -> None:
    said = f"needs {absent[0]}, which is not installed; install it with: pip install 'jumok[{extra}]'"
    check_one_line(command(*arguments, absent=absent), said)


NAMES = sorted(entry_points(group="jumok.commands").names)
HELP_OF_ALL = f"""
import json, sys
for name in {[*SERVER, *EXPORTS, "matplotlib"]}:
    sys.modules[name] = None
from tests.support.command import run_here
found = {{name: run_here(name, "--help") for name in {NAMES}}}
print(json.dumps({{name: (one.returncode, one.stdout.decode(), one.stderr.decode()) for name, one in found.items()}}))
"""


@pytest.fixture(scope="module")
def help_without_extras() -> dict[str, tuple[int, str, str]]:
    """Exit code, output and errors of the help of each command where no extra is installed."""
    command = [sys.executable, "-c", HELP_OF_ALL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    return {name: tuple(each) for name, each in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_its_help_without_extras(
    name: str, help_without_extras: dict[str, tuple[int, str, str]]
) -> None:
    whole = run_here(name, "--help").stdout.decode()
    code, shown, errors = help_without_extras[name]
    assert (code, errors) == (0, "")
    if shown == whole:
        return
    description, _, reason = " ".join(shown.split()).partition(" Its options are not listed, because it needs ")
    described = description.partition(" ... ")[2]
    assert described
    assert described in " ".join(whole.split())
    assert reason.startswith("numpy, which is not installed; install it with: pip install 'jumok[serve]'")
    assert entry_points(group="jumok.commands")[name].module.startswith("jumok_serve.")


def test_the_help_lists_commands_of_missing_packages() -> None:
    done = command("--help", absent=SERVER)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == command("--help").stdout


def test_lists_of_commands_cut_no_description_off() -> None:
    for group in ([], ["admin"], ["glossary"]):
        assert b"..." not in run_here(*group, "--help").stdout.partition(b"Commands:")[2]


def test_a_broken_installation_differs_from_a_missing_one() -> None:
    broken = "sys.modules['onnxruntime'] = type(sys)('onnxruntime')"
    done = command("serve", "bundle", setup=broken)
    assert done.returncode == 1
    assert "'jumok serve' cannot be loaded: " in done.stderr
    assert "pip install" not in done.stderr


def test_a_command_of_another_version_says_so() -> None:
    """As in an editable installation after a change of the sources."""
    stale = (
        "import importlib.metadata as m; m.entry_points = lambda **_: "
        "m.EntryPoints([m.EntryPoint('old', 'jumok.commands.health:gone', 'jumok.commands')])"
    )
    said = "Error: 'jumok old' is of another version of jumok: install jumok again\n"
    check_one_line(command("old", setup=stale), said)
    assert command("--help", setup=stale).returncode == 0


def test_a_shell_completes_commands_and_options() -> None:
    def completions(words: str) -> list[str]:
        index = len(words.split(" ")) - 1
        asked = (
            f"import os; os.environ.update(_JUMOK_COMPLETE='bash_complete', COMP_WORDS={words!r}, COMP_CWORD='{index}')"
        )
        done = command(setup=asked)
        assert done.stderr == ""
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert completions("jumok tra") == ["train", "translate", "translate-corpus", "translate-file"]
    assert "--split-sentences" in completions("jumok translate --sp")
    script = command(setup="import os; os.environ['_JUMOK_COMPLETE'] = 'zsh_source'")
    assert script.returncode == 0
    assert "#compdef jumok" in script.stdout


def test_importing_the_server_package_names_its_extra() -> None:
    program = "import sys; sys.modules['onnxruntime'] = None; import jumok_serve"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.endswith("needs onnxruntime, which is not installed; install it with: pip install 'jumok[serve]'")


def test_the_sdk_imports_only_what_it_depends_on() -> None:
    program = "import sys; known = set(sys.modules); import jumok; print(*(set(sys.modules) - known))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    packages = {module.partition(".")[0] for module in done.stdout.split()}
    assert {"jumok", "jumok_proto", "grpc", "google"} <= packages
    assert packages.isdisjoint({"click", "jumok_export", "jumok_serve", "numpy", "pydantic", "sentencepiece", "torch"})


def test_a_command_imports_no_other_package() -> None:
    setup = "import atexit; atexit.register(lambda: print(sorted({m.partition('.')[0] for m in sys.modules})))"
    done = command("translate", "--help", setup=setup)
    imported = done.stdout.splitlines()[-1]
    assert "'jumok_proto'" in imported
    for package in ("jumok_serve", "jumok_export", "numpy", "torch", "onnxruntime"):
        assert f"'{package}'" not in imported


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tranlate"], "No such command 'tranlate'. Did you mean 'translate'?"),
        (["import_", "--help"], "No such command 'import_'. Did you mean 'import'?"),
        (["quux"], "No such command 'quux'."),
        (["translate", "--precision", "int8", "x"], "--precision needs --bundle: a server has its own"),
        (["score", "--no-shortlist", "a", "b"], "--shortlist needs --bundle: a server has its own"),
        (["translate", "--beam-size", "many", "x"], "'many' is not a valid integer"),
        (["translate", "--timeout", "0", "x"], "'--timeout'"),
        (["translate", "--bundle", "/", "--server", "h:1", "x"], "--bundle excludes --server"),
        (["translate", "--bundle", "/", "--model", "m", "x"], "--bundle excludes --model"),
        (["translate", "--bundle", "/", "--wait", "1", "x"], "--bundle excludes --wait"),
        (["translate", "--wait", "soon", "x"], "not a valid float"),
        (["translate", "--input", __file__, "x"], "give texts, or --input"),
        (["translate", "--input", "/no/such/file"], "does not exist"),
        (["translate", "--output", "/"], "is a directory"),
        (["translate", "--attention", "x"], "--attention needs --json"),
        (["translate", "--suppress-token", "the", "x"], "'the' is not a valid integer"),
        (["translate", "--early-stopping", "soon", "x"], "'soon' is not one of"),
        (["score", "--bundle", "/", "--server", "h:1", "x", "y"], "--bundle excludes --server"),
        (["score", "x"], "give SOURCE and TARGET, or nothing for standard input; got 1 argument\n"),
        (["score", "x", "y", "z"], "got 3 arguments"),
        (["score", "--input", __file__, "x", "y"], "give SOURCE and TARGET, or --input"),
        (["attention", "x"], "Missing option '--out'"),
        (["attention", "--bundle", "/", "--server", "h:1", "x", "--out", "a.png"], "--bundle excludes --server"),
    ],
)
def test_usage_errors_are_explained(arguments: list[str], message: str) -> None:
    done = run_here(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"Usage: jumok")
    assert message in done.stderr.decode()


def test_an_unreachable_server_of_the_environment_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUMOK_SERVER", "127.0.0.1:2")
    check_one_line(command("translate", "x"), "Error: cannot reach a server at 127.0.0.1:2: ")


def test_closed_standard_input_is_one_line() -> None:
    done = subprocess.run(
        f"{sys.executable} -m jumok translate <&-", shell=True, capture_output=True, text=True, check=False
    )
    check_one_line(done, "Error: ")


def test_an_empty_input_has_an_empty_output() -> None:
    done = command("translate", "--server", "127.0.0.1:1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
