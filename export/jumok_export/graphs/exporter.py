"""Shortcuts in PyTorch's exporter: its graphs compute the same.

They replace internal functions of PyTorch and onnxscript. If a version lacks these, exports only take longer.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

_ASSERTIONS = (torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten._assert_scalar.default)
"""Operators that the exporter removes."""
_Replaced = tuple[Any, str, Callable[..., Any]]


@contextlib.contextmanager
def quick_exporter() -> Iterator[None]:
    """Take the shortcuts within this context."""
    with contextlib.ExitStack() as restored:
        for make in (_cached_operators, _needed_decompositions, _possible_rewrites):
            with contextlib.suppress(ImportError, AttributeError, KeyError):
                holder, name, function = make()
                restored.callback(setattr, holder, name, getattr(holder, name))
                setattr(holder, name, function)
        yield


@functools.cache  # the operators are kept from export to export
def _cached_operators() -> _Replaced:
    """Parse the ONNX forms of PyTorch's operators once, not for every graph."""
    from torch.onnx._internal import _lazy_import  # noqa: PLC0415 - PyTorch's own business, which may move

    operators = vars(_lazy_import)["onnxscript_apis"]
    return operators, "get_torchlib_ops", functools.cache(operators.get_torchlib_ops)


def _needed_decompositions() -> _Replaced:
    """Decompose only programs with operators that have no ONNX form: this traces them again."""
    from torch.onnx._internal.exporter import _decomp, _fx_passes  # noqa: PLC0415

    decompose = _fx_passes.decompose_with_registry

    def needed(program: torch.export.ExportedProgram, registry: Any) -> torch.export.ExportedProgram:
        known = {*_decomp.get_onnx_implemented_overloads(registry), operator.getitem, *_ASSERTIONS}
        modules = list(program.graph_module.modules())
        called = [node.target for node in program.graph.nodes if node.op == "call_function"]
        if len(modules) == 1 and known.issuperset(called) and not any(map(_writes, called)):
            return program
        decomposed: torch.export.ExportedProgram = decompose(program, registry)
        return decomposed

    return _fx_passes, "decompose_with_registry", needed


def _writes(target: Any) -> bool:
    """True for an operator that changes its inputs."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _possible_rewrites() -> _Replaced:
    """Try a rewrite rule only at nodes of the operator that its pattern ends with."""
    from onnxscript.rewriter import _rewrite_rule  # noqa: PLC0415

    rewrite = _rewrite_rule.RewriteRule.try_rewrite

    def possible(rule: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        last = rule._target_pattern.output_nodes[0]
        return rewrite(rule, model, graph, node, **options) if last.op.matches(node.op_type) else None

    return _rewrite_rule.RewriteRule, "try_rewrite", possible
