"""ModelService: says which models the server holds."""

import grpc

from jumok_proto.conversion import model_to_proto
from jumok_proto.errors import InvalidArgumentError, LanguageNotFoundError
from jumok_proto.results import DecodingDefaults, LanguagePair, Model
from jumok_proto.v1 import model_pb2
from jumok_proto.v1.model_pb2_grpc import ModelServiceServicer
from jumok_serve.manifest.languages import Languages
from jumok_serve.service.models.registry import HeldModel, ModelRegistry


class ModelService(ModelServiceServicer):
    """Describes the models of a registry."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    async def ListModels(  # noqa: N802
        self,
        request: model_pb2.ListModelsRequest,
        context: grpc.aio.ServicerContext[model_pb2.ListModelsRequest, model_pb2.ListModelsResponse],
    ) -> model_pb2.ListModelsResponse:
        """Describe all models."""
        return model_pb2.ListModelsResponse(models=[model_to_proto(describe(held)) for held in self._models.held()])

    async def GetModel(  # noqa: N802
        self,
        request: model_pb2.GetModelRequest,
        context: grpc.aio.ServicerContext[model_pb2.GetModelRequest, model_pb2.GetModelResponse],
    ) -> model_pb2.GetModelResponse:
        """Describe the model of a name."""
        return model_pb2.GetModelResponse(model=model_to_proto(describe(self._models.find(request.name))))


def describe(held: HeldModel) -> Model:
    """What callers are told of a model."""
    model, manifest = held.model, held.model.manifest
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
        state=held.state,
    )


def _default_pair(languages: Languages) -> LanguagePair | None:
    """The direction of a request that names no language, if it need not name one."""
    try:
        direction = languages.direction()
    except (InvalidArgumentError, LanguageNotFoundError):
        return None
    return LanguagePair(source=direction.source, target=direction.target)
