"""AdminService: loads models from the server's model root, and unloads them."""

import grpc

from jumok_proto.admin_conversion import bundle_to_proto, loaded_to_proto
from jumok_proto.conversion import model_to_proto
from jumok_proto.results import BundleState, BundleSummary
from jumok_proto.v1 import admin_pb2
from jumok_proto.v1.admin_pb2_grpc import AdminServiceServicer
from jumok_serve.bundle.model_root import FoundBundle
from jumok_serve.service.handlers.requests import reject_unknown_fields
from jumok_serve.service.models.lifecycle import Lifecycle
from jumok_serve.service.models.registry import ModelRegistry


class AdminService(AdminServiceServicer):
    """Changes the models of a registry."""

    def __init__(self, models: ModelRegistry, lifecycle: Lifecycle) -> None:
        self._models = models
        self._lifecycle = lifecycle

    async def ListBundles(  # noqa: N802
        self,
        request: admin_pb2.ListBundlesRequest,
        context: grpc.aio.ServicerContext[admin_pb2.ListBundlesRequest, admin_pb2.ListBundlesResponse],
    ) -> admin_pb2.ListBundlesResponse:
        """List the bundles of the root."""
        reject_unknown_fields(request)
        return admin_pb2.ListBundlesResponse(
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
        if found.folder == self._lifecycle.loading:
            return BundleState.LOADING
        if found.problem:
            return BundleState.UNUSABLE
        versions = {(model.manifest.name, model.manifest.version) for model in self._models}
        return BundleState.LOADED if (found.model, found.version) in versions else BundleState.AVAILABLE

    async def LoadModel(  # noqa: N802
        self,
        request: admin_pb2.LoadModelRequest,
        context: grpc.aio.ServicerContext[admin_pb2.LoadModelRequest, admin_pb2.LoadModelResponse],
    ) -> admin_pb2.LoadModelResponse:
        """Load a bundle; responds when it takes requests."""
        reject_unknown_fields(request)
        return loaded_to_proto(await self._lifecycle.load(request.bundle))

    async def UnloadModel(  # noqa: N802
        self,
        request: admin_pb2.UnloadModelRequest,
        context: grpc.aio.ServicerContext[admin_pb2.UnloadModelRequest, admin_pb2.UnloadModelResponse],
    ) -> admin_pb2.UnloadModelResponse:
        """Unload a model; responds when it takes no more requests."""
        reject_unknown_fields(request)
        return admin_pb2.UnloadModelResponse(model=model_to_proto(await self._lifecycle.unload(request.name)))
