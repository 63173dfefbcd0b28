"""Description of a model for ListModels, GetModel and administrators."""

from jumok_proto.errors import InvalidArgumentError, LanguageNotFoundError
from jumok_proto.results import DecodingDefaults, LanguagePair, Model
from jumok_serve.manifest.languages import Languages
from jumok_serve.service.models.registry import ModelEntry


def describe(entry: ModelEntry) -> Model:
    """Describe a model to callers."""
    model, manifest = entry.model, entry.model.manifest
    languages, generation, special = manifest.languages, manifest.generation, manifest.special_tokens
    return Model(
        name=manifest.name,
        version=manifest.version,
        architecture=manifest.architecture.family,
        source_languages=tuple(languages.sources),
        target_languages=tuple(languages.targets),
        language_pairs=tuple(LanguagePair(source=pair.source, target=pair.target) for pair in languages.pairs),
        default_pair=_default_pair(languages),
        max_source_length=manifest.limits.max_source_length,
        max_target_length=manifest.limits.max_target_length,
        defaults=DecodingDefaults(
            beam_size=generation.beam_size,
            num_hypotheses=generation.num_hypotheses,
            length_penalty=generation.length_penalty,
            early_stopping=generation.early_stopping,
            min_length=generation.min_length,
            max_length=generation.max_length,
            no_repeat_ngram_size=generation.no_repeat_ngram_size,
            repetition_penalty=generation.repetition_penalty,
            suppress_tokens=special.suppress,
            end_tokens=special.eos,
            forced_first_token=generation.forced_first_token,
            sample=generation.sample,
            temperature=generation.temperature,
            top_k=generation.top_k,
            top_p=generation.top_p,
            begin_suppress_tokens=generation.begin_suppress_tokens,
            bad_words=generation.bad_words,
            forced_last_tokens=generation.forced_last_tokens,
            renormalize=generation.renormalize,
        ),
        precision=model.precision,
        device=model.device,
        state=entry.state,
    )


def _default_pair(languages: Languages) -> LanguagePair | None:
    """Direction of a request without languages, or None if there is none."""
    try:
        direction = languages.direction()
    except (InvalidArgumentError, LanguageNotFoundError):
        return None
    return LanguagePair(source=direction.source, target=direction.target)
