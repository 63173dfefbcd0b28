"""A reader reads a folder again and again: ``python -m tests.faults.guided.replay MODULE:READER BUNDLE FOLDER``.

It prints the resident memory in MiB after each time. All that may stay is there after the first; what grows is a leak.
"""

import os
import sys
from pathlib import Path

from jumok_serve.forks import end_with_parent
from tests.faults.guided.reader import load

TIMES = 4


def main() -> None:
    """Read all inputs, and print the memory."""
    end_with_parent()
    reader = load(sys.argv[1], Path(sys.argv[2]))
    inputs = sorted(path for path in Path(sys.argv[3]).iterdir() if path.is_file())
    for _ in range(TIMES):
        for path in inputs:
            reader.read(path.read_bytes())
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        print(f"resident: {pages * os.sysconf('SC_PAGESIZE') >> 20} MiB", flush=True)


if __name__ == "__main__":
    main()
