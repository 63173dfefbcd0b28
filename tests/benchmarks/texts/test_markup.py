"""The measurement of markup: heads that a manifest names place tags, and alignments are judged by tags."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.texts.markup import IN_TREE, by_gain, fit_links, heads_of, main, pairs_of, recovered, token_errors
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from tests.support.models.variants import edited


def with_heads(*heads: tuple[int, int]) -> Callable[[dict[str, Any]], None]:
    """Name the heads that align tokens."""

    def edit(manifest: dict[str, Any]) -> None:
        manifest["alignment"] = {"heads": [{"layer": one, "head": two} for one, two in heads], "origin": "measured"}

    return edit


def test_the_server_places_tags_by_the_heads_of_the_manifest(
    tiny_bundle: Path, sentences: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    sizes = Bundle.open(tiny_bundle).variant("fp32").cross_attention
    assert sizes is not None
    texts = [
        " ".join([*text.split()[:2], f"<b>{text.split()[2]}</b>", *text.split()[3:]]) for text in sentences[0][:12]
    ]
    placed = []
    for head in range(sizes[1]):
        path = edited(tiny_bundle, tmp_path / f"head-{head}", with_heads((0, head)))
        heads = heads_of(Bundle.open(path), "fp32")
        name = f"layer 0 head {head} (measured)"
        assert heads[name] == [(0, head)]
        with Translator(path, precision="fp32", replicas=1, threads=1) as translator:
            found = [one.text for one in translator.translate(texts, markup="html", beam_size=1)]
            # What the server wrote is a reference that the same heads recover.
            pairs = list(pairs_of(translator, texts, found, heads, None))
        assert len(pairs) == len(texts)
        assert sum(recovered(pair, by_gain, pair.attention[name]) for pair in pairs) == len(texts)
        placed.append(found)
    assert placed[0] != placed[1]


def test_links_of_the_aligner_are_weights_of_the_models_tokens(
    tiny_bundle: Path, sentences: tuple[list[str], list[str]]
) -> None:
    bundle = Bundle.open(tiny_bundle)
    texts = list(zip(*sentences, strict=True))
    linked = fit_links(bundle.tokenizer, texts)
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        pairs = list(pairs_of(translator, sentences[0], sentences[1], heads_of(bundle, "fp32"), linked))
    assert len(pairs) == len(texts)
    for pair, (source, target) in zip(pairs, texts, strict=True):
        weights, links = pair.attention[IN_TREE], linked(source, target)
        assert weights.shape == pair.attention["all heads"].shape
        np.testing.assert_array_equal(weights[: len(links), : links.shape[1]], links)
        assert not weights[len(links) :].any()
        # Without elements no token can be aligned into others.
        spelled = [end > start for start, end in pair.target_tokens]
        assert token_errors(pair, weights) == (0, int(((weights.max(axis=1) > 0) & spelled).sum()))


def test_tokens_that_are_aligned_into_other_elements_are_errors(
    tiny_bundle: Path, sentences: tuple[list[str], list[str]]
) -> None:
    marked, plain = [f"<i>{text}</i>" for text in sentences[0][:3]], sentences[1][:3]
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        for pair in pairs_of(translator, marked, plain, heads_of(Bundle.open(tiny_bundle), "fp32"), None):
            wrong, tokens = token_errors(pair, pair.attention["all heads"])
            assert wrong == tokens > 0


def test_the_report_has_every_way_to_align(
    tiny_bundle: Path, sentences: tuple[list[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for name, texts in (("en", sentences[0]), ("de", sentences[1])):
        files.append(tmp_path / f"text.{name}.gz")
        files[-1].write_bytes(gzip.compress("".join(f"<b>{text}</b>\n" for text in texts).encode()))
    path = edited(tiny_bundle, tmp_path / "bundle", with_heads((0, 1)))
    main([str(path), *map(str, files), "--parallel", *map(str, files), "--beam-size", "0"])
    printed = capsys.readouterr().out
    for name in ("layer 0 head 1 (measured)", "layer before the last", "all heads", IN_TREE):
        assert f": {name}\n" in printed
    assert printed.startswith(f"{len(sentences[0])} spans of {len(sentences[0])} references, in fp32")
