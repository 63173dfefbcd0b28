"""A folder's inputs, read again: ``python -m tests.faults.guided.replay MODULE:READER BUNDLE FOLDER N MOST``.

It reads the same N inputs three times, each cut to MOST bytes, and prints the resident memory in MiB after each time.
The first time fills caches; memory that grows later is a leak.
"""

import os
import random
import sys
from pathlib import Path

from jumok_serve.forks import end_with_parent
from tests.faults.guided.reader import load

TIMES = 3


def main() -> None:
    """Read all inputs, and print the memory."""
    end_with_parent()
    name, bundle, folder, number, most = sys.argv[1:]
    reader = load(name, Path(bundle))
    inputs = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    for _ in range(TIMES):
        source = random.Random(1)
        for _ in range(int(number)):
            data = source.choice(inputs)
            reader.read((reader.mutate(data, source) or data)[: int(most)])
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        print(f"resident: {pages * os.sysconf('SC_PAGESIZE') >> 20} MiB", flush=True)


if __name__ == "__main__":
    main()
