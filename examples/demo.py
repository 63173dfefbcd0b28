"""Serve a bundle in another process and translate through the SDK: ``python examples/demo.py [BUNDLE]``."""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jumok

BUNDLE = Path(__file__).resolve().parents[1] / "models" / "multi30k-en-de-transformer"
SENTENCES = (
    "A man in a red jacket is riding a bicycle through the snow.",
    "Two children are playing football on the beach.",
    "A brown dog jumps over a wooden fence.",
    "An old woman is reading a newspaper on a park bench.",
    "Three people with umbrellas are waiting for the bus.",
    "A cook is cutting vegetables in a small kitchen.",
    "A girl in a yellow dress blows out the candles on her cake.",
    "Several musicians are playing on a stage in front of a large crowd.",
)
START_S = 60.0
CALL_S = 60.0
STOP_S = 60.0


class DemoError(Exception):
    """A failure of the demonstration."""


@contextmanager
def serving(bundle: Path) -> Iterator[str]:
    """Serve a bundle while the block runs; yields the address, and checks the exit code."""
    command = [sys.executable, "-m", "jumok", "serve", str(bundle), "--port", "0"]
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


def show(client: jumok.Client) -> None:
    """Translate sentences one by one, then all in one request, and print the times."""
    milliseconds = []
    for sentence in SENTENCES:
        start = time.perf_counter()
        translation = client.translate(sentence, truncate=True)
        milliseconds.append(1e3 * (time.perf_counter() - start))
        print(f"{milliseconds[-1]:7.1f} ms  {sentence}\n{'':10}  {translation.text}\n")
    start = time.perf_counter()
    together = client.translate(SENTENCES, truncate=True)
    together_ms = 1e3 * (time.perf_counter() - start)
    output_tokens = sum(translation.output_token_count for translation in together)
    print(f"{sum(milliseconds):7.1f} ms  {len(SENTENCES)} sentences, one request each")
    print(f"{together_ms:7.1f} ms  {len(SENTENCES)} sentences in one request: {output_tokens} tokens\n")


def main() -> None:
    """Run the demonstration; exit with code 1 and a reason if any part fails."""
    parser = argparse.ArgumentParser(
        description="Translate English sentences through a server that this program starts."
    )
    parser.add_argument("bundle", nargs="?", type=Path, default=BUNDLE, help="default: %(default)s")
    bundle: Path = parser.parse_args().bundle
    start = time.perf_counter()
    try:
        with serving(bundle) as address, jumok.Client(address, timeout_s=CALL_S) as client:
            (model,) = client.list_models()
            ready_s = time.perf_counter() - start
            languages = f"{', '.join(model.source_languages)} to {', '.join(model.target_languages)}"
            print(f"{model.name} {model.version}: {languages}, {model.precision} on {model.device}")
            print(f"served on {address}, ready after {ready_s:.1f} s\n")
            show(client)
        print("The server has stopped after SIGTERM with exit code 0.")
    except (DemoError, jumok.JumokError) as error:
        sys.exit(f"demo failed: {error}")


if __name__ == "__main__":
    main()
