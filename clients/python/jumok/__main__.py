"""The ``jumok`` command, also ``python -m jumok``."""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

from jumok._second_signal import end_at_second_signal


def main() -> NoReturn:
    """Run the command line and exit with its code; a second Ctrl-C or SIGTERM always ends the process."""
    end_at_second_signal()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, who then wants no output
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
    try:
        from jumok.commands._main import INTERRUPTED, run  # noqa: PLC0415 - not every installation has click
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print("jumok: the command line needs click; install it with: pip install 'jumok[cli]'", file=sys.stderr)
        sys.exit(2)
    code = run(sys.argv[1:])
    if code == INTERRUPTED:  # native threads may still compute, and would crash while libraries are taken down
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
