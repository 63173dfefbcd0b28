"""``jumok score`` against a real server and a real bundle."""

import json

import pytest

from jumok_serve.translator import Translator
from tests.serve.cli.conftest import Places
from tests.support.command import run as run_process
from tests.support.command import run_here as run

LONG = "a man in a blue shirt " * 100


def test_a_pair_of_arguments_has_a_score(server: str, translator: Translator) -> None:
    done = run_process("score", "--server", server, "--length-penalty", "0.5", "A\tdog.", "Ein Hund.")
    assert (done.returncode, done.stderr) == (0, b"")
    wanted = translator.score("A\tdog.", "Ein Hund.", length_penalty=0.5)
    assert float(done.stdout) == pytest.approx(wanted.score, abs=1e-4)


def test_lines_of_pairs_are_scored_in_order(
    places: Places, translator: Translator, sentences: tuple[list[str], list[str]]
) -> None:
    given = "".join(f"{source}\t{target}\n" for source, target in zip(*sentences, strict=True)) * 4 + "\t\n"
    wanted = [score.score for score in translator.score(*sentences)] * 4 + [0.0]
    for place in places.values():
        languages = ["--source-language", "EN", "--target-language", "de"]
        done = run("score", *place, *languages, given=given.encode())
        assert (done.returncode, done.stderr) == (0, b"")
        assert [float(line) for line in done.stdout.splitlines()] == pytest.approx(wanted, abs=1e-4)


def test_json_holds_the_whole_result(server: str, translator: Translator) -> None:
    done = run("score", "--server", server, "--json", "--truncate", given=f"A dog\tEin Hund 😀\n{LONG}\tEin\n".encode())
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    wanted = translator.score("A dog", "Ein Hund 😀")
    assert (first["source"], first["target"]) == ("A dog", "Ein Hund 😀")
    assert first["score"] == pytest.approx(wanted.score, abs=1e-4)
    assert (first["tokens"], first["token_ids"]) == (list(wanted.tokens), list(wanted.token_ids))
    assert first["token_scores"] == pytest.approx(list(wanted.token_scores), abs=1e-4)
    assert (first["source_truncated"], second["source_truncated"]) == (False, True)
    assert second["source_token_count"] == translator.manifest.limits.max_source_length
    unknown, cut = done.stderr.decode().splitlines()
    assert unknown.startswith("Warning: standard input, line 1: 1 of ")
    assert cut.startswith("Warning: standard input, line 2: too long for the model, cut to ")


def test_unknown_tokens_are_warned_of_once_for_each_side(places: Places) -> None:
    given = "A dog\tEin 猫\n猫 dog\tEin Hund 😀 😀\n猫\tEin\n"
    for place in places.values():
        done = run("score", *place, given=given.encode())
        target, source = done.stderr.decode().splitlines()
        assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)
        assert target.startswith("Warning: standard input, line 1: 1 of ")
        assert "tokens of the translation are unknown to the model" in target
        assert source.startswith("Warning: standard input, line 2: 1 of ")
        done = run("score", *place, "--json", "A dog", "Ein 猫 😀")
        assert b"Warning: the text: 2 of " in done.stderr
        fields = json.loads(done.stdout)
        assert (fields["source_unknown_count"], fields["target_unknown_count"]) == (0, 2)


@pytest.mark.parametrize(
    ("given", "before", "message"),
    [
        (b"a\tb\nc\n", 1, "standard input, line 2: must be a text and its translation with one tab between, has 0"),
        (b"a\tb\tc\n", 0, "standard input, line 1: must be a text and its translation with one tab between, has 2"),
        (b"a\tb\n" + LONG.encode() + b"\tb\n", 1, "standard input, line 2: the text has"),
        (b"a\tb\nc\t" + LONG.encode() + b"\n", 1, "standard input, line 2: the target"),
        (b"a\tb\n\td\n", 1, "standard input, line 2: the text has no content"),
        (b"a\tb\xff\n", 0, "standard input, line 1: byte 4: 0xff is not UTF-8"),
    ],
)
def test_a_bad_line_is_named_and_those_before_it_are_scored(
    server: str, given: bytes, before: int, message: str
) -> None:
    done = run("score", "--server", server, given=given)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == before
    (error,) = done.stderr.decode().splitlines()
    assert error.startswith(f"Error: {message}")


def test_an_empty_input_has_an_empty_output(server: str) -> None:
    done = run("score", "--server", server)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
