"""ModelService: lists and describes the server's models."""

import grpc

from jumok_proto.conversion import model_to_proto
from jumok_proto.v1 import model_pb2
from jumok_proto.v1.model_pb2_grpc import ModelServiceServicer
from jumok_serve.service.models.description import describe
from jumok_serve.service.models.registry import ModelRegistry


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
        return model_pb2.ListModelsResponse(
            models=[model_to_proto(describe(entry)) for entry in self._models.entries()]
        )

    async def GetModel(  # noqa: N802
        self,
        request: model_pb2.GetModelRequest,
        context: grpc.aio.ServicerContext[model_pb2.GetModelRequest, model_pb2.GetModelResponse],
    ) -> model_pb2.GetModelResponse:
        """Describe the model of a name."""
        return model_pb2.GetModelResponse(model=model_to_proto(describe(self._models.find(request.name))))
