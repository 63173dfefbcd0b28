"""Marian's arithmetic of a student in NumPy, in the order in which its WebAssembly build computes.

intgemm multiplies activations that are shifted to 0 .. 254, and adds every two products in 16 bits. Sums beyond them
saturate in its kernels for SSSE3, AVX2 and WebAssembly; those with VNNI add in 32 bits. jumok always adds in 32 bits.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jumok_export.importers.marian.stored import OUTPUT_ALPHAS, MarianFile, Quantized
from jumok_export.models.positions import fairseq_positions

Floats = NDArray[np.float32]

LARGEST = 127
"""Largest quantized value, and the shift of activations."""
BOUNDS = np.iinfo(np.int16)
EPSILON = np.float32(1e-6)
_ONE = np.float32(1)


class Matrix:
    """A matrix in 8 bits with the multiplier of the activations before it.

    Args:
        values: int8, [N, K] with an even K.
        multiplier: of the values.
        alpha: multiplier of the activations.
        saturating: True if sums of two products saturate in 16 bits.
    """

    def __init__(self, values: NDArray[np.int8], multiplier: float, alpha: float, *, saturating: bool) -> None:
        self._values = values.T.astype(np.float64 if values.shape[1] > 2**9 else np.float32)  # their sums are exact
        self._alpha, of_values = np.float32(alpha), np.float32(multiplier)
        self._scale = _ONE / (self._alpha * of_values)
        of_shift = np.float32(LARGEST) / self._alpha * (np.float32(LARGEST) / of_values) / np.float32(LARGEST)
        self._shift = values.sum(axis=1, dtype=np.int64).astype(np.float32) * -of_shift
        exceeding = exceeding_pairs(values)
        self._columns, self._pairs = np.nonzero(exceeding if saturating else np.zeros_like(exceeding))
        self._weights = values.astype(np.int32).reshape(len(values), -1, 2)[self._columns, self._pairs]  # [pairs, 2]

    def times(self, rows: Floats, bias: Floats | None = None) -> Floats:
        """Multiply rows [M, K], and add a bias [N]."""
        quantized = np.clip(np.rint(rows * self._alpha), -LARGEST, LARGEST).astype(np.int32) + LARGEST
        sums = (quantized.astype(self._values.dtype) @ self._values).astype(np.int32)
        twos = quantized.reshape(len(rows), -1, 2)[:, self._pairs]
        products = (twos * self._weights).sum(axis=2)
        excess = products - np.clip(products, BOUNDS.min, BOUNDS.max)
        at, which = np.nonzero(excess)
        np.subtract.at(sums, (at, self._columns[which]), excess[at, which])
        added = self._shift if bias is None else self._shift + bias
        found: Floats = sums.astype(np.float32) * self._scale + added
        return found


def exceeding_pairs(values: NDArray[np.int8]) -> NDArray[np.bool_]:
    """True for two neighbours of values [N, K] whose products with activations can exceed 16 bits, [N, K / 2]."""
    pairs = values.astype(np.int32).reshape(len(values), -1, 2)
    most = 2 * LARGEST * np.maximum(pairs, 0).sum(axis=2)
    least = 2 * LARGEST * np.minimum(pairs, 0).sum(axis=2)
    exceeding: NDArray[np.bool_] = (most > BOUNDS.max) | (least < BOUNDS.min)
    return exceeding


def saturating_pairs(file: MarianFile) -> int:
    """Number of two neighbouring weights in the file whose products can exceed 16 bits."""
    matrices = {
        name: item.values for name, item in file.items.items() if isinstance(item, Quantized) and item.values.size > 1
    }
    return sum(int(exceeding_pairs(_by_output(name, values)).sum()) for name, values in matrices.items())


class StudentArithmetic:
    """A student with one embedding, SSRU in its decoder, and norms after its layers.

    Args:
        file: matrices in 8 bits, with alphas.
        heads: attention heads.
        saturating: see `Matrix`.
    """

    def __init__(self, file: MarianFile, *, heads: int, saturating: bool) -> None:
        items = file.items
        self._heads = heads
        self._vectors = {name: item.reshape(-1) for name, item in items.items() if not isinstance(item, Quantized)}
        self._matrices: dict[str, Matrix] = {}
        for name, item in items.items():
            alphas = map(file.alpha, OUTPUT_ALPHAS if name == "Wemb" else (name,))
            alpha = next((each for each in alphas if each is not None), None)
            if isinstance(item, Quantized) and alpha is not None:
                self._matrices[name] = Matrix(
                    _by_output(name, item.values), item.multiplier, alpha, saturating=saturating
                )
        embedding = items["Wemb"]
        assert isinstance(embedding, Quantized)
        self._embedding = embedding.values.astype(np.float32) * (_ONE / np.float32(embedding.multiplier))
        width = self._embedding.shape[1]
        self._embedding *= np.float32(math.sqrt(width))
        self._positions: Floats = fairseq_positions(512, width).numpy()
        self._depths = [sum(f"{side}_l{n}_ffn_W1" in items for n in range(1, 100)) for side in ("encoder", "decoder")]

    def translate(self, source: Sequence[int], limit: int, suppress: Sequence[int]) -> list[int]:
        """Decode greedily up to `limit` tokens; the end token 0 is not returned."""
        memory, state = self.encode(source), self.start()
        found: list[int] = []
        while len(found) < limit:
            logits = self.step(found[-1] if found else None, len(found), memory, state)
            logits[list(suppress)] = -np.inf
            token = int(logits.argmax())
            if token == 0:
                break
            found.append(token)
        return found

    def encode(self, source: Sequence[int]) -> list[tuple[Floats, Floats]]:
        """Compute keys and values of each of the decoder's layers, [heads, S, D]."""
        x = self._embedding[list(source)] + self._positions[: len(source)]
        for layer in range(1, self._depths[0] + 1):
            name = f"encoder_l{layer}_self"
            query, key, value = (self._split(self._affine(x, name, letter)) for letter in "qkv")
            x = self._norm(x + self._affine(self._attend(query, key, value), name, "o"), f"{name}_Wo")
            x = self._feed(x, f"encoder_l{layer}")
        names = [f"decoder_l{layer}_context" for layer in range(1, self._depths[1] + 1)]
        return [(self._split(self._affine(x, name, "k")), self._split(self._affine(x, name, "v"))) for name in names]

    def start(self) -> list[Floats]:
        """State of the decoder's layers before the first token."""
        return [np.zeros((1, self._embedding.shape[1]), np.float32) for _ in range(self._depths[1])]

    def step(
        self, token: int | None, position: int, memory: Sequence[tuple[Floats, Floats]], state: list[Floats]
    ) -> Floats:
        """Compute the logits [V] after a token, None at the start, and change the state."""
        x = self._positions[[position]]
        if token is not None:
            x = self._embedding[[token]] + x
        for index, (key, value) in enumerate(memory):
            name = f"decoder_l{index + 1}"
            candidate = self._matrices[f"{name}_rnn_W"].times(x)
            forget = _ONE / (_ONE + np.exp(-self._affine(x, f"{name}_rnn", "f")))
            state[index] = forget * state[index] + (_ONE - forget) * candidate
            x = self._norm(x + np.maximum(state[index], 0), f"{name}_rnn_ffn")
            query = self._split(self._affine(x, f"{name}_context", "q"))
            attended = self._affine(self._attend(query, key, value), f"{name}_context", "o")
            x = self._feed(self._norm(x + attended, f"{name}_context_Wo"), name)
        logits: Floats = self._matrices["Wemb"].times(x, self._vectors["decoder_ff_logit_out_b"])[0]
        return logits

    def _affine(self, x: Floats, name: str, letter: str) -> Floats:
        return self._matrices[f"{name}_W{letter}"].times(x, self._vectors[f"{name}_b{letter}"])

    def _feed(self, x: Floats, name: str) -> Floats:
        hidden = np.maximum(self._affine(x, f"{name}_ffn", "1"), 0)
        return self._norm(x + self._affine(hidden, f"{name}_ffn", "2"), f"{name}_ffn_ffn")

    def _norm(self, x: Floats, name: str) -> Floats:
        """Layer norm; sums are added from the first number to the last, as without vectors."""
        size = np.float32(x.shape[-1])
        centred = x - np.add.accumulate(x, axis=-1)[..., -1:] / size
        deviation = np.sqrt(np.add.accumulate(centred * centred, axis=-1)[..., -1:] / size + EPSILON)
        normal = self._vectors[f"{name}_ln_scale"] * (centred / deviation) + self._vectors[f"{name}_ln_bias"]
        return normal.astype(np.float32, copy=False)

    def _split(self, x: Floats) -> Floats:
        return x.reshape(len(x), self._heads, -1).transpose(1, 0, 2)

    @staticmethod
    def _attend(query: Floats, key: Floats, value: Floats) -> Floats:
        scores = np.matmul(query, key.transpose(0, 2, 1)) * np.float32(query.shape[-1] ** -0.5)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        attended: Floats = np.matmul(shares, value).transpose(1, 0, 2).reshape(query.shape[1], -1)
        return attended


def _by_output(name: str, values: NDArray[np.int8]) -> NDArray[np.int8]:
    """A matrix of Marian's as [N, K]; the embedding is stored so."""
    return values if name == "Wemb" else values.T
