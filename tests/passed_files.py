"""Print the own Python files that one warm request passes: gRPC's TranslateText, LibreTranslate, TranslateFile.

    python -m tests.passed_files

Counts functions that are called in all threads of a server with default settings; generated files do not count.
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

from jumok import Client

ROOT = Path(__file__).parents[1]
BUNDLE = ROOT / "models/multi30k-en-de-transformer"
PACKAGES = ("proto/", "serve/")
TEXT = "A man in a blue shirt is standing on a ladder."
WATCHED = """
import json, pathlib, signal, sys, threading
passed, root, output = set(), sys.argv[1], pathlib.Path(sys.argv[2])

def note(frame, event, argument):
    if event == "call":
        passed.add(frame.f_code.co_filename)

def write(number, frame):
    files = sorted(name for name in list(passed) if name.startswith(root) and "_pb2" not in name)
    part = output.with_suffix(".part")
    part.write_text(json.dumps(files))
    part.rename(output)

signal.signal(signal.SIGUSR1, lambda number, frame: (passed.clear(), output.unlink(missing_ok=True)))
signal.signal(signal.SIGUSR2, write)
threading.setprofile(note)
sys.setprofile(note)
sys.argv = ["jumok", "serve", sys.argv[3], "--port", "0", "--http-port", "0"]
from jumok.__main__ import main
main()
"""


def passed_files(server: "subprocess.Popen[str]", output: Path, ask: Callable[[], object]) -> list[str]:
    """Return the files that a request passes, after one like it."""
    ask()
    server.send_signal(signal.SIGUSR1)
    while output.exists():
        time.sleep(0.01)
    ask()
    server.send_signal(signal.SIGUSR2)
    while not output.exists():
        time.sleep(0.01)
    files: list[str] = json.loads(output.read_text(encoding="utf-8"))
    own = (str(Path(name).relative_to(ROOT)) for name in files)
    return [name for name in own if name.startswith(PACKAGES)]


def main() -> None:
    """Serve, ask, and print."""
    with tempfile.TemporaryDirectory() as folder:
        output, text = Path(folder) / "passed.json", Path(folder) / "a.txt"
        output.write_text("[]", encoding="utf-8")
        text.write_text(TEXT, encoding="utf-8")
        command = (sys.executable, "-c", WATCHED, str(ROOT), str(output), str(BUNDLE))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            try:
                assert server.stdout is not None
                line = server.stdout.readline()
                over_http = re.search(r"HTTP on (\S+?),?\s", line)
                address = re.search(r"on (127\.0\.0\.1:\d+)", line)
                assert over_http is not None, line
                assert address is not None, line
                form = b"q=" + TEXT.replace(" ", "+").encode() + b"&source=en&target=de"
                with Client(address[1]) as client:
                    for name, ask in (
                        ("TranslateText", lambda: client.translate(TEXT)),
                        ("LibreTranslate", lambda: urlopen(Request(f"http://{over_http[1]}/translate", form)).read()),
                        ("TranslateFile", lambda: client.translate_file(text, Path(folder) / "a.de.txt")),
                    ):
                        files = passed_files(server, output, ask)
                        print(f"{name}: {len(files)} files", *files, sep="\n  ")
            finally:  # also when its output is read no more
                server.terminate()


if __name__ == "__main__":
    main()
