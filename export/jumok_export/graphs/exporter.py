"""Shortcuts in PyTorch's exporter: its graphs compute the same.

They replace internal functions of PyTorch and onnxscript. If a version lacks these, exports only take longer.
"""

import contextlib
import functools
import operator
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

_ASSERTIONS = (torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten._assert_scalar.default)
"""Operators that the exporter removes."""
_Replaced = tuple[Any, str, Any]


@contextlib.contextmanager
def quick_exporter() -> Iterator[None]:
    """Take the shortcuts within this context."""
    with contextlib.ExitStack() as restored:
        shortcuts = (
            _cached_operators,
            _needed_decompositions,
            _known_values,
            _possible_rewrites,
            _no_stack_traces,
            _no_descriptions,
        )
        for make in shortcuts:
            with contextlib.suppress(ImportError, AttributeError, KeyError):
                holder, name, value = make()
                restored.callback(setattr, holder, name, getattr(holder, name))
                setattr(holder, name, value)
        yield


@functools.cache  # the operators are kept from export to export
def _cached_operators() -> _Replaced:
    """Collect the ONNX forms of PyTorch's operators once, not for every graph, and parse none of them.

    The code of functions that are called while a graph is made would be parsed, and nothing but their domain be read.
    """
    from onnxscript.values import TracedOnnxFunction  # noqa: PLC0415
    from torch.onnx._internal import _lazy_import  # noqa: PLC0415 - PyTorch's own business, which may move

    operators = vars(_lazy_import)["onnxscript_apis"]
    collect, parsed = operators.get_torchlib_ops, vars(TracedOnnxFunction)["function_ir"]
    domain_alone = property(lambda function: SimpleNamespace(domain=function.opset.domain))

    @functools.cache
    def collected() -> Any:
        setattr(TracedOnnxFunction, "function_ir", domain_alone)  # noqa: B010 - to mypy it is a method
        try:
            return collect()
        finally:
            setattr(TracedOnnxFunction, "function_ir", parsed)  # noqa: B010

    return operators, "get_torchlib_ops", collected


def _needed_decompositions() -> _Replaced:
    """Decompose only programs with operators that have no ONNX form: this traces them again."""
    from torch.onnx._internal.exporter import _decomp, _fx_passes  # noqa: PLC0415

    decompose = _fx_passes.decompose_with_registry

    def needed(program: torch.export.ExportedProgram, registry: Any) -> torch.export.ExportedProgram:
        for node in program.graph.nodes:  # constants such as `torch.tensor(...)` are detached in place
            if node.target is torch.ops.aten.detach_.default:
                node.target = torch.ops.aten.detach.default
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


def _known_values() -> _Replaced:
    """Take the values of a traced program's nodes as known, instead of computing them again, to insert casts."""
    from torch.onnx._internal.fx.passes import type_promotion  # noqa: PLC0415

    interpreter = type_promotion._TypePromotionInterpreter
    compute = torch.fx.Interpreter.run_node

    def run_node(self: Any, node: torch.fx.Node) -> Any:
        with self._set_current_node(node):
            rule = type_promotion.get_type_promotion_rule(node, self.type_promotion_table)
            if rule:
                self._maybe_promote_node(node, rule)
        known = node.op == "call_function" and "val" in node.meta
        return node.meta["val"] if known else compute(self, node)

    return interpreter, "run_node", run_node


def _possible_rewrites() -> _Replaced:
    """Try a rewrite rule only at nodes of the operator that its pattern ends with."""
    from onnxscript.rewriter import _rewrite_rule  # noqa: PLC0415

    rewrite = _rewrite_rule.RewriteRule.try_rewrite

    def possible(rule: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        last = rule._target_pattern.output_nodes[0]
        return rewrite(rule, model, graph, node, **options) if last.op.matches(node.op_type) else None

    return _rewrite_rule.RewriteRule, "try_rewrite", possible


def _no_stack_traces() -> _Replaced:
    """Note no lines of the model's code at the nodes of a traced program."""
    return torch.fx.config, "do_not_emit_stack_traces", True


def _no_descriptions() -> _Replaced:
    """Describe no traced tensor beside its value, which has type and shape; memory formats are found by solving."""
    from torch.fx.experimental import proxy_tensor  # noqa: PLC0415

    return proxy_tensor, "_extract_tensor_metadata", lambda _: None
