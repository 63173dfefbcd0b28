"""``jumok attention`` against a real server and a real bundle."""

from pathlib import Path

import pytest
from matplotlib.image import imread

from jumok_serve.translator import Translator
from tests.support.command import run as run_process
from tests.support.command import run_here as run
from tests.support.command import serve
from tests.support.models.variants import edited, without


def test_a_server_and_a_bundle_give_the_same_picture(server: str, tiny_bundle: Path, tmp_path: Path) -> None:
    files = [tmp_path / "server.png", tmp_path / "bundle.PNG"]
    with Translator(tiny_bundle, threads=1) as translator:
        wanted = translator.translate("A dog runs.").text
    for place, file in zip((["--server", server], ["--bundle", str(tiny_bundle)]), files, strict=True):
        done = run_process("attention", "A dog runs.", *place, "--out", file)
        assert (done.returncode, done.stderr, done.stdout.decode()) == (0, b"", f"{wanted}\n")
    one, other = (imread(file) for file in files)
    assert one.shape == other.shape
    assert abs(one - other).max() <= 2 / 255  # weights may differ in their last bits


def test_options_of_the_figure(server: str, tmp_path: Path) -> None:
    shapes = {}
    for name, options in {
        "pieces": ["--pieces"],
        "words": ["--words"],
        "encoder": ["--kind", "encoder", "--layer", "0"],
        "decoder": ["--kind", "decoder", "--head", "1"],
        "heads": ["--each-head"],
    }.items():
        file = tmp_path / f"{name}.png"
        languages = ["--source-language", "en", "--target-language", "de", "--model", "tiny-en-de"]
        target = ["--target", "Ein braunes Pferd."]
        done = run("attention", "Photographs of it.", "--server", server, *target, *languages, *options, "--out", file)
        assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"Ein braunes Pferd.\n")
        shapes[name] = imread(file).shape
    assert len(set(shapes.values())) == len(shapes)


def test_truncated_text_is_reported_in_one_line(server: str, tmp_path: Path) -> None:
    long = "a man in a blue shirt " * 100
    done = run("attention", long, "--truncate", "--server", server, "--out", tmp_path / "a.png")
    assert done.returncode == 0
    (cut,) = done.stderr.decode().splitlines()
    assert cut == "Warning: the text: too long for the model, cut to 48 tokens"


def test_unknown_tokens_of_a_translation_are_reported(server: str, tmp_path: Path) -> None:
    done = run("attention", "A dog.", "--target", "Ein 猫 😀.", "--server", server, "--out", tmp_path / "a.png")
    assert done.returncode == 0
    (unknown,) = done.stderr.decode().splitlines()
    assert unknown.startswith("Warning: 2 of ")
    assert unknown.endswith(" tokens of the translation are unknown to the model (red)")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["A dog.", "--layer", "-1"], 2, "-1 is not in the range x>=0"),
        (["A dog.", "--kind", "self"], 2, "'self' is not one of"),
        ([" "], 1, "the text has no content: there is no attention to draw"),
    ],
)
def test_a_refusal_leaves_no_file(server: str, tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    done = run("attention", *arguments, "--server", server, "--out", tmp_path / "a.png")
    assert (done.returncode, done.stdout) == (code, b"")
    assert message in done.stderr.decode().splitlines()[-1]
    assert not (tmp_path / "a.png").exists()


def test_a_model_without_attention_says_so(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = edited(tiny_bundle, tmp_path / "plain", without("aligner"))
    with serve(bundle) as (_, address):
        for place in (["--server", address], ["--bundle", str(bundle)]):
            done = run("attention", "A dog.", *place, "--out", tmp_path / "a.png")
            assert (done.returncode, done.stdout) == (1, b"")
            (error,) = done.stderr.decode().splitlines()
            message = (
                "model 'tiny-en-de' has no attention to show: it decodes without, or has no aligner, which computes it"
            )
            assert error == f"Error: {message}"


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.PDF", b"%PDF-")])
def test_other_formats_go_by_the_ending(tiny_bundle: Path, tmp_path: Path, name: str, start: bytes) -> None:
    out = tmp_path / name
    done = run("attention", "A dog.", "--bundle", tiny_bundle, "--out", out)
    assert (done.returncode, done.stderr) == (0, b"")
    assert out.read_bytes().startswith(start)


@pytest.mark.parametrize("out", ["a.jpg", "a"])
def test_unknown_formats_are_refused(tmp_path: Path, out: str) -> None:
    done = run("attention", "A dog.", "--server", "127.0.0.1:1", "--out", tmp_path / out)
    assert done.returncode == 2
    assert "--out must end in .png, .svg, .pdf, got" in done.stderr.decode()


def test_missing_folder_is_named_before_the_call(tmp_path: Path) -> None:
    out = tmp_path / "pictures/a.png"
    done = run("attention", "A dog.", "--server", "127.0.0.1:1", "--out", out)
    assert done.returncode == 2
    assert f"--out {out}: the folder {out.parent} does not exist" in done.stderr.decode()
