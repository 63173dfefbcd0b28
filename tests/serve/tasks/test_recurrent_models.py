"""Models of both families in one server."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jumok
from jumok_serve import Translation, Translator
from tests.support.servers.in_process_server import check_idle, serving

MODELS = Path(__file__).parents[3] / "models"
TRANSFORMER, LSTM = MODELS / "multi30k-en-de-transformer", MODELS / "multi30k-en-de-lstm"


def test_a_server_answers_for_models_of_both_families_at_the_same_time(sentences: tuple[list[str], list[str]]) -> None:
    """Each answer of the committed models equals that of its text alone."""
    texts = sentences[0][:24]
    with Translator(TRANSFORMER, threads=1) as transformer, Translator(LSTM, threads=1) as recurrent:
        models = {translator.name: translator for translator in (transformer, recurrent)}
        jobs = [(name, text, beam_size) for name in models for text in texts for beam_size in (1, 4)]
        alone = {
            (name, text, beam_size): models[name].translate(text, beam_size=beam_size) for name, text, beam_size in jobs
        }
        assert len({translation.text for translation in alone.values()}) > len(texts)
        random.Random(1).shuffle(jobs)

        def ask(job: tuple[str, str, int]) -> Translation:
            name, text, beam_size = job
            return client.translate(text, model=name, beam_size=beam_size)

        with (
            serving(transformer, recurrent) as address,
            jumok.Client(address) as client,
            ThreadPoolExecutor(16) as pool,
        ):
            answers = list(pool.map(ask, jobs))
        off = 0
        for job, answer in zip(jobs, answers, strict=True):
            best, expected = answer.hypotheses[0], alone[job].hypotheses[0]
            assert answer.model == job[0]
            assert (best.text, best.token_ids) == (expected.text, expected.token_ids)
            off += abs(best.score - expected.score) > 1e-4
        assert off <= 1  # of 96: a rounding to 8 bits may fall the other way
        for translator in models.values():
            check_idle(translator)
