"""The contender ``generate`` of Hugging Face: the checkpoint in PyTorch, in fp32."""

import argparse
from typing import Any

import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from benchmarks.contenders.worker import Run, Task, serve


def main() -> None:
    """Translate tasks; sources of similar length are translated together, padded on the right."""
    parser = argparse.ArgumentParser(description="Hugging Face's generate in a benchmark.")
    parser.add_argument("checkpoint")
    parser.add_argument("threads", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    auto: Any = transformers  # untyped
    tokenizer = auto.AutoTokenizer.from_pretrained(arguments.checkpoint)
    model = auto.AutoModelForSeq2SeqLM.from_pretrained(arguments.checkpoint, dtype=torch.float32).eval()
    pad = tokenizer.pad_token_id
    not_said = {pad, tokenizer.eos_token_id, model.config.decoder_start_token_id}

    def prepare(task: Task) -> Run:
        sources = [torch.tensor(tokenizer.convert_tokens_to_ids(tokens)) for tokens in task.tokens]
        by_length = sorted(range(len(sources)), key=lambda number: len(sources[number]), reverse=True)
        size = task.batch_size or len(sources)
        batches = [by_length[first : first + size] for first in range(0, len(sources), size)]

        def run() -> list[list[str]]:
            translations: dict[int, list[str]] = {}
            for batch in batches:
                source_ids = pad_sequence([sources[number] for number in batch], batch_first=True, padding_value=pad)
                with torch.inference_mode():
                    found = model.generate(
                        input_ids=source_ids,  # [B, S]
                        attention_mask=source_ids.ne(pad).long(),
                        do_sample=False,
                        num_beams=task.beam_size,
                        length_penalty=1.0,
                        early_stopping=True,
                        min_new_tokens=task.min_length,
                        max_new_tokens=task.max_length,
                        max_length=None,
                    )
                for number, tokens in zip(batch, found.tolist(), strict=True):
                    kept = [token for token in tokens if token not in not_said]
                    translations[number] = tokenizer.convert_ids_to_tokens(kept)
            return [translations[number] for number in range(len(sources))]

        return run

    serve(prepare)


if __name__ == "__main__":
    main()
