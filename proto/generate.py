"""Generate the protobuf and gRPC stubs, with their types, from the .proto files: ``python proto/generate.py``."""

import argparse
import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from shutil import which

from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent
# This protoc writes stubs that run on protobuf 6.30 to 7.x and on grpcio from 1.72.1 on; a newer one would force newer
# libraries on every user. Other releases also write other bytes, and the difference would drown a real change.
TOOLS = {"grpcio-tools": "1.72.1", "mypy-protobuf": "3.7.0"}


def generate(out: Path) -> None:
    """Write the stubs of all .proto files here into ``out``."""
    for name, wanted in TOOLS.items():
        if (found := version(name)) != wanted:
            raise SystemExit(f"stubs are generated with {name} {wanted}, found {found}: pip install {name}=={wanted}")
    protos = sorted((ROOT / "jumok_proto").rglob("*.proto"))
    services = [path for path in protos if "\nservice " in path.read_text(encoding="utf-8")]
    _protoc(out, protos, kinds=("python", "mypy"))
    _protoc(out, services, kinds=("grpc_python", "mypy_grpc"))


def _protoc(out: Path, protos: list[Path], kinds: tuple[str, str]) -> None:
    # pip puts the plugin beside this interpreter; looked up there, so that no environment need be activated.
    plugin = f"protoc-gen-{kinds[1]}"
    if (plugin_path := which(plugin, path=str(Path(sys.executable).parent))) is None:
        raise SystemExit(f"{plugin} is not installed: pip install 'jumok[dev]'")
    includes = (ROOT, ROOT / "third_party", files("grpc_tools") / "_proto")
    arguments = [*(f"-I{include}" for include in includes), f"--plugin={plugin}={plugin_path}"]
    arguments += [f"--{kind}_out={'quiet:' if kind == kinds[1] else ''}{out}" for kind in kinds]
    if protoc.main(["protoc", *arguments, *(str(path.relative_to(ROOT)) for path in protos)]) != 0:
        raise SystemExit("protoc failed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT, help="folder to write to (default: beside the .proto files)")
    generate(parser.parse_args().out)
