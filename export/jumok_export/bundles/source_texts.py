"""Source texts and search options that verification and calibration translate with."""

from jumok_export.quantization.calibration import GreedySearch
from jumok_export.verification.agreement import random_sources
from jumok_proto.errors import InvalidArgumentError
from jumok_serve.manifest.languages import Direction, Languages
from jumok_serve.manifest.manifest import GenerationDefaults, Limits, SpecialTokens
from jumok_serve.tokenizers.tokenizer import Tokenizer


def some_direction(languages: Languages) -> Direction:
    """The default direction, else the first."""
    try:
        return languages.direction()
    except InvalidArgumentError:
        return languages.direction(*next(iter(languages.all_pairs)))


def greedy_search(
    direction: Direction, special_tokens: SpecialTokens, generation: GenerationDefaults, limits: Limits
) -> GreedySearch:
    """Options of greedy search in a direction."""
    return GreedySearch(
        start=special_tokens.start if direction.start is None else direction.start,
        forced_first=generation.forced_first_token if direction.forced_first is None else direction.forced_first,
        eos=special_tokens.eos,
        suppress=never_written(special_tokens, generation),
        max_length=limits.max_target_length,
    )


def random_texts(
    tokenizer: Tokenizer, special_tokens: SpecialTokens, direction: Direction, limits: Limits
) -> list[list[int]]:
    """Source ids of texts of random tokens, always the same."""
    prefix = [*direction.source_prefix, *(tokenizer.encode(direction.task_prefix) if direction.task_prefix else ())]
    suffix = direction.source_suffix
    ids = (special_tokens.pad, special_tokens.start, special_tokens.unk, *special_tokens.eos, *special_tokens.suppress)
    left_out = [token for token in ids if token is not None]
    longest = limits.max_source_length - len(prefix) - len(suffix)
    drawn = random_sources(tokenizer.source_vocab_size, left_out, max(1, longest))
    return [[*prefix, *tokens, *suffix] for tokens in drawn]


def never_written(special_tokens: SpecialTokens, generation: GenerationDefaults) -> tuple[int, ...]:
    """Suppressed tokens and one-token bad words, except for end tokens.

    No translation has them by default.
    """
    words = (word[0] for word in generation.bad_words if len(word) == 1)
    return (*special_tokens.suppress, *(token for token in words if token not in special_tokens.eos))
