"""``jumok translate`` of texts with white space, several sentences and markup."""

from pathlib import Path

import pytest

from jumok_serve.translator import Translator
from tests.serve.cli.conftest import Places
from tests.support.command import run_here as run
from tests.support.command import serve

SHORT = ("--beam-size", "2", "--max-length", "5")


@pytest.mark.parametrize("place", ["server", "bundle"])
def test_white_space_and_separators_are_kept(place: str, places: Places, translator: Translator) -> None:
    first, second = (one.text for one in translator.translate(["A man.", "A dog."], beam_size=2, max_length=5))
    given = "A man.\x0cA dog.\r\n\r\n   \n\n\tA man.\u2028A dog. \rA dog.".encode()
    done = run("translate", *places[place], *SHORT, given=given)
    wanted = f"{first}\x0c{second}\r\n\r\n   \n\n\t{first}\u2028{second} \r{second}\n"
    assert (done.stdout.decode(), done.returncode) == (wanted, 0)


@pytest.mark.parametrize(
    ("settings", "splits"),
    [
        ([], True),
        (["--no-split-sentences"], False),
        (["--target-prefix", "a"], False),
        (["--num-hypotheses", "2"], False),
    ],
)
def test_sentences_are_split_unless_whole_texts_are_needed(
    settings: list[str], splits: bool, server: str, translator: Translator
) -> None:
    text = "A man in a shirt. A dog runs."
    done = run("translate", "--server", server, *SHORT, *settings, text)
    wanted = translator.translate(text, beam_size=2, max_length=5, split_sentences=True).text
    assert (wanted in done.stdout.decode()) == splits


def test_a_text_of_too_many_sentences_fails_alone(places: Places) -> None:
    given = f"A man.\n{'Go! ' * 5000}\nA dog.\n".encode()
    for where in places.values():
        done = run("translate", *where, "--beam-size", "1", "--max-length", "1", given=given)
        assert [bool(line.strip()) for line in done.stdout.splitlines()] == [True, False, True]
        (error,) = done.stderr.decode().splitlines()
        assert error.startswith("Error: standard input, line 2: a request takes at most 4096 sentences")
        assert done.returncode == 1


def test_a_text_too_large_for_the_queue_fails_alone(tiny_bundle: Path) -> None:
    with serve(tiny_bundle, "--max-queue-requests", "20") as (_, address):
        given = f"A man.\n{'A dog. ' * 30}\nA dog.\n".encode()
        done = run("translate", "--server", address, "--beam-size", "1", "--max-length", "1", given=given)
        assert [bool(line.strip()) for line in done.stdout.splitlines()] == [True, False, True]
        assert "line 2: a request takes at most 20 sentences" in done.stderr.decode()


def test_a_document_is_translated_as_a_whole(server: str, places: Places, tmp_path: Path) -> None:
    page = '<ul class="a>b">\n  <li>A <b>man</b>\r\n  sleeps.</li>\n</ul>\n<pre>not\n this</pre>'
    (tmp_path / "page.html").write_bytes(page.encode())
    command = ("translate", *SHORT, "--markup", "html")
    by_server = run(*command, *places["server"], "--input", tmp_path / "page.html")
    by_bundle = run(*command, *places["bundle"], given=page.encode())
    for done in (by_server, by_bundle):
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(b'<ul class="a>b">\n  <li>')
        assert done.stdout.endswith(b"</li>\n</ul>\n<pre>not\n this</pre>")
        assert done.stdout.count(b"<b>") == done.stdout.count(b"</b>") == 1
    several = run("translate", "--server", server, *SHORT, "--markup", "xml", "<b>A man</b>", "<b>", "<x/>")
    assert several.stdout.splitlines()[1:] == [b"", b"<x/>"]
    assert b"Error: text 2: the text is not well-formed XML: " in several.stderr
    wrong = run("translate", "--server", server, "--ignore-tag", "x", "A man")
    assert (wrong.returncode, b"rules for tags need --markup" in wrong.stderr) == (2, True)
