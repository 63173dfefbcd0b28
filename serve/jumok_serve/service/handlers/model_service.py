"""ModelService: lists and describes the server's models."""

from jumok_proto.conversion import model_to_proto, route_to_proto
from jumok_proto.v1.model_pb2 import GetModelRequest, GetModelResponse, ListModelsRequest, ListModelsResponse
from jumok_serve.service.handlers.requests import check_request
from jumok_serve.service.models.description import describe
from jumok_serve.service.models.registry import ModelRegistry
from jumok_serve.service.rpc.call import Call


class ModelService:
    """Describes the models of a registry."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models
        self._listed: tuple[object, ListModelsResponse] | None = None

    async def ListModels(self, request: ListModelsRequest, call: Call) -> ListModelsResponse:  # noqa: N802
        """Describe all models, and list the pairs that take two."""
        check_request(request)
        state = (self._models.routes(), [(entry, entry.state) for entry in self._models.entries()])
        if self._listed is None or self._listed[0] != state:  # many languages have tens of thousands of pairs
            response = ListModelsResponse(
                models=[model_to_proto(describe(entry)) for entry, _ in state[1]],
                routes=map(route_to_proto, state[0]),
            )
            self._listed = state, response
        return self._listed[1]

    async def GetModel(self, request: GetModelRequest, call: Call) -> GetModelResponse:  # noqa: N802
        """Describe the model of a name."""
        check_request(request)
        return GetModelResponse(model=model_to_proto(describe(self._models.find(request.name))))
