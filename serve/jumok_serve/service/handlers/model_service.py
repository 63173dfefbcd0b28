"""ModelService: lists and describes the server's models."""

from jumok_proto.conversion import model_to_proto, route_to_proto
from jumok_proto.v1.model_pb2 import GetModelRequest, GetModelResponse, ListModelsRequest, ListModelsResponse
from jumok_proto.v1.model_pb2_grpc import ModelServiceServicer
from jumok_serve.service.handlers.requests import Context, check_request
from jumok_serve.service.models.description import describe
from jumok_serve.service.models.registry import ModelRegistry


class ModelService(ModelServiceServicer):
    """Describes the models of a registry."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    async def ListModels(self, request: ListModelsRequest, context: Context) -> ListModelsResponse:  # noqa: N802
        """Describe all models, and list the pairs that take two."""
        check_request(request)
        return ListModelsResponse(
            models=[model_to_proto(describe(entry)) for entry in self._models.entries()],
            routes=[route_to_proto(route) for route in self._models.routes()],
        )

    async def GetModel(self, request: GetModelRequest, context: Context) -> GetModelResponse:  # noqa: N802
        """Describe the model of a name."""
        check_request(request)
        return GetModelResponse(model=model_to_proto(describe(self._models.find(request.name))))
