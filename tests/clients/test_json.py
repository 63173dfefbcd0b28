"""Results as JSON, from a server and in process."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jumok
from jumok_serve.translator import Translator
from tests.support.servers.in_process_server import serving


def as_json(result: Any) -> Any:
    return json.loads(json.dumps(asdict(result), allow_nan=False))


def test_all_results_can_be_written_as_json(tiny_bundle: Path) -> None:
    with (
        Translator(tiny_bundle, threads=1) as translator,
        serving(translator) as address,
        jumok.Client(address) as client,
    ):
        for caller in (translator, client):
            translation = as_json(caller.translate("a man", attention=True, max_length=5))
            assert translation["hypotheses"][0]["finish_reason"] in {"eos", "length"}
            assert translation["hypotheses"][0]["attention"][0]
            assert as_json(caller.score("a man", "ein mann"))["token_scores"]
            assert as_json(caller.align("a man", "ein mann", each_head=True))["cross"]["mean"]
        assert as_json(client.list_models()[0])["state"] == "serving"
        result = as_json(next(client.translate_iter(["a man"], max_length=5)))
        assert result["outcome"]["hypotheses"]
        failed = next(client.translate_iter(["a man " * 5000], split_sentences=False))
        written = json.loads(json.dumps(asdict(failed), default=str))
        assert written["outcome"] == str(failed.error) != ""
        assert as_json(list(client.translate_stream("a man", max_length=5))[-1])["translation"]["hypotheses"]


def test_states_of_bundles_can_be_written_as_json() -> None:
    summary = jumok.BundleSummary(bundle="a", model="m", version="1", state=jumok.BundleState.AVAILABLE, problem="")
    assert as_json(summary)["state"] == "available"
