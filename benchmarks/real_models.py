"""Export trained models of PyPI packages, serve them, and compare them with the packages' own output.

Each package is installed without its dependencies into a folder of its own. Its weights are mapped onto this project's
models, exported and verified. The bundle then answers in this process and through a gRPC server.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.common.progress import progress
from benchmarks.common.ratios import aligned
from benchmarks.pypi_models import PACKAGES
from benchmarks.pypi_models.package import Package, answers, importable
from jumok import Client
from jumok_export.bundles.export import export_bundle
from jumok_serve import Translator
from tests.support.servers.in_process_server import serving

FOLDER = Path(__file__).resolve().parents[1] / "build" / "real-models"
SEED = 11
CALIBRATION_TEXTS = 200
"""Other texts than those that are compared."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Texts of one model that equal the package's own output.

    Attributes:
        parameters: number of the model's weights.
        inputs: number of texts.
        fp32: equal texts in fp32, in this process.
        served: the same through the server.
        int8: equal texts in calibrated int8.
        agreement: share of tokens in which int8 agrees with fp32, from the manifest.
        differing: a text, the package's output and ours in fp32; empty if all are equal.
    """

    package: str
    kind: str
    parameters: int
    inputs: int
    fp32: int
    served: int
    int8: int
    agreement: float
    differing: tuple[str, ...] = ()


def compare(package: Package, folder: Path, inputs: int) -> Result:
    """Install, export, serve and compare one package's model."""
    progress(f"{package.name}: installing {package.requirement}")
    source = package.install(folder)
    texts = package.texts(SEED, inputs + CALIBRATION_TEXTS)
    compared = texts[:inputs]
    expected = answered(package, source, compared, folder / "answers" / f"{package.name}.json")
    with importable(source):
        mapped = package.mapped(source)
    progress(f"{package.name}: exporting and verifying")
    bundle = export_bundle(
        **vars(mapped),
        out=folder / "bundles" / package.name,
        name=package.name,
        calibration=texts[inputs:],
        overwrite=True,
        progress=progress,
    )
    with Translator(bundle.path, precision="fp32", threads=1) as translator, serving(translator) as address:
        ours = [translation.text for translation in translator.translate(compared)]
        with Client(address) as client:
            served = [translation.text for translation in client.translate(compared)]
    with Translator(bundle.path, precision="int8", threads=1) as translator:
        in_int8 = [translation.text for translation in translator.translate(compared)]
    differing = next((case for case in zip(compared, expected, ours, strict=True) if case[1] != case[2]), ())
    result = Result(
        package=package.name,
        kind=package.kind,
        parameters=bundle.manifest.architecture.parameters or 0,
        inputs=len(compared),
        fp32=equal(expected, ours),
        served=equal(expected, served),
        int8=equal(expected, in_int8),
        agreement=bundle.manifest.agreement["int8"].share,
        differing=differing,
    )
    progress(f"{package.name}: {result.fp32} of {len(compared)} equal in fp32, {result.int8} in int8")
    return result


def answered(package: Package, source: Path, texts: Sequence[str], file: Path) -> list[str]:
    """The package's own outputs, from a file if it has those of these texts: some packages take minutes."""
    asked = [package.requirement, *texts]
    if file.exists():
        known, outputs = json.loads(file.read_text(encoding="utf-8"))
        if known == asked:
            return list(outputs)
    progress(f"{package.name}: asking the package")
    outputs = answers(package.name, source, texts)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asked, outputs]), encoding="utf-8")
    return outputs


def equal(expected: Sequence[str], found: Sequence[str]) -> int:
    """Count equal texts."""
    return sum(ours == theirs for ours, theirs in zip(found, expected, strict=True))


def table(results: Sequence[Result]) -> str:
    """The results, one line a model."""
    head = ["package", "model", "weights", "inputs", "fp32", "served", "int8", "agreement"]
    rows = [
        [each.package, each.kind, f"{each.parameters:,}", str(each.inputs), str(each.fp32), str(each.served),
         str(each.int8), f"{100 * each.agreement:.1f} %"]
        for each in results
    ]  # fmt: skip
    return aligned([head, *rows])


def main() -> int:
    """Run the benchmark; returns 1 if a model's output differs in fp32."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=list(PACKAGES), help="packages to compare")
    parser.add_argument("--inputs", type=int, default=200, help="texts of each model")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of packages and bundles")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # faster than more for models of this size
    results = [compare(PACKAGES[name], arguments.folder, arguments.inputs) for name in arguments.packages]
    print(table(results))
    for each in results:
        if each.differing:
            print("{}: {!r} gives {!r}, here {!r}".format(each.package, *each.differing), file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in results], indent=2) + "\n", encoding="utf-8")
    return int(any({each.fp32, each.served} != {each.inputs} for each in results))


if __name__ == "__main__":
    sys.exit(main())
