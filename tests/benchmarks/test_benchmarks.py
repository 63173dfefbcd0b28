"""Each benchmark runs on tiny models, and prints and records its table."""

import json
from pathlib import Path
from typing import Any

import pytest

from jumok_serve.errors import DeviceError
from jumok_serve.native import library
from jumok_serve.runtime.device import candidate_devices
from tests.benchmarks.conftest import DATA, ROOT, run
from tests.support.hang import HANG_S


def recorded(benchmark: str, *arguments: str | Path, out: Path, corpus: Path | None = None) -> tuple[str, Any]:
    """Run a benchmark to its end; returns its output, and what it recorded."""
    printed = run(benchmark, *arguments, "--json", out / "found.json", corpus=corpus)
    return printed, json.loads((out / "found.json").read_text(encoding="utf-8"))


def on_gpu() -> bool:
    try:
        candidate_devices("cuda")
    except DeviceError:
        return False
    return True


def test_offline_compares_every_cell(tmp_path: Path) -> None:
    plan = ("--quick", "--cells", "1x1", "3x2", "--rounds", "2", "--threads", "1")
    printed, record = recorded("offline", *plan, out=tmp_path)
    result = [(each["cell"]["batch"], each["cell"]["beam"], each["precision"]) for each in record["cells"]]
    assert result == [(batch, beam, precision) for batch, beam in ((1, 1), (3, 2)) for precision in ("int8", "fp32")]
    for each in record["cells"]:
        assert [len(times) for times in (each["ours"], each["generate"], *each["peers"].values())] == [2, 2, 2]
    assert [each["same"] for each in record["cells"] if each["precision"] == "fp32"] == [1.0, 1.0]
    assert [each["name"] for each in record["rests"]] == [
        *(f"{side} {precision}" for precision in ("int8", "fp32") for side in ("jumok", "CTranslate2")),
        "control",
    ]
    assert all(each["peak"] > 10 * 2**20 and each["size"] > 10_000 for each in record["memory"])
    assert "its figures say nothing" in printed
    assert not {"met", "missed"} & {*printed.split()}


def test_with_shortlists_both_sides_have_the_same_lists(tmp_path: Path) -> None:
    plan = ("--quick", "--shortlist", "--cells", "1x1", "--rounds", "1", "--threads", "1", "--precision", "fp32")
    _, record = recorded("offline", *plan, "--keep", tmp_path, out=tmp_path)
    [result] = record["cells"]
    assert (result["same"], result["goal"], result["generate"]) == (1.0, None, [])
    made = tmp_path / "tiny-shortlist"
    assert (made / "ctranslate2-float32" / "vmap.txt").read_bytes() == (made / "vmap.txt").read_bytes()


def test_ctranslate2_has_the_committed_model(corpus: Path, tmp_path: Path) -> None:
    """In fp32 both write the same tokens, so weights of the bundle and of the converted model are equal."""
    plan = ("--model", "Multi30k", "--beam", "1", "--rounds", "1", "--threads", "1", "--precision", "fp32")
    _, record = recorded("offline", *plan, out=tmp_path, corpus=corpus)
    [result] = record["cells"]
    assert (result["same"], result["bleu"][0]) == (1.0, result["bleu"][1])


def test_serving_compares_all_servers(tmp_path: Path) -> None:
    plan = ("--quick", "--outstanding", "1", "3", "--rounds", "2", "--sentences", "5")
    printed, record = recorded("serving", *plan, out=tmp_path)
    contenders = ["jumok", "plain peer", "batching peer", "offline engine"]
    measured = [(each["outstanding"], each["contender"]) for each in record["figures"]]
    assert measured == [(outstanding, name) for outstanding in (1, 3) for name in contenders]
    for each in record["figures"]:
        assert f"{each['sentences_a_second']:.1f}" in printed
        if each["contender"] != "offline engine":
            assert 0 < each["p50_ms"] <= each["p99_ms"]


def test_a_step_is_compared_with_its_products(tiny_bundle: Path, tmp_path: Path) -> None:
    plan = ("--rounds", "2", "--steps", "3", "--threads", "1", "--bundle", tiny_bundle, "--cases", "1x1", "2x3")
    printed, results = recorded("step", *plan, out=tmp_path)
    settings = [(result["precision"], result["sentences"], result["beam_size"]) for result in results]
    assert settings == [("int8", 1, 1), ("int8", 2, 3), ("fp32", 1, 1), ("fp32", 2, 3)]
    for result in results:
        assert min(result["products_ms"], result["reads_ms"], result["ratio"]["lowest"]) > 0
        assert sum(result["shares"].values()) == pytest.approx(100, abs=0.1)
        selection = "decoder: Select" if library() else "decoder: LogSoftmax"
        assert {"weight products", selection, "between operators", "outside the graphs"} <= {*result["shares"]}
    assert "2 x 3" in printed


def test_a_step_of_an_untrained_model_is_measured(tmp_path: Path) -> None:
    sizes = ("--layers", "1", "--width", "16", "--feed-forward", "24", "--vocabulary", "90")
    plan = ("--rounds", "2", "--steps", "3", "--threads", "1", "--cases", "1x2", "--precisions", "int8")
    assert "int8, 1 x 2: " in recorded("step", *sizes, *plan, out=tmp_path)[0]


def test_a_checkout_is_compared_with_itself(tmp_path: Path) -> None:
    _, record = recorded("regression", ROOT, "--quick", out=tmp_path)
    assert {each["benchmark"] for each in record["ratios"]} == {"offline", "step", "serving"}
    assert all(len(each["rounds"]) == 2 for each in record["ratios"])


def test_http_is_compared_with_grpc(corpus: Path, tmp_path: Path) -> None:
    plan = ("--outstanding", "2", "--sentences", "4", "--rounds", "1")
    _, record = recorded("http_load", *plan, out=tmp_path, corpus=corpus)
    assert record["seconds"].keys() == {"gRPC", "own JSON", "LibreTranslate", "DeepL"}
    assert all(len(taken) == 1 and taken[0] > 0 for taken in record["seconds"].values())


@pytest.mark.skipif(on_gpu(), reason="there is a GPU, and the check takes minutes with one")
def test_the_check_of_a_gpu_takes_the_same_path_without_one(half_bundle: Path, tmp_path: Path) -> None:
    corpus = ("--source", DATA / "train.en", "--reference", DATA / "train.de")
    _, found = recorded("gpu", "--bundle", half_bundle, *corpus, "--budget", str(HANG_S), out=tmp_path)
    assert found["about"]["provider"] == "CPUExecutionProvider"
    verdicts = {line["name"]: line["verdict"] for line in found["lines"]}
    for name in (
        "fp32 as on the CPU, beam 1",
        "fp32 as on the CPU, beam 4",
        "fp32 batch invariance",
        "fp16 batch invariance",
        "BLEU of fp16 beside fp32",
    ):
        assert verdicts[name] == "passed"
    skipped = {line["name"]: line["found"] for line in found["lines"] if line["verdict"] == "skipped"}
    assert "--device cpu" in skipped.pop("CUDA")
    assert {"Hugging Face generate fp16", "CTranslate2 fp16"} <= skipped.keys()
    assert all("there is no GPU" in reason for reason in skipped.values())
    measured = {line["name"]: line["numbers"] for line in found["lines"] if line["verdict"] == "measured"}
    assert measured["fp16 step, 3 x 4"]["floor_ms"] < measured["fp16 step, 3 x 4"]["step_ms"]
    assert measured["jumok fp16, 3 x 4"]["tokens_per_s"] > 0
    assert measured["engine, 4 requests outstanding"]["sentences_per_s"] > 0
