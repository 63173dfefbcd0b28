"""``jumok translate`` against a real server and a real bundle: lines, white space, sentences, markup and options."""

import contextlib
import json
import os
import pty
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jumok.commands._line_requests import MAX_LINE_BYTES
from jumok.commands.translate import _SENTENCES
from jumok_serve.translator import Translator
from tests.serve.cli.conftest import Places
from tests.support.command import JUMOK, serve
from tests.support.command import run as run_process
from tests.support.command import run_here as run
from tests.support.hang import HANG_S

SHORT = ("--beam-size", "2", "--max-length", "5")
LONG = "a man in a blue shirt " * 100


def expected(translator: Translator, *texts: str) -> list[str]:
    return [" ".join(answer.text.split()) for answer in translator.translate(texts, beam_size=2, max_length=5)]


def lines(output: bytes) -> list[str]:
    text = output.decode()
    assert text == "" or text.endswith("\n")
    return [" ".join(line.split()) for line in text.removesuffix("\n").split("\n")] if text else []


def test_arguments_are_translated_a_line_each(server: str, translator: Translator) -> None:
    texts = ["a man in a blue shirt", "", "two young\nmales"]
    done = run_process("translate", "--server", server, *SHORT, *texts)
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines(done.stdout) == expected(translator, *texts)


def test_lines_of_standard_input_are_translated_in_order(server: str, translator: Translator) -> None:
    texts = [f"{'a man ' * (number % 4)}{number}" for number in range(700)]
    done = run("translate", "--server", server, *SHORT, given="\n".join(texts).encode())
    assert done.returncode == 0
    (warning,) = done.stderr.decode().splitlines()  # the tiny vocabulary has no digits
    assert warning.startswith("Warning: standard input, line 1: 1 of ")
    assert lines(done.stdout) == expected(translator, *texts)


def test_a_bundle_is_translated_with_as_a_server_is(tiny_bundle: Path, translator: Translator) -> None:
    done = run_process("translate", "--bundle", tiny_bundle, *SHORT, given=b"a man\n\ntwo young males\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines(done.stdout) == expected(translator, "a man", "", "two young males")


def test_candidates_are_written_with_number_rank_and_score(server: str, translator: Translator) -> None:
    done = run("translate", "--server", server, *SHORT, "--num-hypotheses", "2", "a man", "two")
    wanted = translator.translate(["a man", "two"], beam_size=2, max_length=5, num_hypotheses=2)
    rows = [line.split("\t") for line in done.stdout.decode().splitlines()]
    assert [(row[0], row[1]) for row in rows] == [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")]
    scores = [hypothesis.score for answer in wanted for hypothesis in answer.hypotheses]
    assert [float(row[2]) for row in rows] == pytest.approx(scores, abs=1e-4)
    assert [row[3] for row in rows] == [hypothesis.text for answer in wanted for hypothesis in answer.hypotheses]


def test_json_holds_the_whole_result(server: str, translator: Translator) -> None:
    done = run("translate", "--server", server, "--json", "--truncate", *SHORT, given=f"a man 😀\n{LONG}\n".encode())
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["source"], first["source_truncated"], second["source_truncated"]) == ("a man 😀", False, True)
    assert (first["source_unknown_count"], second["source_unknown_count"]) == (1, 0)
    assert second["source_token_count"] == translator.manifest.limits.max_source_length
    assert first["model"] == translator.name
    hypothesis = first["hypotheses"][0]
    assert len(hypothesis["tokens"]) == len(hypothesis["token_ids"]) == len(hypothesis["token_scores"])
    assert hypothesis["finish_reason"] in {"eos", "length"}
    assert (first["text"], first["score"]) == (hypothesis["text"], hypothesis["score"])


def test_every_option_reaches_the_model(places: Places, translator: Translator) -> None:
    options: list[tuple[list[str], dict[str, Any]]] = [
        (
            ["--no-repeat-ngram-size", "2", "--repetition-penalty", "1.3", "--early-stopping", "never"],
            {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "early_stopping": "never"},
        ),
        (
            ["--suppress-token", "4", "--suppress-token", "6", "--end-token", "15", "--forced-first-token", "53"],
            {"suppress_tokens": [4, 6], "end_tokens": [15], "forced_first_token": 53},
        ),
        (["--min-length", "3", "--length-penalty", "-1"], {"min_length": 3, "length_penalty": -1.0}),
        (
            ["--sample", "--temperature", "1.5", "--top-k", "30", "--top-p", "0.9", "--seed", "5"],
            {"sample": True, "temperature": 1.5, "top_k": 30, "top_p": 0.9, "seed": 5},
        ),
        (["--no-sample", "--source-language", "EN", "--target-language", "de"], {"sample": False}),
    ]
    for arguments, asked in options:
        wanted = translator.translate(["a man", "two"], max_length=6, **asked)
        for place in places.values():
            done = run("translate", *place, "--json", "--max-length", "6", *arguments, given=b"a man\ntwo\n")
            assert (done.returncode, done.stderr) == (0, b"")
            answers = [json.loads(line) for line in done.stdout.splitlines()]
            assert [answer["hypotheses"][0]["token_ids"] for answer in answers] == [
                list(answer.hypotheses[0].token_ids) for answer in wanted
            ]
            assert [(answer["source_language"], answer["target_language"]) for answer in answers] == [("en", "de")] * 2


def test_texts_of_several_sentences_are_split(places: Places, translator: Translator) -> None:
    wanted = " ".join(expected(translator, "a man.", "two males."))
    for place in places.values():
        done = run("translate", *place, *SHORT, "--split-sentences", "a man. two males.")
        assert (done.returncode, lines(done.stdout)) == (0, [wanted])


def test_a_bundle_is_used_in_the_precision_that_is_named(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, threads=1, precision="fp32") as translator:
        wanted = translator.translate("two young males", beam_size=2, max_length=5).score
    given: list[str | Path] = ["--json", *SHORT, "--bundle", tiny_bundle]
    whole = json.loads(run("translate", *given, "--precision", "fp32", "two young males").stdout)
    assert whole["score"] == pytest.approx(wanted, abs=1e-4)
    refused = run("translate", *given, "--shortlist", "two young males")
    assert refused.returncode == 1
    assert b"shortlist" in refused.stderr


def test_doubtful_texts_are_warned_of_once(places: Places) -> None:
    given = "a man\na 😀 man\n猫 猫\nA man. Two dogs run.\nHe sees it! Yes.\n".encode()
    unknown = "Warning: standard input, line 2: 1 of "
    sentences = "Warning: standard input, line 4 seems to have several sentences"
    for place in places.values():
        done = run("translate", *place, *SHORT, "--no-split-sentences", given=given)
        said = done.stderr.decode().splitlines()
        assert done.returncode == 0
        assert [line.startswith(start) for line, start in zip(said, (unknown, sentences), strict=True)] == [True, True]
        assert "tokens are unknown to the model" in said[0]
        split = run("translate", *place, *SHORT, given=given)
        assert len(split.stderr.splitlines()) == 1


def test_unknown_tokens_of_the_target_prefix_are_warned_of_once(places: Places) -> None:
    for place in places.values():
        done = run("translate", *place, *SHORT, "--json", "--target-prefix", "Ein 猫", given=b"a man\na dog\n")
        (warning,) = done.stderr.decode().splitlines()
        assert warning.startswith("Warning: standard input, line 1: the target prefix 'Ein 猫' has tokens that are unk")
        assert [json.loads(line)["prefix_unknown_count"] for line in done.stdout.splitlines()] == [1, 1]


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


@pytest.mark.parametrize(
    ("text", "several"),
    [
        ("A dog runs. Two women talk.", True),
        ("Wer? Niemand!", True),
        ("Das ist gut. Äpfel", True),
        ('He said "no." Then he left', True),
        ("猫です。犬です。", True),
        ("고양이가 잔다. 개가 잔다.", True),
        ("A dog runs.", False),
        ("a man . a dog .", False),
        ("Dr. Smith met J. R. Hartley", False),
        ("version 3.5 of e.g. this, no. 7", False),
        ("猫です。", False),
        ("", False),
    ],
)
def test_texts_of_several_sentences_are_recognised(text: str, several: bool) -> None:
    assert bool(_SENTENCES.search(text)) is several


def test_a_target_prefix_begins_every_translation(server: str, translator: Translator) -> None:
    done = run("translate", "--server", server, *SHORT, "--target-prefix", "Ein Mann", given=b"a man\n\ntwo\n")
    wanted = translator.translate(["a man", "", "two"], beam_size=2, max_length=5, target_prefix=["Ein Mann"] * 3)
    assert lines(done.stdout) == [" ".join(answer.text.split()) for answer in wanted]
    assert wanted[0].text.startswith("Ein Mann")
    done = run("translate", "--server", server, *SHORT, "--target-prefix", "Ein " * 60, "a man")
    assert (done.returncode, done.stdout) == (1, b"\n")
    assert done.stderr.startswith(b"Error: text 1: ")
    assert b"no room for another" in done.stderr


def test_json_has_attention_if_requested(server: str) -> None:
    done = run("translate", "--server", server, *SHORT, "--json", "--attention", "a man", "")
    first, empty = (json.loads(line) for line in done.stdout.splitlines())
    attention = first["hypotheses"][0]["attention"]
    assert len(attention) == len(first["hypotheses"][0]["tokens"])
    assert {len(row) for row in attention} == {len(first["source_tokens"])} == {first["source_token_count"]}
    assert (empty["source_tokens"], empty["hypotheses"][0]["attention"]) == ([], [])
    plain = json.loads(run("translate", "--server", server, *SHORT, "--json", "a man").stdout)
    assert "source_tokens" not in plain
    assert "attention" not in plain["hypotheses"][0]


def test_truncated_line_is_reported(server: str) -> None:
    done = run("translate", "--server", server, "--truncate", *SHORT, given=f"a\n{LONG}\n".encode())
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    (warning,) = done.stderr.decode().splitlines()
    assert warning.startswith("Warning: standard input, line 2: too long for the model, cut to ")


@pytest.mark.parametrize("place", ["server", "bundle"])
def test_bad_lines_are_named_and_all_others_are_translated(place: str, places: Places, translator: Translator) -> None:
    bad = {
        b"b\xff": "byte 2: 0xff is not UTF-8",
        b"\xed\xa0\x80": "byte 1: 0xed is not UTF-8",
        b"b\0": "",
        LONG.encode(): "the text has",
        b"x" * (MAX_LINE_BYTES + 9): f"longer than {MAX_LINE_BYTES} bytes",
    }
    given = b"a man\n" + b"".join(line + b"\ntwo\n" for line in bad) + b"males"
    done = run("translate", *places[place], *SHORT, "--no-cut-long-sentences", given=given)
    man, two, males = expected(translator, "a man", "two", "males")
    assert lines(done.stdout) == [man, *["", two] * len(bad), males]
    errors = done.stderr.decode().splitlines()
    for number, (error, message) in enumerate(zip(errors, bad.values(), strict=True), start=1):
        assert error.startswith(f"Error: standard input, line {2 * number}: {message}")
    assert done.returncode == 1


def test_json_says_what_is_wrong_with_a_line(server: str) -> None:
    done = run(
        "translate",
        "--server",
        server,
        *SHORT,
        "--json",
        "--no-split-sentences",
        given=f"a\n{LONG}\n".encode() + b"\xff\n",
    )
    translated, long, unreadable = (json.loads(line) for line in done.stdout.splitlines())
    assert (done.returncode, translated["source"]) == (1, "a")
    assert (long["source"], long["error"].startswith("the text has")) == (LONG, True)
    assert unreadable == {"source": None, "error": "byte 1: 0xff is not UTF-8 (invalid start byte); convert it"}


def test_an_argument_that_is_not_utf8_is_refused(server: str) -> None:
    done = subprocess.run(
        [*map(os.fsencode, JUMOK), b"translate", b"--server", server.encode(), b"a man", b"b\xff"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 2)
    assert done.stderr.decode().startswith("Error: text 2: holds a lone surrogate (U+DCFF at 1)")


def test_each_line_is_answered_before_the_next_is_typed(server: str, translator: Translator) -> None:
    wanted = expected(translator, "a man", "two young males")
    with subprocess.Popen(
        [*JUMOK, "translate", "--server", server, *SHORT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text, answer in zip(["a man", "two young males"], wanted, strict=True):
            process.stdin.write(f"{text}\n".encode())
            process.stdin.flush()
            assert lines(process.stdout.readline()) == [answer]
        process.stdin.close()
        assert process.stdout.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("end", ["Ctrl-C", "closed output"])
def test_it_ends_quietly(server: str, end: str) -> None:
    with subprocess.Popen(
        [*JUMOK, "translate", "--server", server, *SHORT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"a man\n")
        process.stdin.flush()
        process.stdout.readline()
        if end == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
            process.stdin.write(b"two\n")
            process.stdin.flush()
        assert process.wait(HANG_S) == (130 if end == "Ctrl-C" else 141)
        assert process.stderr.read() == b""


@pytest.mark.parametrize("piped", [False, True])
def test_progress_is_shown_on_a_terminal(server: str, tmp_path: Path, piped: bool) -> None:
    source = tmp_path / "source.txt"
    source.write_text("a man\n" * 300, encoding="utf-8")
    terminal, other_end = pty.openpty()
    with source.open("rb") as file, ThreadPoolExecutor(1) as pool:
        process = subprocess.Popen(
            [*JUMOK, "translate", "--server", server, *SHORT],
            stdin=subprocess.PIPE if piped else file,
            stdout=subprocess.PIPE,
            stderr=other_end,
        )
        os.close(other_end)
        reading = pool.submit(read_terminal, terminal)
        output, _ = process.communicate(source.read_bytes() if piped else None, timeout=HANG_S)
        shown = reading.result()
    assert process.returncode == 0
    assert output.count(b"\n") == 300
    assert b"translating" in shown
    assert (b"300" if piped else b"100%") in shown


def read_terminal(terminal: int) -> bytes:
    """Read a terminal until its other end closes, which Linux reports as an error."""
    shown = bytearray()
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 4096):
            shown += data
    os.close(terminal)
    return bytes(shown)
