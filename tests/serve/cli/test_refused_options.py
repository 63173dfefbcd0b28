"""Options of commands that are refused: one line, no output, and a server that goes on."""

from pathlib import Path

import pytest

from tests.support.command import run_here as run


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("translate", ["--beam-size", "0"], "beam_size must be at least 1 and at most 64, got 0"),
        ("translate", ["--beam-size", "65"], "beam_size must be at least 1 and at most 64, got 65"),
        ("translate", ["--beam-size", "99999999999"], "beam_size: must lie between -2147483648 and 2147483647, got"),
        ("translate", ["--beam-size", "2", "--num-hypotheses", "3"], "num_hypotheses must be at most beam_size"),
        ("translate", ["--length-penalty", "nan"], "length_penalty must be a finite number"),
        ("translate", ["--top-p", "2"], "top_p must be at least 1e-06 and at most 1, got 2.0"),
        ("translate", ["--seed", "99999999999999999999"], "seed: must lie between"),
        ("translate", ["--target-language", "xx"], "no target language 'xx'; it has de"),
        ("translate", ["--model", "other"], "model 'other' is not loaded"),
        ("translate", ["--timeout", "0.000001"], "no text was answered"),
        ("score", ["--length-penalty", "nan"], "length_penalty must be a finite number"),
        ("score", ["--model", "other"], "model 'other' is not loaded"),
        ("score", ["--source-language", "xx"], "no source language 'xx'; it has en"),
        ("attention", ["--layer", "7"], "layer must be 0 to 0, got 7: model 'tiny-en-de' has no other cross-attention"),
        ("attention", ["--model", "other"], "model 'other' is not loaded"),
        ("evaluate", ["--beam-size", "65"], "beam_size must be at least 1 and at most 64, got 65"),
        ("evaluate", ["--target-language", "xx"], "the model has no target language 'xx'; it has de"),
    ],
)
def test_a_refused_option_is_one_line(
    server: str, tiny_bundle: Path, tmp_path: Path, command: str, arguments: list[str], message: str
) -> None:
    lines, picture = tmp_path / "lines", tmp_path / "a.png"
    lines.write_text("a man\n", encoding="utf-8")
    needed = {
        "translate": ("--server", server, "a man"),
        "score": ("--server", server, "a man", "ein Mann"),
        "attention": ("--server", server, "a man", "--out", picture),
        "evaluate": (tiny_bundle, "--source", lines, "--reference", lines),
    }
    done = run(command, *arguments, *needed[command])
    assert (done.returncode, done.stdout) == (1, b"")
    (error,) = done.stderr.decode().splitlines()
    assert error.startswith("Error: ")
    assert message.lower() in error.lower()
    assert not picture.exists()
    assert run("translate", "--server", server, "--max-length", "2", "a man").returncode == 0
