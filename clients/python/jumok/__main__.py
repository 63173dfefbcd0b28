"""The ``jumok`` command, also ``python -m jumok``."""

import os
import sys
from typing import NoReturn

from jumok.commands._second_signal import end_at_second_signal


def main() -> NoReturn:
    """Run the command line and exit with its code; a second Ctrl-C or SIGTERM always ends the process."""
    end_at_second_signal()
    if sys.stdout is None:  # closed by the caller, who then wants no output
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    try:
        from jumok.commands._main import run  # noqa: PLC0415 - not every installation has click
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print("jumok: the command line needs click; install it with: pip install 'jumok[cli]'", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
