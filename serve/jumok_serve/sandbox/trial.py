"""The part that runs in the child: open a bundle, decode, score and align with it."""

import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from jumok_proto.errors import AttentionUnavailableError, ScoringUnavailableError
from jumok_serve.forks import end_with_parent

MAX_PROBLEMS = 100
MAX_CHARACTERS = 2000
"""Characters of a problem."""


def limit_process(*, memory_bytes: int, cpu_s: int) -> None:
    """Bound this process, and end it with its parent."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    end_with_parent()
    with suppress(OSError):  # if memory of a container runs out, this process must die and not the server
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def try_bundle(path: str, precision: str, *, shortlist: bool) -> list[str]:
    """Return the problems of a bundle: files, graphs, and decoding with each of the graphs."""
    from jumok_serve.errors import BundleError  # noqa: PLC0415 - after the limits
    from jumok_serve.translator import Translator  # noqa: PLC0415 - after the limits

    try:
        with Translator(path, precision=precision, replicas=1, threads=1, shortlist=shortlist) as translator:
            translator.warm_up()
            text = translator.tokenizer.decode([translator.manifest.special_tokens.eos[0]]) or "a"
            source, target = next(iter(translator.manifest.languages.all_pairs))
            with suppress(ScoringUnavailableError):
                translator.score(text, text, source_language=source, target_language=target, truncate=True)
            with suppress(AttentionUnavailableError):
                translator.align(text, text, source_language=source, target_language=target, truncate=True)
                translator.translate(  # opens the part of the aligner that places tags
                    f"<b>{text}</b>", source_language=source, target_language=target, markup="html", max_length=4
                )
    except BundleError as error:
        return list(error.problems)
    except BaseException as error:  # foreign files and graphs may fail in any way, by a library's panic too
        if isinstance(error.__cause__, BundleError):  # of a graph that is opened at its first use
            return list(error.__cause__.problems)
        return [f"using it fails: {error or repr(error)}"]
    return []


def main() -> None:
    """Read a request from standard input, and print the problems as a JSON list."""
    request = json.load(sys.stdin)
    limit_process(memory_bytes=request["memory_bytes"], cpu_s=request["cpu_s"])
    # Nothing but the answer goes to the caller: graphs may make libraries print without end.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    problems = try_bundle(request["bundle"], request["precision"], shortlist=request["shortlist"])
    json.dump([problem[:MAX_CHARACTERS] for problem in problems[:MAX_PROBLEMS]], answer)
    answer.flush()
    os._exit(0)  # threads of a bundle's graphs may still run


if __name__ == "__main__":
    main()
