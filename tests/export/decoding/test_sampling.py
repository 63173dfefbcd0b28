"""Sampling through the engine: what is drawn follows Hugging Face's distribution, and depends on the seed alone."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from jumok_export.bundles.variants import Folder
from jumok_export.graphs.fuse_selection import fuse_selection
from jumok_export.graphs.graph import Graph
from jumok_export.graphs.selection import sampler_graph, select_graph
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.engine.sentence import Sentence
from jumok_serve.manifest.manifest import GraphSpec, PrecisionVariant, TensorSpec
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.search.greedy_sampling import UniformNumbers
from jumok_serve.search.options import Sampling, SearchOptions
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.search import FinishedHypothesis
from tests.serve.conftest import lookup_graph
from tests.support.hang import HANG_S
from tests.support.reference_search import START, Scores
from tests.support.search_cases import make_options

transformers = pytest.importorskip("transformers", reason="its logits processors give the expected distributions")

VOCABULARY, EOS = 8, 1
TABLE = np.random.default_rng(3).normal(scale=1.5, size=(VOCABULARY, VOCABULARY)).astype(np.float32)
PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=7)
Tokens = tuple[int, ...]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A model whose next logits are a row of `TABLE`, that of the last token."""
    path = tmp_path_factory.mktemp("graphs")
    source_ids = TensorSpec(name="source_ids", dtype="int64", axes=("B", "S"))
    memory = TensorSpec(name="memory.embedding", dtype="float32", axes=("B", "S", VOCABULARY))
    token_ids = TensorSpec(name="token_ids", dtype="int64", axes=("R",))
    logits = TensorSpec(name="logits", dtype="float32", axes=("R", VOCABULARY))
    decoder = Graph(onnx.load_from_string(lookup_graph(token_ids, logits, TABLE)), (token_ids,), (logits,))
    graphs = {
        "encoder": Graph(onnx.load_from_string(lookup_graph(source_ids, memory, TABLE)), (source_ids,), (memory,)),
        "decoder": fuse_selection(decoder, select_graph(VOCABULARY)),
        "sampler": sampler_graph(VOCABULARY),
    }
    specs = {}
    for name, graph in graphs.items():
        (path / f"{name}.onnx").write_bytes(graph.model.SerializeToString())
        specs[name] = GraphSpec(file=f"{name}.onnx", inputs=graph.inputs, outputs=graph.outputs)
    variant = PrecisionVariant(graphs=specs, weights="none")
    opened = Graphs(Folder(path, variant), "fp32", device=CPU, threads=1)
    engine = Engine(opened, pad=0, limits=EngineLimits(), name="table")
    yield engine
    engine.close()


def step(prefix: Tokens) -> Scores:
    """The same model as a step function."""
    return np.asarray(TABLE[prefix[-1]], np.float64)


def samples(sampling: Sampling, count: int = 1, *, repetition_penalty: float = 1.0) -> SearchOptions:
    options = make_options(num_hypotheses=count, max_length=3, eos_ids=(EOS,), sampling=sampling)
    return replace(options, repetition_penalty=repetition_penalty)


def decode(
    engine: Engine, options: SearchOptions, texts: Sequence[Sequence[int]]
) -> list[tuple[FinishedHypothesis, ...]]:
    sentences = [Sentence(source_ids=text, plan=SearchPlan(options, START, (), text)) for text in texts]
    engine.submit(sentences)
    return [sentence.future.result(timeout=HANG_S).hypotheses for sentence in sentences]


def many(count: int) -> list[list[int]]:
    """Texts that all differ."""
    return [[number // VOCABULARY**digit % VOCABULARY for digit in range(4)] for number in range(count)]


def warped(options: SearchOptions, history: Tokens) -> torch.Tensor:
    """Log-probabilities of the next token as Hugging Face's processors and warpers leave them."""
    assert options.sampling is not None
    sampling = options.sampling
    processors = [
        transformers.RepetitionPenaltyLogitsProcessor(options.repetition_penalty),
        transformers.TemperatureLogitsWarper(sampling.temperature),
    ]
    if sampling.top_k:
        processors.append(transformers.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(transformers.TopPLogitsWarper(sampling.top_p))
    scores = torch.from_numpy(step(history))[None]
    for processor in processors:
        scores = processor(torch.tensor([history]), scores)
    return scores[0].log_softmax(dim=-1)


def distribution(options: SearchOptions) -> dict[Tokens, tuple[float, ...]]:
    """Every sequence that can be drawn, with the log-probabilities of its tokens."""
    found: dict[Tokens, tuple[float, ...]] = {}

    def extend(tokens: Tokens, scores: tuple[float, ...]) -> None:
        if tokens and (tokens[-1] == EOS or len(tokens) == options.max_length):
            found[tokens] = scores
            return
        for token, score in enumerate(warped(options, (START, *tokens)).tolist()):
            if score > -math.inf:
                extend((*tokens, token), (*scores, score))

    extend((), ())
    return found


def assert_follows(drawn: Counter[Tokens], probabilities: Mapping[Tokens, float]) -> None:
    """Pearson's chi-squared test; outcomes that are expected fewer than five times are counted as one."""
    count = drawn.total()
    assert set(drawn) <= set(probabilities)
    assert sum(probabilities.values()) == pytest.approx(1.0)
    seldom = [outcome for outcome, p in probabilities.items() if p * count < 5]
    pairs = [(drawn[outcome], p * count) for outcome, p in probabilities.items() if p * count >= 5]
    pairs.append((sum(drawn[outcome] for outcome in seldom), sum(probabilities[outcome] * count for outcome in seldom)))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in pairs if expected)
    freedom = sum(expected > 0 for _, expected in pairs) - 1
    # The cube root of a chi-squared number over its degrees of freedom is nearly normal (Wilson and Hilferty, 1931).
    degrees = max(freedom, 1)
    deviations = ((statistic / degrees) ** (1 / 3) - 1 + 2 / (9 * degrees)) * math.sqrt(4.5 * degrees)
    assert deviations < 3.5, (statistic, freedom)


SETTINGS = [
    (PLAIN, 1.0),
    (replace(PLAIN, temperature=0.5), 1.0),
    (replace(PLAIN, temperature=2.0), 1.3),
    (replace(PLAIN, top_k=3), 1.0),
    (replace(PLAIN, top_k=1), 1.3),
    (replace(PLAIN, top_p=0.8), 1.0),
    (replace(PLAIN, top_p=0.8), 0.7),
    (replace(PLAIN, temperature=1.5, top_k=5, top_p=0.7), 1.3),
]


@pytest.mark.parametrize(("sampling", "penalty"), SETTINGS)
def test_samples_follow_the_distribution(engine: Engine, sampling: Sampling, penalty: float) -> None:
    options = samples(sampling, 64, repetition_penalty=penalty)
    expected = distribution(options)
    drawn = [hypothesis for text in decode(engine, options, many(60)) for hypothesis in text]
    assert_follows(
        Counter(hypothesis.token_ids for hypothesis in drawn),
        {tokens: math.exp(sum(scores)) for tokens, scores in expected.items()},
    )
    first = warped(options, (START,)).exp().tolist()
    firsts: dict[Tokens, float] = {(token,): p for token, p in enumerate(first) if p}
    assert_follows(Counter(hypothesis.token_ids[:1] for hypothesis in drawn), firsts)
    for hypothesis in drawn:
        scores = expected[hypothesis.token_ids]
        assert hypothesis.token_scores == pytest.approx(scores, abs=1e-5)
        assert hypothesis.score == pytest.approx(sum(scores) / len(scores), abs=1e-5)


def test_samples_of_one_text_and_of_different_texts_are_independent(engine: Engine) -> None:
    options = samples(PLAIN, 2)
    first: list[float] = warped(options, (START,)).exp().tolist()
    every = itertools.product(range(VOCABULARY), repeat=2)
    pairs: dict[Tokens, float] = {(a, b): first[a] * first[b] for a, b in every}
    # With one seed for all of them.
    texts = decode(engine, options, many(3000))
    assert_follows(Counter((one.token_ids[0], other.token_ids[0]) for one, other in texts), pairs)
    of_two = zip(texts[::2], texts[1::2], strict=True)
    assert_follows(Counter((a[0].token_ids[0], b[0].token_ids[0]) for a, b in of_two), pairs)
    # And with another seed for each.
    one_text = [decode(engine, samples(replace(PLAIN, seed=seed)), [[3, 2]])[0][0].token_ids for seed in range(400)]
    assert_follows(Counter(tokens[:1] for tokens in one_text), {(token,): p for token, p in enumerate(first)})


def test_a_seed_repeats_samples_in_any_batch(engine: Engine) -> None:
    options = samples(replace(PLAIN, temperature=3.0), 3)
    texts = many(40)
    alone = [decode(engine, options, [text])[0] for text in texts]
    assert decode(engine, options, texts) == alone
    assert decode(engine, options, texts[::-1]) == alone[::-1]
    assert decode(engine, replace(options, num_hypotheses=5), texts[:1])[0][:3] == alone[0]
    another = decode(engine, samples(replace(PLAIN, temperature=3.0, seed=8), 3), texts)
    assert another != alone


def test_without_a_seed_every_search_draws_anew(engine: Engine) -> None:
    options = samples(replace(PLAIN, temperature=5.0, seed=None), 8)
    assert len({decode(engine, options, [[2]])[0] for _ in range(5)}) == 5


def test_forced_last_tokens_are_drawn_from_too(engine: Engine) -> None:
    options = replace(samples(PLAIN, 64), max_length=1, forced_last_tokens=(5, 2, 6))
    drawn = [hypothesis for text in decode(engine, options, many(30)) for hypothesis in text]
    assert_follows(Counter(h.token_ids for h in drawn), {(5,): 1 / 3, (2,): 1 / 3, (6,): 1 / 3})
    assert all(h.token_scores == pytest.approx((-math.log(3),)) for h in drawn)
    # With top_p 0.5, two of three equally likely tokens are kept.
    half = replace(options, sampling=replace(PLAIN, top_p=0.5))
    drawn = [hypothesis for text in decode(engine, half, many(10)) for hypothesis in text]
    assert len({h.token_ids for h in drawn}) == 2
    assert all(h.token_scores == pytest.approx((-math.log(2),)) for h in drawn)


def test_uniform_numbers_depend_only_on_seed_text_row_and_step() -> None:
    numbers = UniformNumbers(3, [5, 6])
    assert numbers.at(4, 3) == UniformNumbers(3, (5, 6)).at(4, 3) == numbers.at(4, 9)[:3]
    others = [UniformNumbers(4, [5, 6]).at(4, 3), UniformNumbers(3, [6, 5]).at(4, 3), numbers.at(5, 3)]
    everything = [number for row in (*others, numbers.at(4, 3)) for number in row]
    assert len(set(everything)) == 12
    assert all(0 <= number < 1 for number in everything)
    large = UniformNumbers(2**63 - 1, [2**40]).at(10**6, 64)
    assert len(set(large)) == 64


@pytest.mark.parametrize(("sampling", "penalty"), SETTINGS[-2:])
def test_generate_draws_from_the_same_distribution(sampling: Sampling, penalty: float) -> None:
    from tests.support.generate_oracle import GivenModel

    options = samples(sampling, 64, repetition_penalty=penalty)
    expected = distribution(options)
    model = GivenModel(step)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        drawn = [hypothesis for _ in range(40) for hypothesis in model.hypotheses(options)]
    assert_follows(
        Counter(hypothesis.token_ids for hypothesis in drawn),
        {tokens: math.exp(sum(scores)) for tokens, scores in expected.items()},
    )
    for hypothesis in drawn:
        assert hypothesis.token_scores == pytest.approx(expected[hypothesis.token_ids], abs=1e-5)
