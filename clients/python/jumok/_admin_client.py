"""The clients for whoever looks after a server: which models it holds."""

from types import TracebackType
from typing import Self

import grpc

from jumok import _calls
from jumok._errors import call_error
from jumok._transport.channel import Tls, open_async_channel, open_channel
from jumok_proto.admin_conversion import bundle_from_proto, loaded_from_proto
from jumok_proto.conversion import model_from_proto
from jumok_proto.results import BundleSummary, LoadResult, Model
from jumok_proto.v1.admin_pb2 import ListBundlesRequest, LoadModelRequest, UnloadModelRequest
from jumok_proto.v1.admin_pb2_grpc import AdminServiceStub

DEFAULT_TIMEOUT_S = 600.0
"""Large models take minutes to load."""


class AdminClient:
    """A connection to the one server whose models are to change; to be shared by all threads of a program.

    ``server`` is the ``host:port`` of its AdminService, which it has where it is configured with a model root. ``tls``
    and ``token``, whose scope must be ``admin``, are those of ``Client``. ``timeout_s`` bounds every call that does not
    bring its own limit; a model whose loading has begun is loaded even if the caller gives up. No call is made twice.
    All methods raise subclasses of ``JumokError``.

        with AdminClient("localhost:50051") as admin:
            print(admin.load_model("en-de-2").replaced_version)
    """

    def __init__(
        self, server: str, *, tls: Tls | None = None, token: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._server = server
        self._timeout_s = _calls.check_timeout(timeout_s)
        self._channel = open_channel(server, tls=tls, token=token)
        self._stub = AdminServiceStub(self._channel)

    def list_bundles(self, *, timeout_s: float | None = None) -> list[BundleSummary]:
        """List the bundles in the server's model root, sorted by folder."""
        try:
            response = self._stub.ListBundles(ListBundlesRequest(), timeout=self._limit(timeout_s))
        except grpc.RpcError as error:
            raise call_error(error, self._server) from error
        return [bundle_from_proto(bundle) for bundle in response.bundles]

    def load_model(self, bundle: str, *, timeout_s: float | None = None) -> LoadResult:
        """Load a bundle, and wait until it serves; it takes the place of a model with the same name.

        Raise InvalidArgumentError for what is no folder's name in the model root, NotFoundError where there is no such folder,
        and FailedPreconditionError, with the reason, for a bundle that cannot be used.
        """
        request = LoadModelRequest(bundle=_calls.check_text("bundle", bundle))
        try:
            return loaded_from_proto(self._stub.LoadModel(request, timeout=self._limit(timeout_s)))
        except grpc.RpcError as error:
            raise call_error(error, self._server) from error

    def unload_model(self, name: str, *, timeout_s: float | None = None) -> Model:
        """Have a model take no more requests; it finishes those that it has. Raise NotFoundError where there is none."""
        request = UnloadModelRequest(name=_calls.check_text("name", name))
        try:
            return model_from_proto(self._stub.UnloadModel(request, timeout=self._limit(timeout_s)).model)
        except grpc.RpcError as error:
            raise call_error(error, self._server) from error

    def close(self) -> None:
        """Close the connection; calls that still run fail with CallCancelledError, and further ones with ValueError."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else _calls.check_timeout(timeout_s)


class AsyncAdminClient:
    """``AdminClient`` for asyncio: the same methods, to be awaited; to be made and used in one event loop.

    async with AsyncAdminClient("localhost:50051") as admin:
        await admin.unload_model("en-de")
    """

    def __init__(
        self, server: str, *, tls: Tls | None = None, token: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._server = server
        self._timeout_s = _calls.check_timeout(timeout_s)
        self._channel = open_async_channel(server, tls=tls, token=token)
        self._stub = AdminServiceStub(self._channel)

    async def list_bundles(self, *, timeout_s: float | None = None) -> list[BundleSummary]:
        """List the bundles in the server's model root, sorted by folder."""
        try:
            response = await self._stub.ListBundles(ListBundlesRequest(), timeout=self._limit(timeout_s))
        except grpc.RpcError as error:
            raise call_error(error, self._server) from error
        return [bundle_from_proto(bundle) for bundle in response.bundles]

    async def load_model(self, bundle: str, *, timeout_s: float | None = None) -> LoadResult:
        """Load a bundle, and wait until it serves; see ``AdminClient``."""
        request = LoadModelRequest(bundle=_calls.check_text("bundle", bundle))
        try:
            return loaded_from_proto(await self._stub.LoadModel(request, timeout=self._limit(timeout_s)))
        except grpc.RpcError as error:
            raise call_error(error, self._server) from error

    async def unload_model(self, name: str, *, timeout_s: float | None = None) -> Model:
        """Have a model take no more requests; see ``AdminClient``."""
        request = UnloadModelRequest(name=_calls.check_text("name", name))
        try:
            response = await self._stub.UnloadModel(request, timeout=self._limit(timeout_s))
        except grpc.RpcError as error:
            raise call_error(error, self._server) from error
        return model_from_proto(response.model)

    async def close(self) -> None:
        """Close the connection; calls that still run fail with CallCancelledError."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else _calls.check_timeout(timeout_s)
