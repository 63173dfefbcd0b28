"""Bundles with right hashes and wrong content."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx
from onnx import helper


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a bundle, and make its sizes and hashes those of the files again."""
    file = bundle / "manifest.json"
    fields = json.loads(file.read_bytes())
    change(fields)
    for name, entry in fields["files"].items():
        path = bundle / name
        if path.is_file():
            content = path.read_bytes()
            entry.update(size=len(content), sha256=sha256(content).hexdigest())
    file.write_text(json.dumps(fields), encoding="utf-8")


def edit_graph(bundle: Path, file: str, change: Callable[[onnx.GraphProto], object]) -> None:
    """Change a graph of a bundle."""
    model = onnx.load(bundle / file, load_external_data=False)
    change(model.graph)
    (bundle / file).write_bytes(model.SerializeToString())
    edit_manifest(bundle, lambda _: None)


def loop_forever(graph: onnx.GraphProto) -> None:
    """Pass a graph's token ids through a loop that never ends."""
    ids = next(value for value in graph.input if value.name == "source_ids")
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["carried"], ["carried_out"]),
            helper.make_node("Identity", ["condition"], ["condition_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("iteration", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", onnx.TensorProto.INT64, None),
        ],
        [
            helper.make_tensor_value_info("condition_out", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried_out", onnx.TensorProto.INT64, None),
        ],
    )
    for node in graph.node:
        node.input[:] = ["looped_ids" if name == ids.name else name for name in node.input]
    always = onnx.helper.make_tensor("always", onnx.TensorProto.BOOL, [], [True])
    graph.initializer.append(always)
    graph.node.insert(0, helper.make_node("Loop", ["", "always", ids.name], ["looped_ids"], body=body))
