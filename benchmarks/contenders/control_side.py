"""Control of measurements after rests: threads that only read memory, as much as a model's weights."""

import argparse
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.contenders.worker import Run, Task, serve

BYTES = 40 * 2**20
"""Memory that is read in each pass: the weights of a decoder of OPUS-MT's size in int8."""


def main() -> None:
    """Read memory once for each target token; a thread on each core has its part, and waits for the others."""
    parser = argparse.ArgumentParser(description="The control of a benchmark of rests.")
    parser.add_argument("threads", type=int)
    threads = parser.parse_args().threads
    cores = sorted(os.sched_getaffinity(0))
    together = threading.Barrier(threads)

    def read(number: int, passes: int) -> None:
        os.sched_setaffinity(0, {cores[number % len(cores)]})  # of this thread
        for _ in range(passes):
            parts[number].max()
            together.wait()

    parts = [np.ones(BYTES // threads // 8, np.int64) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:

        def prepare(task: Task) -> Run:
            def run() -> list[list[str]]:
                list(pool.map(read, range(threads), [task.max_length] * threads))
                return []

            run()
            return run

        serve(prepare)


if __name__ == "__main__":
    main()
