"""Serve bundles in another process and translate through the SDK: ``python examples/demo.py [BUNDLE...]``."""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import jumok

MODELS = Path(__file__).resolve().parents[1] / "models"
BUNDLES = tuple(MODELS / name for name in ("multi30k-en-de-transformer", "software-en-de", "software-en-ko"))


class Texts(NamedTuple):
    """Texts to translate, and their markup."""

    texts: tuple[str, ...]
    markup: Literal["html"] | None = None


CAPTIONS = Texts(
    (
        "A man in a red jacket is riding a bicycle through the snow.",
        "Two children are playing football on the beach.",
        "A brown dog jumps over a wooden fence.",
        "An old woman is reading a newspaper on a park bench.",
    )
)
SOFTWARE = Texts(
    (
        "Click OK to close the dialog.",
        '<p>To insert a chart, click the <b>Chart</b> icon on the <a href="bar.html">Standard</a> bar.</p>',
    ),
    "html",
)
TEXTS = {"software-en-de": SOFTWARE, "software-en-ko": SOFTWARE}
"""Texts by model; all other models translate captions."""
START_S = 300.0
CALL_S = 60.0
STOP_S = 60.0


class DemoError(Exception):
    """A failure of the demonstration."""


@contextmanager
def serving(bundles: Sequence[Path]) -> Iterator[str]:
    """Serve bundles while the block runs; yields the address, and checks the exit code."""
    command = [sys.executable, "-m", "jumok", "serve", *map(str, bundles), "--port", "0"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):

        def failure(what: str) -> DemoError:
            log.seek(0)
            return DemoError(f"{what}; it wrote:\n{log.read().strip() or '(nothing)'}")

        assert server.stdout is not None
        # Killing a server that never prints its address ends the read.
        limit = threading.Timer(START_S, server.kill)
        limit.start()
        try:
            serving = re.match(r"serving on (\S+): ", server.stdout.readline())
            limit.cancel()
            if serving is None:
                code = server.wait(STOP_S)
                reason = f"did not start within {START_S:g} s" if code < 0 else f"ended with exit code {code}"
                raise failure(f"the server {reason}")
            yield serving[1]
            server.send_signal(signal.SIGTERM)
            if (code := server.wait(STOP_S)) != 0:
                raise failure(f"the server ended with exit code {code} after SIGTERM")
            log.seek(0)
            sys.stderr.writelines(line for line in log if " WARNING " in line)
        except subprocess.TimeoutExpired as error:
            raise failure(f"the server has not stopped within {STOP_S:g} s") from error
        finally:
            limit.cancel()
            server.kill()


def show(client: jumok.Client, model: str, texts: Texts) -> None:
    """Translate texts one by one, then all in one request, and print the times."""
    milliseconds = []
    for text in texts.texts:
        start = time.perf_counter()
        translation = client.translate(text, model=model, truncate=True, markup=texts.markup)
        milliseconds.append(1e3 * (time.perf_counter() - start))
        print(f"{milliseconds[-1]:7.1f} ms  {text}\n{'':10}  {translation.text}\n")
    start = time.perf_counter()
    together = client.translate(texts.texts, model=model, truncate=True, markup=texts.markup)
    together_ms = 1e3 * (time.perf_counter() - start)
    output_tokens = sum(translation.output_token_count for translation in together)
    count = len(texts.texts)
    print(f"{sum(milliseconds):7.1f} ms  {count} texts, one request each")
    print(f"{together_ms:7.1f} ms  {count} texts in one request: {output_tokens} tokens\n")


def main() -> None:
    """Run the demonstration; exit with code 1 and a reason if any part fails."""
    parser = argparse.ArgumentParser(description="Translate English texts through a server that this program starts.")
    parser.add_argument("bundles", metavar="BUNDLE", nargs="*", type=Path, help="default: three of the committed ones")
    bundles: list[Path] = parser.parse_args().bundles or [*BUNDLES]
    start = time.perf_counter()
    try:
        with serving(bundles) as address, jumok.Client(address, timeout_s=CALL_S) as client:
            models = client.list_models()
            print(f"served on {address}, ready after {time.perf_counter() - start:.1f} s\n")
            for model in models:
                languages = f"{', '.join(model.source_languages)} to {', '.join(model.target_languages)}"
                print(f"{model.name} {model.version}: {languages}, {model.precision} on {model.device}\n")
                show(client, model.name, TEXTS.get(model.name, CAPTIONS))
        print("The server has stopped after SIGTERM with exit code 0.")
    except (DemoError, jumok.JumokError) as error:
        sys.exit(f"demo failed: {error}")


if __name__ == "__main__":
    main()
