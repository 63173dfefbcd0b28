"""Failures of native libraries: each belongs to one text, and every call is answered."""

from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest

import jumok
from jumok_serve.errors import BundleError, ForeignCodeError
from jumok_serve.native import ForeignCode
from jumok_serve.service import Administration
from jumok_serve.tokenizers.tokenizer_json import MAX_LOCKED
from jumok_serve.translator import Translator
from tests.support.hang import HANG_S
from tests.support.models.panicking_tokenizers import LONG_STRIP, NO_TABLE, SOME_TEXTS, with_tokenizer
from tests.support.refusals import refused
from tests.support.servers.in_process_server import serving

READABLE, UNREADABLE = "a cab bed", "a zoo"


def opened(bundle: Path) -> Translator:
    return Translator(bundle, precision="fp32", replicas=1, threads=1)


def test_a_text_that_the_tokenizer_fails_on_is_refused_alone(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = with_tokenizer(tiny_bundle, tmp_path / "some", normalizer=SOME_TEXTS)
    with (
        opened(bundle) as translator,
        serving(translator) as address,
        jumok.Client(address, timeout_s=HANG_S) as client,
    ):
        wanted = client.translate(READABLE).text
        # Longer texts are encoded in the library's own threads.
        long = f"{READABLE} " * (MAX_LOCKED // 8) + UNREADABLE
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: client.translate([READABLE, UNREADABLE], split_sentences=False), "contents[1]"),
            (lambda: client.translate([READABLE, UNREADABLE], split_sentences=True), "contents[1]"),
            (lambda: list(client.translate_stream(UNREADABLE, split_sentences=False)), "content"),
            (lambda: list(client.translate_stream(UNREADABLE, split_sentences=True)), "content"),
            (lambda: client.translate(long, truncate=True), "contents[0]"),
            (lambda: client.translate([READABLE] * 2, target_prefix=[None, UNREADABLE]), "target_prefixes[1]"),
            (lambda: client.score([READABLE], [UNREADABLE]), "targets[0]"),
        ]
        for call, field in calls:
            with refused(field, "tokenizer cannot read"):
                call()
        first, bad, last = client.translate_iter([READABLE, UNREADABLE, READABLE])
        assert (first.translation.text, last.translation.text) == (wanted, wanted)
        assert isinstance(bad.error, jumok.InvalidArgumentError)


def test_a_translation_that_cannot_be_decoded_fails_alone(tiny_bundle: Path, tmp_path: Path) -> None:
    with opened(tiny_bundle) as translator:
        size = translator.tokenizer.vocab_size
    # A token that the model never writes, but a caller may.
    vocabulary = {"<unk>": 1, "eee": 2} | {f"word{number}": number for number in range(size) if number not in {1, 2}}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    bundle = with_tokenizer(tiny_bundle, tmp_path / "strip", model=model, decoder=LONG_STRIP)
    with opened(bundle) as translator:
        with pytest.raises(ForeignCodeError, match="tokenizers failed"):
            translator.tokenizer.decode([2])
        assert translator.tokenizer.decode([5]) == "word5"
        with serving(translator) as address, jumok.Client(address, timeout_s=HANG_S) as client:
            # A prefix is decoded with its translation.
            (good,) = client.translate_iter([READABLE], target_prefix="word5", max_length=2)
            assert good.error is None
            first, second = client.translate_iter([READABLE] * 2, target_prefix="eee", max_length=2)
            assert isinstance(first.error, jumok.InternalError)
            assert isinstance(second.error, jumok.InternalError)
            with pytest.raises(jumok.InternalError):
                list(client.translate_stream(READABLE, target_prefix="eee", max_length=2))


def test_a_bundle_whose_tokenizer_does_not_load_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with_tokenizer(tiny_bundle, root / "broken", normalizer=NO_TABLE)
    with pytest.raises(BundleError, match=r"tokenizer\.json is not a tokenizer\.json that tokenizers [\d.]+ reads"):
        opened(root / "broken")
    administration = Administration(root=root, load=opened)
    with (
        opened(tiny_bundle) as translator,
        serving(translator, administration=administration) as address,
        jumok.AdminClient(address, timeout_s=HANG_S) as admin,
    ):
        for _ in range(2):  # the first one has given back the lock
            with pytest.raises(jumok.BundleNotLoadedError):
                admin.load_model("broken")


class Panic(BaseException):
    """Like the panics of Rust libraries, which have no public class."""


def test_a_guard_turns_every_failure_into_ours_but_those_that_end_a_program() -> None:
    for failure in (Panic("index out of bounds"), RuntimeError("any"), RecursionError()):
        with pytest.raises(ForeignCodeError) as raised, ForeignCode("library"):
            raise failure
        assert raised.value.__cause__ is failure
        assert "library failed" in str(raised.value)
    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        with pytest.raises(kind), ForeignCode("library"):
            raise kind


def test_failures_of_onnx_runtime_are_ordinary_exceptions() -> None:
    # Its Python binding is C++, which has no panics: engine and loading catch Exception.
    state = onnxruntime.capi.onnxruntime_pybind11_state
    kinds = [kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
    assert kinds
    assert all(issubclass(kind, Exception) for kind in kinds)
