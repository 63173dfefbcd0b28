"""The side of Hugging Face's ``generate``: the checkpoint itself in PyTorch, in fp32."""

import argparse
from typing import Any

import torch
import transformers

from duel_sides.worker import Run, Task, serve


def main() -> None:
    """Serve the duel with a checkpoint; all sources have one length, so nothing is padded."""
    parser = argparse.ArgumentParser(description="The side of Hugging Face's generate in a duel.")
    parser.add_argument("checkpoint")
    parser.add_argument("threads", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    auto: Any = transformers  # untyped
    tokenizer = auto.AutoTokenizer.from_pretrained(arguments.checkpoint)
    model = auto.AutoModelForSeq2SeqLM.from_pretrained(arguments.checkpoint, dtype=torch.float32).eval()
    not_said = {tokenizer.pad_token_id, tokenizer.eos_token_id}  # Marian starts from its padding

    def prepare(task: Task) -> Run:
        source_ids = torch.tensor([tokenizer.convert_tokens_to_ids(tokens) for tokens in task.tokens])  # [B, S]

        def run() -> list[list[str]]:
            with torch.inference_mode():
                found = model.generate(
                    input_ids=source_ids,
                    attention_mask=torch.ones_like(source_ids),
                    do_sample=False,
                    num_beams=task.beam_size,
                    length_penalty=1.0,
                    early_stopping=True,
                    min_new_tokens=task.min_length,
                    max_new_tokens=task.max_length,
                    max_length=None,
                )
            kept = ([token for token in tokens if token not in not_said] for tokens in found.tolist())
            return [tokenizer.convert_ids_to_tokens(tokens) for tokens in kept]

        return run

    serve(prepare)


if __name__ == "__main__":
    main()
