"""Print a package's own outputs: JSON lists of texts come in and go out."""

import json
import sys
from pathlib import Path

from benchmarks.pypi_models import PACKAGES
from benchmarks.pypi_models.package import importable

if __name__ == "__main__":
    name, folder = sys.argv[1:]
    with importable(Path(folder)):
        answer = PACKAGES[name].answer(Path(folder))
        print("\n" + json.dumps([answer(text) for text in json.load(sys.stdin)]))
