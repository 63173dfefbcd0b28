"""Shortlists, and translations restricted to them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jumok_serve import BundleError, DecodingOptions, Translator
from jumok_serve.bundle import describe
from jumok_serve.bundle.bundle import Bundle, PinnedFolder
from jumok_serve.bundle.shortlist import Shortlist
from jumok_serve.engine.sentence import Sentence
from jumok_serve.runtime import sessions, step_selection
from jumok_serve.runtime.decoders import Decoder, make_decoder
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.step_selection import SelectionParameters, ShortlistColumns
from jumok_serve.runtime.tensors import DecoderInputs
from jumok_serve.search.constraints import NO_CONSTRAINTS, NO_ENTRIES, Constraints, Entries
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.plan import SearchPlan
from jumok_serve.tasks.model import TranslationParameters
from tests.support import command as commands
from tests.support.calls import noted_calls
from tests.support.hang import HANG_S
from tests.support.models.stepping import logits_of
from tests.support.models.variants import edited, multilingual, unconstrained
from tests.support.reference_search import reference_search
from tests.support.search_cases import make_options

EOS, START = 3, 2
SUPPRESS = (0, 1, 2)
LISTS = Shortlist(np.array([0, 2, 2, 5]), np.array([7, 4, 4, 9, 2]), np.array([3, 9]), 10)
"""Of three source tokens."""


@pytest.mark.parametrize(
    ("source_ids", "expected"),
    [
        ([], [3, 9]),
        ([1, 1], [3, 9]),
        ([0], [3, 4, 7, 9]),
        ([2, 0, 2], [2, 3, 4, 7, 9]),
    ],
)
def test_a_text_may_be_translated_with_the_tokens_of_its_tokens(source_ids: list[int], expected: list[int]) -> None:
    assert LISTS.of(source_ids).tolist() == expected


def test_lists_come_back_from_their_file(tmp_path: Path) -> None:
    LISTS.save(tmp_path / "lists.npz")
    loaded = Shortlist.load(tmp_path / "lists.npz", sources=3, vocabulary=10)
    assert loaded.sources == 3
    assert loaded.of([2, 0]).tolist() == LISTS.of([2, 0]).tolist()
    with pytest.raises(ValueError, match="lists for 3 source tokens, and the vocabulary has 4"):
        Shortlist.load(tmp_path / "lists.npz", sources=4, vocabulary=10)
    with pytest.raises(ValueError, match="lists 9, which is not in the target vocabulary of 9 tokens"):
        Shortlist.load(tmp_path / "lists.npz", sources=3, vocabulary=9)


@pytest.mark.parametrize("content", [b"", b"lists", b"PK\x03\x04 lists"])
def test_file_without_lists_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "lists.npz").write_bytes(content)
    with pytest.raises(ValueError, match="it has no arrays offsets, targets and always"):
        Shortlist.load(tmp_path / "lists.npz", sources=3, vocabulary=10)


def test_other_arrays_and_pickles_are_refused(tmp_path: Path) -> None:
    for arrays in ({"offsets": np.zeros(1)}, dict.fromkeys(("offsets", "targets", "always"), np.array([{}]))):
        np.savez(tmp_path / "lists.npz", **arrays)
        with pytest.raises(ValueError, match="it has no arrays"):
            Shortlist.load(tmp_path / "lists.npz", sources=3, vocabulary=10)


@pytest.mark.parametrize(
    ("offsets", "targets", "always", "problem"),
    [
        ([0, 1], [4], [], "tokens that are in every list"),
        ([0, 2], [4], [3], "ascend from 0 to 1"),
        ([1, 1], [4], [3], "ascend from 0 to 1"),
        ([0, 2, 1], [4], [3], "ascend from 0 to 1"),
        ([], [], [3], "ascend from 0 to 0"),
        ([0, 1], [-1], [3], "lists -1"),
        ([0, 1], [4], [30], "lists 30"),
        ([0.0, 1.0], [4], [3], "must be integers"),
        ([[0, 1]], [4], [3], "must be integers in one axis"),
    ],
)
def test_arrays_without_lists_are_refused(
    offsets: Sequence[Any], targets: Sequence[int], always: Sequence[int], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        Shortlist(np.array(offsets or np.zeros(0, int)), np.array(targets, int), np.array(always, int), 10)


FORCED = START
KINDS: dict[str, SearchOptions] = {
    "greedy": make_options(eos_ids=(EOS,), suppress_tokens=SUPPRESS, max_length=14),
    "greedy, all free": make_options(eos_ids=(EOS,), suppress_tokens=(), max_length=14),
    "greedy without repetition": make_options(
        eos_ids=(EOS,), suppress_tokens=(*SUPPRESS, *range(30, 90)), max_length=14, repetition_penalty=1.3, min_length=4
    ),
    "beams": make_options(beam_size=4, num_hypotheses=4, eos_ids=(EOS,), suppress_tokens=SUPPRESS, max_length=10),
    "beams, all free": make_options(beam_size=3, num_hypotheses=3, eos_ids=(EOS,), suppress_tokens=(), max_length=10),
    "beams with a forced token": make_options(
        beam_size=3,
        num_hypotheses=3,
        eos_ids=(EOS,),
        suppress_tokens=(),
        max_length=8,
        forced_first_token=FORCED,  # in no list
        no_repeat_ngram_size=2,
        renormalize=True,
    ),
    "wide beams": make_options(beam_size=40, num_hypotheses=3, eos_ids=(EOS,), suppress_tokens=(), max_length=4),
}


@pytest.fixture(scope="module")
def whole(listed_bundle: Path) -> Graphs:
    """A translator without a shortlist."""
    return Graphs(Bundle.open(listed_bundle), "fp32", device=CPU, threads=1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_finds_what_brute_force_over_the_list_does(
    kind: str, whole: Graphs, listed_bundle: Path, sentences: tuple[list[str], list[str]]
) -> None:
    """Includes a forced token and a target prefix that are not in the lists."""
    options = KINDS[kind]
    shortlist = Bundle.open(listed_bundle).shortlist()
    with Translator(listed_bundle, precision="fp32", replicas=1, threads=1, shortlist=True) as translator:
        searches = []
        for text in sentences[0][:4]:
            source = [*translator.tokenizer.encode(text), EOS]
            listed = shortlist.of(source)
            assert len(listed) < 60
            assert FORCED not in listed
            barred = np.setdiff1d(np.arange(whole.vocabulary), listed)
            prefix = () if options.forced_first_token else (int(barred[50]), int(barred[60]))
            plan = SearchPlan(options, START, prefix, source)
            sentence = Sentence(source_ids=source, plan=plan, allowed_tokens=listed)
            translator._engine.submit([sentence])
            searches.append((source, barred, prefix, sentence.future))
        for source, barred, prefix, future in searches:

            def step(tokens: tuple[int, ...], source: list[int] = source, barred: np.ndarray = barred) -> np.ndarray:
                logits = logits_of(whole, source, tokens)
                logits[barred] = -np.inf
                return logits

            expected = reference_search(step, options, START, prefix)
            found = future.result(timeout=HANG_S).hypotheses
            assert [one.token_ids for one in found] == [one.token_ids for one in expected]
            for one, other in zip(found, expected, strict=True):
                assert one.score == pytest.approx(other.score, abs=1e-4)
                assert one.token_scores == pytest.approx(other.token_scores, abs=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_batch_does_not_change_translations(
    precision: str, listed_bundle: Path, sentences: tuple[list[str], list[str]]
) -> None:
    with Translator(listed_bundle, precision=precision, threads=1, shortlist=True) as translator:
        for beam_size in (1, 3):
            together = translator.translate(sentences[0], beam_size=beam_size)
            for text, joined in zip(sentences[0], together, strict=True):
                alone = translator.translate(text, beam_size=beam_size)
                assert joined.hypotheses[0].token_ids == alone.hypotheses[0].token_ids
                assert joined.hypotheses[0].score == pytest.approx(alone.hypotheses[0].score, abs=1e-4)


@pytest.mark.parametrize("with_logits", [False, True])
def test_a_step_with_columns_of_another_width_is_that_of_a_new_decoder(
    with_logits: bool, listed_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places of constraints and the number of candidates depend on the width, even if the selection is the same."""
    monkeypatch.setattr(step_selection, "WIDTH_STEP", 1)
    graphs = Graphs(Bundle.open(listed_bundle), "fp32", device=CPU, threads=1, listed=True)
    lengths, slots, memory = np.array([4, 3]), np.arange(2), graphs.make_slots("memory")
    encoded, first_state = graphs.encode(np.array([[9, 11, 8, 3], [12, 7, 3, 0]]), lengths)
    memory.reserve(2, 4, 0)
    memory.join([0, 1], encoded, [0, 1])
    inputs = DecoderInputs(np.array([[5], [6]]), np.zeros(2, np.int64), np.zeros((2, 1), np.int64), lengths)
    places = np.array([[0, 3], [1, 4]])
    penalty, barred = Entries(places, np.full(2, 3, np.float32)), Entries(places, np.full(2, -np.inf, np.float32))

    def make() -> Decoder:
        decoder = make_decoder(graphs, 1)
        decoder.join([0, 1], first_state, [0, 1])
        return decoder

    def step(decoder: Decoder, width: int, selection: SelectionParameters) -> list[list[float]]:
        columns = ShortlistColumns(graphs)
        columns.join([0, 1], [np.arange(width), np.arange(width)])
        return [array.tolist() for array in decoder.step(slots, inputs, memory, columns, selection)]

    used = make()
    for constraints in (NO_CONSTRAINTS, Constraints(penalty, NO_ENTRIES), Constraints(NO_ENTRIES, barred)):
        for stage in ("on_logits", "on_log_probs"):
            given: dict[str, Any] = {stage: constraints}
            selection = SelectionParameters(
                scores=np.zeros(2, np.float32), candidates=15, with_logits=with_logits, **given
            )
            for width in (10, 20, 30, 20, 10):
                assert step(used, width, selection) == step(make(), width, selection), (stage, width)
                assert not with_logits or used.logits().shape() == [2, width]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_list_of_all_tokens_changes_nothing(
    precision: str, listed_bundle: Path, tmp_path: Path, sentences: tuple[list[str], list[str]]
) -> None:
    """So does the list for a text in another direction."""
    bundle = edited(listed_bundle, tmp_path / "bundle", multilingual)
    options: dict[str, Any] = {"beam_size": 2, "source_language": "fr-FR", "target_language": "nl"}
    with (
        Translator(bundle, precision=precision, threads=1) as free,
        Translator(bundle, precision=precision, threads=1, shortlist=True) as listed,
    ):
        pending = listed.submit(
            sentences[0][:4], TranslationParameters(options=DecodingOptions(beam_size=2))
        )  # may share the others' batch
        others = free.translate(sentences[0], **options)
        for expected, found in zip(others, listed.translate(sentences[0], **options), strict=True):
            assert found.hypotheses[0].token_ids == expected.hypotheses[0].token_ids
            assert found.hypotheses[0].score == pytest.approx(expected.hypotheses[0].score, abs=1e-4)
        pending.collect()
        assert (free.shortlisted, listed.shortlisted) == (False, True)


def test_a_prefix_is_followed_by_as_many_candidates_as_a_beam_has(
    tiny_bundle: Path, tmp_path: Path, sentences: tuple[list[str], list[str]]
) -> None:
    """Without constraints: the steps of the prefix have a single candidate."""
    with Translator(
        edited(tiny_bundle, tmp_path / "bundle", unconstrained), precision="fp32", replicas=1, threads=1
    ) as translator:
        whole = translator.translate(sentences[0][0], beam_size=3, max_length=12)
        prefixed = translator.translate(sentences[0][0], target_prefix=whole.text, beam_size=3, max_length=12)
        assert prefixed.text.startswith(whole.text)


def test_only_one_decoder_is_loaded(listed_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = noted_calls(monkeypatch, sessions, "open_session")
    bundle = Bundle.open(listed_bundle)
    for listed, names in (
        (False, {"encoder", "decoder", "sampler"}),
        (True, {"encoder", "decoder_shortlist", "sampler_shortlist", "projection"}),
    ):
        opened.clear()
        graphs = Graphs(bundle, "int8", device=CPU, threads=1, listed=listed, native=False)
        assert {path.stem for path, *_ in opened} == names
        assert ("projection.weight" in graphs.decoder_inputs) is listed


def test_a_bundle_without_lists_says_how_to_get_them(tiny_bundle: Path) -> None:
    with pytest.raises(BundleError, match="has no shortlist: export or import the model again with --shortlist-source"):
        Translator(tiny_bundle, shortlist=True)
    done = commands.run("serve", tiny_bundle, "--shortlist", "--port", "0")
    assert done.returncode != 0
    assert b"has no shortlist: export or import the model again" in done.stderr


def test_a_file_of_other_lists_is_refused(listed_bundle: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(listed_bundle)
    LISTS.save(tmp_path / "shortlist.npz")
    with pytest.raises(BundleError, match=r"shortlist.npz is not a shortlist of this model: it has lists for 3 source"):
        replace(bundle, pinned=PinnedFolder(tmp_path)).shortlist()
    (tmp_path / "shortlist.npz").unlink()
    with pytest.raises(BundleError, match=r"shortlist.npz is not a shortlist of this model: .*No such file"):
        replace(bundle, pinned=PinnedFolder(tmp_path)).shortlist()


def removed(*places: str) -> Callable[[dict[str, Any]], None]:
    """Remove values from a manifest by their paths."""

    def edit(manifest: dict[str, Any]) -> None:
        for place in places:
            *parents, last = place.split("/")
            del reduce(dict.__getitem__, parents, manifest)[last]

    return edit


IN_INT8 = "precisions/int8/graphs"


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (removed("shortlist", "files/shortlist.npz"), "graphs: there are graphs for a shortlist, but no shortlist"),
        (
            removed(*(f"{IN_INT8}/{name}" for name in ("projection", "decoder_shortlist", "sampler_shortlist"))),
            "precisions.int8.graphs: graph 'projection' is missing",
        ),
        (removed(f"{IN_INT8}/sampler_shortlist"), "graph 'sampler_shortlist' is missing; a shortlist needs projection"),
        (
            lambda manifest: manifest["shortlist"].update(target="fr"),
            "shortlist: en to fr is not a pair of the model",
        ),
        (removed("files/shortlist.npz"), "shortlist.file: 'shortlist.npz' is not among the files"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    edit: Callable[[dict[str, Any]], None], problem: str, listed_bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(BundleError) as raised:
        Bundle.open(edited(listed_bundle, tmp_path / "bundle", edit))
    assert any(problem in line for line in raised.value.problems), raised.value.problems


def test_inspect_describes_the_shortlist(listed_bundle: Path, tiny_bundle: Path) -> None:
    row = "  shortlist     en to de: 5 tokens for each source token and the 8 most frequent; IBM Model 1 of 48"
    assert row in describe.describe(Bundle.open(listed_bundle))
    assert "  shortlist     " not in describe.describe(Bundle.open(tiny_bundle))


def test_evaluate_names_the_shortlist(
    listed_bundle: Path, tmp_path: Path, sentences: tuple[list[str], list[str]]
) -> None:
    for name, lines in zip(("source", "reference"), sentences, strict=True):
        (tmp_path / name).write_text("\n".join(lines[:5]), encoding="utf-8")
    files = ("--source", tmp_path / "source", "--reference", tmp_path / "reference")
    command = ("evaluate", listed_bundle, *files, "--threads", "1", "--shortlist")
    assert b"(int8, cpu, shortlist)" in commands.run_here(*command).stdout
    assert b'"shortlist": true' in commands.run_here(*command, "--json").stdout
