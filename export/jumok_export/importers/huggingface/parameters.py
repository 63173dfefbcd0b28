"""A checkpoint's tensors, and how they get into a model: by name, in float32, with an account of what does not fit."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Weights:
    """The tensors of a checkpoint; what is wrong with them is gathered, and what nobody took is known.

    Args:
        tensors: by their names in the checkpoint.

    Attributes:
        problems: what is wrong so far.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._taken: set[str] = set()
        self.problems: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor in float32; zeros where it is missing or has another shape, which is noted."""
        if name not in self._tensors:
            self.problems.append(f"{name} is missing")
            return torch.zeros(()).expand(*shape)
        self._taken.add(name)
        tensor = self._tensors[name]
        if tuple(tensor.shape) != tuple(shape):
            self.problems.append(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
        elif tensor.dtype not in FLOATS:
            found = str(tensor.dtype).removeprefix("torch.")
            self.problems.append(f"{name} is {found}: import the original weights instead of quantized ones")
        else:
            return tensor.detach().float().contiguous()
        return torch.zeros(()).expand(*shape)

    def same(self, one: str, other: str) -> bool:
        """Whether two names stand for the same values."""
        if one == other:
            return True
        if one not in self._tensors or other not in self._tensors:
            return False
        first, second = self._tensors[one], self._tensors[other]
        return torch.equal(first, second) if first.dtype == second.dtype else torch.equal(first.float(), second.float())

    def tied(self, names: Sequence[str]) -> dict[str, str]:
        """Which stored tensor stands for each of some names of one tensor.

        All of them may be stored, or some: a name that is not takes the first one that is, in the order of `names`.
        Copies that differ from one another stay different, as they do when transformers loads them.
        """
        first = next((name for name in names if name in self._tensors), names[0])
        return {name: name if name in self._tensors else first for name in names}

    def understood(self, names: Sequence[str]) -> None:
        """Counts those of `names` as taken that are copies of others among them which are taken."""
        taken = [name for name in names if name in self._taken]
        self._taken |= {name for name in names if any(self.same(name, other) for other in taken)}

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of tensors that were not taken."""
        return tuple(sorted(self._tensors.keys() - self._taken))

    def fill(self, model: nn.Module, stored_name: Callable[[str], str], given: Mapping[str, Tensor]) -> None:
        """Gives a model on the "meta" device its parameters; tied parameters get one tensor again.

        Args:
            model: whose parameters tell the shapes that are expected.
            stored_name: from a parameter's name to that in the checkpoint.
            given: values of parameters that are not in the checkpoint as they are in the model.
        """
        taken: dict[int, nn.Parameter] = {}
        for name, parameter in list(model.named_parameters(remove_duplicate=False)):
            if id(parameter) not in taken:
                values = given[name] if name in given else self.take(stored_name(name), parameter.shape)
                taken[id(parameter)] = nn.Parameter(values, requires_grad=False)
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, taken[id(parameter)])
