"""Arenas, and the separate memory that each thread computes in."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jumok_serve import native
from tests.support.hang import HANG_S
from tests.support.models.native_operators import COMPILER

KERNELS = native.LIBRARY.parent
DRIVER = Path(__file__).with_name("arena_driver.cc")
CHECKS = re.findall(r'^    \{"(\w+)", \w+\},$', DRIVER.read_text(encoding="utf-8"), re.MULTILINE)
assert CHECKS
LARGE_PAGE = 2**21
PRELUDE = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.process_memory import give_back_memory
from jumok_serve.runtime.sessions import session_options
from jumok_serve.runtime.tensors import as_value

values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negative", values[:1], values[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
session = onnxruntime.InferenceSession(
    model.SerializeToString(), session_options(1, CPU), providers=["CPUExecutionProvider"]
)

def negative(numbers):
    (made,) = session.run_with_ort_values(["y"], {"x": as_value(numbers)})
    assert (made.numpy() == -numbers).all()
    return made.data_ptr()

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
"""
"""A program's functions: the address of a computed -x [n], and the resident memory of the process, in bytes."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    made = tmp_path_factory.mktemp("arena") / "driver"
    sources = (DRIVER, KERNELS / "runtime/arena.cc")
    command = (COMPILER, "-std=c++17", "-O2", "-pthread", f"-I{KERNELS}", *map(str, sources), "-o", str(made))
    subprocess.run(command, check=True, timeout=HANG_S)
    return made


@pytest.mark.parametrize("check", CHECKS)
def test_an_arena(driver: Path, check: str) -> None:
    done = subprocess.run([driver, check], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr or f"ended by {done.returncode}"


def test_each_thread_computes_in_its_own_memory() -> None:
    """A thread reuses the memory that it has released; another thread takes no page of that memory."""
    places = printed_numbers(
        """
numbers = np.arange(1000, dtype=np.float32)
with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
    print(*(pool.submit(negative, numbers).result() for pool in (one, other, one, other)))
"""
    )
    assert places[:2] == places[2:]
    assert abs(places[0] - places[1]) >= LARGE_PAGE


def test_a_thread_keeps_memory_until_it_ends_or_memory_is_given_back() -> None:
    before, kept, returned, kept_again, ended = printed_numbers(
        """
numbers = np.ones(2**24, np.float32)
print(resident())
with ThreadPoolExecutor(1) as one:
    one.submit(negative, numbers).result()
    print(resident())
    give_back_memory()
    print(resident())
    one.submit(negative, numbers).result()
    system_thread = one.submit(threading.get_native_id).result()
    print(resident())
while Path(f"/proc/self/task/{system_thread}").exists():  # Python's has ended, and the system's is about to
    pass
print(resident())
"""
    )
    size, most_else = 2**26, 2**25
    for held in (kept, kept_again):
        assert held - before > size - most_else
    for rest in (returned, ended):
        assert rest - before < most_else


def printed_numbers(program: str) -> list[int]:
    """Run a program in a new process, where nothing has been computed, and return the numbers that it prints."""
    if native.library() is None:
        pytest.skip("there are no native kernels")
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split()]
