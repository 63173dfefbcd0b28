"""ModelService and AdminService."""

from jumok_proto.conversion import bundle_to_proto, loaded_to_proto, model_to_proto, route_to_proto
from jumok_proto.results import BundleState, BundleSummary
from jumok_proto.v1.admin_pb2 import (
    ListBundlesRequest,
    ListBundlesResponse,
    LoadModelRequest,
    LoadModelResponse,
    UnloadModelRequest,
    UnloadModelResponse,
)
from jumok_proto.v1.model_pb2 import GetModelRequest, GetModelResponse, ListModelsRequest, ListModelsResponse
from jumok_serve.bundle.model_root import FoundBundle
from jumok_serve.service.models.lifecycle import Lifecycle, describe
from jumok_serve.service.models.registry import ModelRegistry
from jumok_serve.service.rpc.call import Call
from jumok_serve.service.rpc.request_reader import check_request


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


class AdminService:
    """Changes the models of a registry."""

    def __init__(self, models: ModelRegistry, lifecycle: Lifecycle) -> None:
        self._models = models
        self._lifecycle = lifecycle

    async def ListBundles(self, request: ListBundlesRequest, call: Call) -> ListBundlesResponse:  # noqa: N802
        """List the bundles of the root."""
        check_request(request)
        return ListBundlesResponse(
            bundles=[
                bundle_to_proto(
                    BundleSummary(
                        bundle=found.folder,
                        model=found.model,
                        version=found.version,
                        state=self._state(found),
                        problem=found.problem,
                    )
                )
                for found in await self._lifecycle.bundles()
            ]
        )

    def _state(self, found: FoundBundle) -> BundleState:
        if found.folder in self._lifecycle.loading:
            return BundleState.LOADING
        if found.problem:
            return BundleState.UNUSABLE
        versions = {(model.manifest.name, model.manifest.version) for model in self._models}
        return BundleState.LOADED if (found.model, found.version) in versions else BundleState.AVAILABLE

    async def LoadModel(self, request: LoadModelRequest, call: Call) -> LoadModelResponse:  # noqa: N802
        """Load a bundle; responds when it takes requests."""
        check_request(request)
        return loaded_to_proto(await self._lifecycle.load(request.bundle))

    async def UnloadModel(self, request: UnloadModelRequest, call: Call) -> UnloadModelResponse:  # noqa: N802
        """Unload a model; responds when it takes no more requests."""
        check_request(request)
        return UnloadModelResponse(model=model_to_proto(await self._lifecycle.unload(request.name)))
