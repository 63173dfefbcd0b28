"""Transfer of a checkpoint's tensors into a model, with a list of all problems."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from jumok_export.errors import listed
from jumok_export.graphs.storage import WeightsFile
from jumok_export.graphs.weights import all_finite

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Weights:
    """Tensors of a checkpoint; problems and unused tensors are collected.

    Args:
        tensors: tensors by name; all may have one prefix before the expected names, such as ``module.``.
        expected: names that the model may need; it needs at least one.
        kept: file for the tensors that are not mapped in float32; None: they are in memory.
        mapped: True if float32 tensors are mapped from a file.

    Attributes:
        left_out: prefix of all names of tensors that the expected names lack.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        expected: Sequence[str] = (),
        kept: WeightsFile | None = None,
        *,
        mapped: bool = True,
    ) -> None:
        self._kept = kept
        self._mapped = mapped
        self.left_out = _common_prefix(tensors, expected)
        self._tensors = _Renamed(tensors, self.left_out) if self.left_out else tensors
        self._taken: set[str] = set()
        self._problems: list[str] = []
        self._not_finite: list[str] = []

    @property
    def problems(self) -> list[str]:
        """Problems of the tensors that were taken."""
        if not self._not_finite:
            return self._problems
        values = f"NaN or infinite values are in {listed(self._not_finite)}: the weights are damaged"
        return [*self._problems, values]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        """Take a tensor in float32.

        A missing or unfit tensor becomes zeros and a noted problem.
        """
        if name not in self._tensors:
            self._problems.append(f"{name} is missing")
            return torch.zeros(()).expand(*shape)
        self._taken.add(name)
        tensor = self._tensors[name]
        if tuple(tensor.shape) != tuple(shape):
            self._problems.append(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
        elif tensor.dtype not in FLOATS:
            found = str(tensor.dtype).removeprefix("torch.")
            self._problems.append(f"{name} is {found}: import the original weights instead of quantized ones")
        else:
            values = tensor.detach().float().contiguous()
            if not all_finite(values.numpy()):
                self._not_finite.append(name)
            in_file = self._mapped and values.data_ptr() == tensor.data_ptr()
            return values if in_file or self._kept is None else self._kept.keep(values)
        return torch.zeros(()).expand(*shape)

    def same(self, one: str, other: str) -> bool:
        """True if two names have equal values."""
        if one == other:
            return True
        if one not in self._tensors or other not in self._tensors:
            return False
        first, second = self._tensors[one], self._tensors[other]
        return torch.equal(first, second) if first.dtype == second.dtype else torch.equal(first.float(), second.float())

    def tied(self, names: Sequence[str]) -> dict[str, str]:
        """Resolve the names of tied tensors to stored tensors.

        A name that is not stored gets the first stored one, in the order of `names`. Stored copies that differ stay
        different, as in transformers.
        """
        first = next((name for name in names if name in self._tensors), names[0])
        return {name: name if name in self._tensors else first for name in names}

    def take_copies(self, names: Sequence[str]) -> None:
        """Count those of `names` as taken whose tensors equal a taken one."""
        taken = [name for name in names if name in self._taken]
        self._taken |= {name for name in names if any(self.same(name, other) for other in taken)}

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of tensors that the model does not use."""
        return tuple(sorted(self._tensors.keys() - self._taken))

    def fill(self, model: nn.Module, stored_name: Callable[[str], str], given: Mapping[str, Tensor]) -> None:
        """Fill the parameters of a model on the "meta" device; tied parameters stay tied.

        Args:
            model: model with the expected names and shapes.
            stored_name: function from a parameter's name to its name in the checkpoint.
            given: parameters that are not stored in the model's form, by name.
        """
        taken: dict[int, nn.Parameter] = {}
        for name, parameter in list(model.named_parameters(remove_duplicate=False)):
            if id(parameter) not in taken:
                values = given[name] if name in given else self.take(stored_name(name), parameter.shape)
                taken[id(parameter)] = nn.Parameter(values, requires_grad=False)
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, taken[id(parameter)])


class _Renamed(Mapping[str, Tensor]):
    """Tensors by names without a prefix."""

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        self._tensors = tensors
        self._prefix = prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _common_prefix(tensors: Mapping[str, Tensor], expected: Sequence[str]) -> str:
    """Find the prefix that all names share, up to a dot, if an expected name follows it."""
    prefix = ""
    first = next(iter(tensors), "")
    while not any(prefix + name in tensors for name in expected):
        part, point, _ = first.removeprefix(prefix).partition(".")
        prefix += part + point
        if not point or not all(name.startswith(prefix) for name in tensors):
            return ""
    return prefix
