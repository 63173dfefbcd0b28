"""Mutated bundles with right hashes: each is used or refused, and none crashes or hangs a server."""

import asyncio
import faulthandler
import json
import multiprocessing
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from benchmarks.common.progress import progress
from jumok_proto.errors import InvalidArgumentError
from jumok_serve.bundle.bundle import read_manifest
from jumok_serve.errors import BundleError, ModelFailedError
from jumok_serve.sandbox.checker import MEMORY_BYTES, BundleChecker
from jumok_serve.sandbox.trial import limit_process, try_bundle
from jumok_serve.translator import Translator
from tests.faults.tools.findings import Findings, Plan

CPU_S = 20
"""Limit of a trial, which takes less than a second otherwise."""
EACH_LARGE = 50
"""One bundle in this number is a copy of the plan's; the others are copies of a small one, which opens faster."""
EACH_BY_CHECKER = 50
"""One bundle in this number goes through the whole checker too; starting its process takes longer than the trial."""
NUMBERS = (0, 1, -1, 2, 3, 7, 127, 255, 2**15, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**63))


async def mutated_bundles(plan: Plan, findings: Findings) -> None:
    """Read manifests of mutated bundles, open them in child processes, and load those that pass."""
    with TemporaryDirectory(prefix="jumok-small-") as folder:
        small = await asyncio.to_thread(_make_small, Path(folder))
        outcomes = await asyncio.to_thread(try_mutated, plan.bundle, small, plan.messages, plan.seed)
    findings.tell("mutated bundles", outcomes.total())
    for (kind, outcome), count in sorted(outcomes.items()):
        findings.tell(f"{kind}: {outcome}", count)
    findings.tell("tried by the whole checker, in a process of its own", outcomes.checked)
    findings.expect_none("crashes and hangs of a load after a good trial", outcomes.failed)


class Outcomes(Counter[tuple[str, str]]):
    """Numbers of outcomes by kind of mutation.

    Attributes:
        checked: number of bundles that the checker saw too.
        failed: exceptions of the reader, and loads that failed although the trial was good.
    """

    def __init__(self) -> None:
        super().__init__()
        self.checked = 0
        self.failed: list[str] = []

    def of(self, outcome: str) -> int:
        """Return the number of an outcome, of all kinds."""
        return sum(count for (_, one), count in self.items() if one == outcome)


def _make_small(folder: Path) -> Path:
    """Make a bundle with all kinds of graphs and little to compute."""
    from benchmarks.common.random_marian import MarianSizes, make_checkpoint, sentences
    from jumok_export.importers.huggingface.importing import import_checkpoint
    from tests.parity.run import quiet

    sizes = MarianSizes(vocabulary=300, layers=1, width=32, feed_forward=64, heads=2, positions=64)
    with quiet():
        make_checkpoint(sizes, folder / "checkpoint")
        texts = sentences(sizes, 16, tokens=12, seed=1)
        import_checkpoint(folder / "checkpoint", folder / "small", name="small", calibration=texts)
    return folder / "small"


def try_mutated(large: Path, small: Path, count: int, seed: int) -> Outcomes:
    """Try mutated copies of two bundles."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    outcomes = Outcomes()
    with TemporaryDirectory(prefix="jumok-mutated-") as name:
        for number in range(count):
            folder = Path(name) / str(number)
            bundle = small if number % EACH_LARGE else large
            mutation = mutate(bundle, folder, random.Random(f"{seed} {number}"))
            outcome, failure = _try(context, folder)
            outcomes[mutation.partition(":")[0], outcome] += 1
            if failure:
                outcomes.failed.append(f"{number} {mutation}: {failure}")
            if number % EACH_BY_CHECKER == 0:
                outcomes.checked += 1
                verdicts = Path(name) / f"verdicts-{number}"  # none of another bundle with this manifest
                refused = _is_refused(BundleChecker(verdicts=verdicts, cpu_s=CPU_S), folder)
                if refused != (outcome not in {GOOD, NAN}):
                    outcomes.failed.append(f"{number} {mutation}: {outcome}, but the checker's refusal is {refused}")
            shutil.rmtree(folder)
            if number % 500 == 499:
                progress(f"{number + 1} mutated bundles: {dict(outcomes)}; failed: {outcomes.failed}")
    return outcomes


GOOD, BY_READER, BY_TRIAL = "good", "refused by the reader", "refused by the trial"
NAN = "computes NaN for a text"
"""Any finite weights may do so, for few texts: only these fail, with a documented error."""


def _try(context: Any, folder: Path) -> tuple[str, str]:
    """Do as a server: read the manifest, try the bundle in a child process, and load it if the trial was good.

    Returns:
        The outcome, and a failure that should not be.
    """
    faulthandler.dump_traceback_later(4 * CPU_S, exit=True)  # if the reader hangs
    try:
        read_manifest(folder)
    except BundleError:
        return BY_READER, ""
    except Exception as error:
        return BY_READER, f"reader: {error!r}"
    finally:
        faulthandler.cancel_dump_traceback_later()
    trial = _in_child(context, _trial, folder)
    if trial != GOOD:
        return (trial if trial == BY_TRIAL else f"stopped: {trial}"), ""
    load = _in_child(context, _load, folder)
    return (NAN, "") if load == NAN else (GOOD, "" if load == GOOD else f"load: {load}")


def _is_refused(checker: BundleChecker, folder: Path) -> bool:
    try:
        checker.check(folder)
    except BundleError:
        return True
    return False


def _in_child(context: Any, work: Callable[[str, Connection], None], folder: Path) -> str:
    """Return what work sends, or how its process ended."""
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(str(folder), theirs))
    child.start()
    theirs.close()
    child.join(4 * CPU_S)
    if child.is_alive():
        child.kill()
        child.join()
        return "hang"
    return str(ours.recv()) if ours.poll() else f"exit {child.exitcode}"


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _trial(folder: str, answer: Connection) -> None:
    _silence()
    limit_process(memory_bytes=MEMORY_BYTES, cpu_s=CPU_S)
    problems = try_bundle(folder, "auto", shortlist=False)
    answer.send(BY_TRIAL if problems else GOOD)
    os._exit(0)


def _load(folder: str, answer: Connection) -> None:
    """Open a bundle as a server does, and translate."""
    _silence()
    try:
        translator = Translator(folder, replicas=1, threads=2)
        translator.warm_up()
        translator.translate("A man in a blue shirt is standing on a ladder.", max_length=20)
    except InvalidArgumentError:  # a mutated limit or default that the text or its options exceed
        answer.send(GOOD)
    except ModelFailedError:
        answer.send(NAN)
    except Exception as error:
        answer.send(f"error {error!r}"[:300])
    else:
        answer.send(GOOD)
    os._exit(0)


def mutate(bundle: Path, folder: Path, source: random.Random) -> str:
    """Make a mutated copy with right sizes and hashes; unchanged files are links.

    Returns:
        A description of the mutation.
    """
    fields = json.loads((bundle / "manifest.json").read_bytes())
    for file in fields["files"]:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        os.link(bundle / file, folder / file)
    kinds = [_bytes, _bytes, _graph, _graph, _graph, _field, _field, _files]
    kind: Callable[[Path, Any, random.Random], str] = source.choice(kinds)
    what = kind(folder, fields, source)
    if source.random() < 0.95:  # else sizes and hashes are wrong
        files = fields.get("files")  # which may be the field that was changed
        for file, entry in files.items() if isinstance(files, dict) else ():
            if isinstance(entry, dict) and (folder / file).is_file() and (folder / file).stat().st_size < 2**30:
                content = (folder / file).read_bytes()
                entry.update(size=len(content), sha256=sha256(content).hexdigest())
    (folder / "manifest.json").write_text(json.dumps(fields), encoding="utf-8")
    return f"{kind.__name__[1:]}: {what}"


def _replace(path: Path, content: bytes) -> None:
    path.unlink()  # a link to the original
    path.write_bytes(content)


def _bytes(folder: Path, fields: Any, source: random.Random) -> str:
    """Change, cut or repeat bytes of one file."""
    file: str = source.choice(list(fields["files"]))
    content = bytearray((folder / file).read_bytes())
    for _ in range(source.choice((1, 1, 3, 30))):
        place = source.randrange(len(content))
        match source.randrange(4):
            case 0:
                content[place] ^= 1 << source.randrange(8)
            case 1:
                content[place : place + 8] = source.randbytes(8)
            case 2:
                del content[place : place + source.choice((1, 4, 1000))]
            case _:
                content[place:place] = content[place : place + source.choice((1, 4, 1000))]
        content = content or bytearray(1)
    _replace(folder / file, bytes(content))
    return file


def _graph(folder: Path, fields: Any, source: random.Random) -> str:
    """Change nodes, attributes, shapes or weights of one graph."""
    file = source.choice([file for file in fields["files"] if file.endswith(".onnx")])
    model = onnx.load(folder / file, load_external_data=False)
    graph, done = model.graph, []
    for _ in range(source.choice((1, 1, 2, 5))):
        if not graph.node:
            break
        node = source.choice(graph.node)
        weight = source.choice(graph.initializer or [onnx.TensorProto()])
        match source.randrange(8):
            case 0 if node.input:
                node.input[source.randrange(len(node.input))] = source.choice(
                    [*(one.name for one in graph.initializer), ""]
                )
            case 1 if len(node.output) > 1:
                node.output[source.randrange(len(node.output))] = ""
            case 2 if node.attribute:
                attribute = source.choice(node.attribute)
                attribute.i, attribute.f = source.choice(NUMBERS), source.choice((0.0, -1.0, 1e38, float("nan")))
            case 3 if weight.dims:
                weight.dims[source.randrange(len(weight.dims))] = source.choice(NUMBERS)
            case 4:
                del weight.dims[:]
                weight.dims.extend(source.choice(((0,), (), (0, 5), (1,), (1, 1, 1, 1, 1))))
            case 5:
                weight.data_type = source.choice((1, 2, 3, 6, 7, 9, 10, 11, 16, 99))
            case 6 if weight.external_data:
                entry = source.choice(weight.external_data)
                entry.value = source.choice(("0", "-1", str(2**62), "../../x", "/etc/passwd", "manifest.json"))
            case _:
                graph.node.remove(node)
        done.append(f"{node.op_type} {weight.name}"[:60])
    _replace(folder / file, model.SerializeToString())
    return f"{file} {done}"


def _field(_: Path, fields: Any, source: random.Random) -> str:
    """Change or remove one field of the manifest."""
    return change_field(fields, source)


def change_field(fields: Any, source: random.Random) -> str:
    """Change or remove one field of a JSON object at any depth; returns its path."""
    place, path = fields, []
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = source.choice(keys)
        path.append(str(key)[:30])
        if isinstance(place[key], dict | list) and place[key] and source.random() < 0.85:
            place = place[key]
            continue
        if source.random() < 0.2:
            del place[key]
        elif isinstance(place[key], str) and source.random() < 0.5:
            place[key] = source.choice(
                ("", "B", "E", "float32", "int8", "bool", "a" * 1000, "\x00", "logits", "tokens")
            )
        else:
            place[key] = source.choice((*NUMBERS, 0.5, None, True, [], {}, "x", [1, 2], 10**30))
        return ".".join(path)


def _files(folder: Path, fields: Any, source: random.Random) -> str:
    """Remove, exchange or add a file, or put something else in its place."""
    file, other = source.sample(list(fields["files"]), 2)
    path = folder / file
    match source.randrange(6):
        case 0:
            path.unlink()
        case 1:
            _replace(path, (folder / other).read_bytes())
        case 2:
            (folder / "more").write_bytes(b"x")
        case 3:
            path.unlink()
            os.mkfifo(path)
        case 4:
            path.unlink()
            path.symlink_to(source.choice(("/dev/zero", "/dev/stdin", "..", "/etc/passwd", path.name)))
        case _:
            path.unlink()
            with path.open("wb") as empty:
                empty.truncate(source.choice((0, 2**36)))
            fields["files"][file] = {"size": 2**36, "sha256": "0" * 64}
            return f"holes in {file}"
    return f"{file} {other}"
