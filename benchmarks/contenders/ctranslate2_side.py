"""CTranslate2's contender: a converted model with the settings that its documentation recommends."""

import argparse

import ctranslate2
from sentencepiece import SentencePieceProcessor

from benchmarks.contenders.worker import Run, Task, serve

END = "</s>"
"""The last token of a source."""


def main() -> None:
    """Translate tasks: tokens, or texts that are tokenized within the time."""
    parser = argparse.ArgumentParser(description="CTranslate2's side of a benchmark.")
    parser.add_argument("model")
    parser.add_argument("compute_type")
    parser.add_argument("inter_threads", type=int)
    parser.add_argument("intra_threads", type=int)
    parser.add_argument("--shortlist", action="store_true", help="use the model's vocabulary map")
    parser.add_argument("--sentencepiece", help="a model to make tokens of texts, and texts of translations")
    arguments = parser.parse_args()
    processor = arguments.sentencepiece and SentencePieceProcessor(model_file=arguments.sentencepiece)
    translator = ctranslate2.Translator(
        arguments.model,
        compute_type=arguments.compute_type,
        inter_threads=arguments.inter_threads,
        intra_threads=arguments.intra_threads,
    )

    def prepare(task: Task) -> Run:
        equal_shares = -(-len(task.tokens) // arguments.inter_threads)
        if processor and _tokens(processor, task.texts) != task.tokens:
            raise ValueError(f"{arguments.sentencepiece} makes other tokens of the texts than the bundle's tokenizer")

        def run() -> list[list[str]]:
            results = translator.translate_batch(
                _tokens(processor, task.texts) if processor else task.tokens,
                max_batch_size=task.batch_size or equal_shares,
                batch_type=task.batch_type,
                beam_size=task.beam_size,
                length_penalty=1.0,
                min_decoding_length=task.min_length,
                max_decoding_length=task.max_length,
                use_vmap=arguments.shortlist,
            )
            translations = [result.hypotheses[0] for result in results]
            if processor:
                processor.decode(translations)
            return translations

        return run

    serve(prepare)


def _tokens(processor: SentencePieceProcessor, texts: list[str]) -> list[list[str]]:
    return [[*pieces, END] for pieces in processor.encode(texts, out_type=str)]


if __name__ == "__main__":
    main()
