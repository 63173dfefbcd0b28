"""What comes of a step for many searches at once, natively: NumPy takes many calls for it."""

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jumok_serve.native import address, function, pointer


class Others(NamedTuple):
    """The slots of searches that cannot just run on, and the continuations that they are to look at.

    These are `number` for each, one search behind the other: best first, or where a search sees the best of every row
    first these, by row. `undefined` says whether some of them, or of the slots without a search,
    have candidates without numbers.
    """

    slots: list[int]
    number: int
    tokens: list[int]
    scores: list[float]
    rows: list[int]
    undefined: bool = False


NO_OTHERS = Others([], 0, [], [], [])


class _Searches(ctypes.Structure):
    """``Searches`` of ``kernels/searches.cc``, by the names that `Asked` has for its arrays."""

    _fields_ = (
        ("beam_size", ctypes.c_int64),
        ("most_kept", ctypes.c_int64),
        ("most_ends", ctypes.c_int64),
        ("tokens", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("_steady", ctypes.c_void_p),
        ("_needed", ctypes.c_void_p),
        ("_present", ctypes.c_void_p),
        ("_ends", ctypes.c_void_p),
        ("_kept_tokens", ctypes.c_void_p),
        ("_kept_scores", ctypes.c_void_p),
        ("_kept_rows", ctypes.c_void_p),
    )


_ARGUMENTS = (
    *(ctypes.POINTER(_Searches), ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64),
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 4),
)


def native_step(beam_size: int, arrays: Mapping[str, NDArray[Any]]) -> "NativeStep | None":
    """The step over some arrays of `Asked`; None where there is no library of native kernels."""
    run_on = function("jumok_run_on", _ARGUMENTS)
    return None if run_on is None else NativeStep(run_on, beam_size, arrays)


class NativeStep:
    """A step of searches.

    Args:
        run_on: the native function.
        beam_size: K.
        arrays: of `Asked`, by name, which stay where they are.
    """

    def __init__(self, run_on: Any, beam_size: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._run_on = run_on
        self._arrays = dict(arrays)  # addresses keep nothing alive
        named = {name: address(array) for name, array in arrays.items() if name in dict(_Searches._fields_)}
        self._searches = _Searches(
            beam_size=beam_size,
            most_kept=arrays["_kept_tokens"].shape[1],
            most_ends=arrays["_ends"].shape[1],
            **named,
        )
        self._reserve(0)

    def _reserve(self, number: int) -> None:
        """Has room for so many continuations of every slot."""
        slots = len(self._arrays["tokens"])
        self._others: NDArray[np.int64] = np.zeros(slots, np.int64)
        self._tokens: NDArray[np.int64] = np.zeros(slots * number, np.int64)
        self._scores: NDArray[np.float32] = np.zeros(slots * number, np.float32)
        self._rows: NDArray[np.int64] = np.zeros(slots * number, np.int64)
        self._found = [address(array) for array in (self._others, self._tokens, self._scores, self._rows)]

    def run_on(
        self,
        slots: NDArray[np.int64],
        tokens: NDArray[np.int64],
        totals: NDArray[np.float32],
        time: int,
        number: int,
    ) -> Others:
        """See `Asked.run_on`, after so many steps; the others are to see so many continuations."""
        if len(slots) * number > len(self._tokens):
            self._reserve(number)
        candidates = tokens.shape[1]
        tokens, totals = np.ascontiguousarray(tokens, np.int64), np.ascontiguousarray(totals, np.float32)
        count = self._run_on(
            *(self._searches, pointer(slots), len(slots), candidates),
            *(pointer(tokens), pointer(totals), time, number, *self._found),
        )
        if not count:
            return NO_OTHERS
        undefined, count = count < 0, abs(count)
        end = count * number
        return Others(
            self._others[:count].tolist(),
            number,
            self._tokens[:end].tolist(),
            self._scores[:end].tolist(),
            self._rows[:end].tolist(),
            undefined,
        )
