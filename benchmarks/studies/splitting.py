"""Measure the splitting of texts into sentences: boundaries, time by length, and what hostile texts cost others.

Sentences with abbreviations, ordinals, quotations and lists are made from the parts in `splitting.toml`, so their
boundaries are known. A boundary is the end of a sentence inside of a line. Those of this package and those of the
library alone, sentencex, are compared with the known ones. A marker of a list is no sentence.
"""

import argparse
import asyncio
import random
import re
import statistics
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import sentencex
from matplotlib.figure import Figure

import jumok
from benchmarks.common.processes import serving
from benchmarks.common.progress import progress
from benchmarks.common.ratios import aligned, percentile
from jumok_serve.text.sentence_splitting import sentence_spans, split

PARTS = Path(__file__).with_suffix(".toml")
SEED = 1
MARKERS = ("{}.", "{})", "({})", "{}.1.", "•", "-")
"""Markers of items of lists; braces stand for the item's number."""
KINDS = {"English sentences": "", "opening quotation marks": "\u201c", "initials": "A. ", "one word": "a"}
"""Texts whose splitting is timed, as repeated characters; empty: made sentences."""
ORDINARY = "A man is riding a bicycle in the street."
USUAL = {"an ordinary text": ORDINARY, "an ordinary one as long": (f"{ORDINARY[:-1]} and " * 2500)[:100_000]}
"""Texts of another caller beside whom latencies are usual; the second is as long as freezing ones, and truncated."""
FREEZING = {"wide space before a full stop": "A\u202f.", "100,000 opening quotation marks": "\u201c" * 100_000}
"""Texts that made the library panic, and hold Python's lock for seconds."""
CALLS = 300
"""Calls of the caller whose latencies are measured."""
PATIENCE_S = 4.0
"""The library is not timed on texts that are longer than one that took this long."""


@dataclass(frozen=True)
class Line:
    """A line of text, and the ends of its sentences but the last."""

    text: str
    ends: frozenset[int]


def made_lines(language: str, sentences: int, seed: int = SEED) -> list[Line]:
    """Make lines with a number of sentences: paragraphs, lists with an item a line, and lists inside of a line."""
    parts = tomllib.loads(PARTS.read_text(encoding="utf-8"))[language]
    chosen = random.Random(f"{seed} {language}")
    lines: list[Line] = []
    count = 0
    while count < sentences:
        number = min(chosen.randint(2, 6), sentences - count)
        count += number
        shape = chosen.choice(("paragraph", "paragraph", "paragraph", "lines", "list inside"))
        if shape == "paragraph":
            lines.append(_line([_sentence(parts, "sentences", chosen) for _ in range(number)]))
            continue
        marker = chosen.choice(MARKERS if shape == "lines" else MARKERS[:3])
        items = [f"{marker.format(place + 1)} {_sentence(parts, 'items', chosen)}" for place in range(number)]
        if shape == "lines":
            lines += [_line([item]) for item in items]
        else:
            lines.append(_line([item if item.endswith(".") else f"{item}." for item in items]))
    return lines


def _line(sentences: Sequence[str]) -> Line:
    ends = accumulate(len(one) + 1 for one in sentences)
    return Line(" ".join(sentences), frozenset(end - 1 for end in [*ends][:-1]))


def _sentence(parts: Mapping[str, Sequence[str]], kind: str, chosen: random.Random) -> str:
    def part(found: re.Match[str]) -> str:
        name = found[1]
        if name == "year":
            return str(chosen.randint(1700, 2020))
        return re.sub(r"\{(\w+)\}", part, chosen.choice(parts[name]))

    text = re.sub(r"\{(\w+)\}", part, chosen.choice(parts[kind]))
    text = re.sub(r"(?<=[^.]\.)\.$", "", text)  # of an abbreviation at the end
    if kind == "sentences" and text[-1] not in '.!?…"”“»':
        text += "."
    return text[0].upper() + text[1:]


def ends_of_library(text: str, language: str) -> set[int]:
    """Return the ends of all sentences but the last that the library finds."""
    parts = sentencex.segment(language, text)
    ends = [start + len(part.rstrip()) for start, part in zip(accumulate([0, *map(len, parts)]), parts, strict=False)]
    return set(ends[:-1])


def ends_of_package(text: str, language: str) -> set[int]:
    """Return the ends of all sentences but the last that this package finds."""
    found = split(text, language)
    lengths = (len(kept) + len(sentence) for kept, sentence in zip(found.kept, found.sentences, strict=False))
    return set([*accumulate(lengths)][:-1])


def boundary_f1(lines: Sequence[Line], language: str, find: Callable[[str, str], set[int]]) -> float:
    """Return the F1 of found boundaries, in percent."""
    right = total = 0
    for line in lines:
        ends = find(line.text, language)
        right += len(ends & line.ends)
        total += len(ends) + len(line.ends)
    return 200 * right / total


def compare(sentences: int) -> None:
    """Print the F1 of all languages."""
    rows = [["language", "sentences", "boundaries", "library", "jumok"]]
    for language in tomllib.loads(PARTS.read_text(encoding="utf-8")):
        lines = made_lines(language, sentences)
        boundaries = sum(len(line.ends) for line in lines)
        shares = [boundary_f1(lines, language, find) for find in (ends_of_library, ends_of_package)]
        rows.append([language, f"{sentences}", f"{boundaries}", *(f"{share:.1f}" for share in shares)])
    print(aligned(rows))


def texts_of(kind: str, lengths: Sequence[int]) -> Iterator[str]:
    """Yield texts of one line by their lengths."""
    unit = KINDS[kind]
    if not unit:
        unit = " ".join(line.text for line in made_lines("en", 2000)) + " "
    for length in lengths:
        yield (unit * (length // len(unit) + 1))[:length]


def seconds_by_length(kind: str, lengths: Sequence[int]) -> dict[str, list[float]]:
    """Measure the processor time of splitting texts, as this package and as the library alone does it."""
    seconds: dict[str, list[float]] = {"jumok": [], "library": []}
    for text in texts_of(kind, lengths):
        started = time.process_time()
        for _ in sentence_spans(text, "en"):
            pass
        seconds["jumok"].append(time.process_time() - started)
        if max(seconds["library"], default=0.0) < PATIENCE_S and len(seconds["library"]) == len(seconds["jumok"]) - 1:
            started = time.process_time()
            sentencex.segment("en", text)
            seconds["library"].append(time.process_time() - started)
    return seconds


def draw(lengths: Sequence[int], seconds: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Draw times by length on logarithmic scales."""
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, name in zip(axes, ("jumok", "library"), strict=True):
        for kind, of_kind in seconds.items():
            axis.plot(
                [length / 1000 for length in lengths[: len(of_kind[name])]], of_kind[name], marker=".", label=kind
            )
        axis.set(xscale="log", yscale="log", xlabel="thousand characters", title=name)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds of processor time")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


async def beside_freezing_texts(bundle: Path) -> None:
    """Print the latencies of one caller alone, and while another sends ordinary or freezing texts without a pause."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            serving("jumok", "serve", bundle, "--host", "::", "--port", "0", "--precision", "int8")
        )
        port = server.address.rpartition(":")[2]
        # Callers without tokens are told apart by their addresses.
        usual = await stack.enter_async_context(jumok.AsyncClient(f"[::1]:{port}"))
        other = await stack.enter_async_context(jumok.AsyncClient(f"127.0.0.1:{port}"))

        async def latencies() -> list[float]:
            taken = []
            for _ in range(CALLS):
                started = time.perf_counter()
                await usual.translate(ORDINARY, beam_size=4)
                taken.append(time.perf_counter() - started)
            return taken

        await latencies()
        for name, text in (USUAL | FREEZING).items():
            alone = await latencies()
            answered: list[float] = []
            over = asyncio.Event()

            async def send(text: str = text, answered: list[float] = answered, over: asyncio.Event = over) -> None:
                while not over.is_set():
                    started = time.perf_counter()
                    try:
                        await other.translate(text, truncate=True)
                    except jumok.InvalidArgumentError as error:
                        progress(str(error)[:100])
                    answered.append(time.perf_counter() - started)

            sending = asyncio.create_task(send())
            beside = await latencies()
            over.set()
            await sending
            print(
                f"{name}: {len(answered)} answers in {statistics.median(answered):.3f} s at the median, "
                f"{max(answered):.3f} s at most; p99 of another caller {1e3 * percentile(alone, 99):.1f} ms alone, "
                f"{1e3 * percentile(beside, 99):.1f} ms beside"
            )


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=2000, help="sentences of each language")
    parser.add_argument("--picture", type=Path, help="PNG file for times by length, up to a million characters")
    parser.add_argument("--bundle", type=Path, help="measure a server of this bundle beside freezing texts")
    options = parser.parse_args()
    compare(options.sentences)
    if options.picture is not None:
        lengths = [1000 * 2**power for power in range(11)]
        seconds = {kind: seconds_by_length(kind, lengths) for kind in KINDS}
        for kind, of_kind in seconds.items():
            shown = {name: " ".join(f"{one:.3f}" for one in of_one) for name, of_one in of_kind.items()}
            print(f"{kind}: {shown}")
        draw(lengths, seconds, options.picture)
    if options.bundle is not None:
        asyncio.run(beside_freezing_texts(options.bundle))


if __name__ == "__main__":
    main()
