"""Names of called methods that are no UTF-8: gRPC goes on after them.

One task of gRPC accepts all calls, and decodes the names of their methods. Where it cannot, it ends, and the server
with it: one frame of a stranger without a token is enough. gRPC has no option for this, so the error handler of codecs
is replaced, for this task alone.
"""

import asyncio
import codecs

ACCEPTING_TASK = "AioServer._server_main_loop"
"""Name of the coroutine of gRPC that accepts calls."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def accept_any_name() -> None:
    """Let gRPC's servers in this process replace bytes of methods' names that are no UTF-8; no method has such a name.

    Other code gets a `UnicodeDecodeError`, as before.
    """
    codecs.register_error("strict", _replace_in_names)


def _replace_in_names(error: UnicodeError) -> tuple[str | bytes, int]:
    if isinstance(error, UnicodeDecodeError) and _is_accepting():
        return REPLACEMENT, error.end
    return codecs.strict_errors(error)


def _is_accepting() -> bool:
    """Return True if gRPC's accepting task runs in this thread now."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return False
    return task is not None and getattr(task.get_coro(), "__qualname__", None) == ACCEPTING_TASK
