"""Translate the lines of a file by ``translate_iter``, and drop the results: a job without its files.

``python -m benchmarks.scale.iterate SERVER FILE`` prints the number of results.
"""

import sys
from pathlib import Path

import jumok

TIMEOUT_S = 600.0


def main() -> None:
    """Iterate over all lines; raises the error of the first one that fails."""
    server, path = sys.argv[1], Path(sys.argv[2])
    with path.open(encoding="utf-8") as lines, jumok.Client(server, timeout_s=TIMEOUT_S) as client:
        count = 0
        for result in client.translate_iter(line.rstrip("\n") for line in lines):
            result.translation  # noqa: B018 - raises the error of the line
            count += 1
    print(count)


if __name__ == "__main__":
    main()
