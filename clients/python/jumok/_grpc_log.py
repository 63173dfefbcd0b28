"""Silence of gRPC's own log in the command, whose errors say the same for users.

gRPC reads the variable when it is imported, so this module is imported before it. Programs that use the SDK keep the
log.
"""

import os
import sys
from pathlib import Path


def is_command() -> bool:
    """True in the process of ``jumok`` or ``python -m jumok``."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # Python puts the module's path there only after its package was imported
        return "jumok" in sys.orig_argv[sys.orig_argv.index("-m") :][1:2]
    return Path(program).name == "jumok"


if is_command():
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
