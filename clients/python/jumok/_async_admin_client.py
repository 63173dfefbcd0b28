"""The client for operators built on asyncio: load and unload models."""

from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from jumok._errors import call_error
from jumok._transport.address import one_address
from jumok._transport.channel import Opener, Tls
from jumok._transport.links import AsyncLinks
from jumok._validation import check_open, check_text, check_timeout
from jumok_proto.admin_conversion import bundle_from_proto, loaded_from_proto
from jumok_proto.conversion import model_from_proto
from jumok_proto.results import BundleSummary, LoadResult, Model
from jumok_proto.v1.admin_pb2 import ListBundlesRequest, LoadModelRequest, UnloadModelRequest
from jumok_proto.v1.admin_pb2_grpc import AdminServiceStub

DEFAULT_TIMEOUT_S = 600.0
"""Large models take minutes to load."""


class AsyncAdminLink:
    """The administration of a server."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.admin = AdminServiceStub(channel)


class AsyncAdminClient:
    """A connection to one server, to change its models.

    Shared by the tasks of a program.

    Calls are never retried. Loading goes on if the caller stops waiting.

        async with AsyncAdminClient("localhost:50051") as admin:
            print((await admin.load_model("en-de-2")).replaced_version)

    Args:
        server: ``host:port`` of the AdminService, which a server with a model root has.
        tls: TLS settings; None: plain text.
        token: a token with the scope ``admin``, sent over TLS only.
        timeout_s: timeout of each call without its own.

    Raises:
        JumokError: a subclass for each failure of a call; see ``jumok_proto.errors``.
    """

    def __init__(
        self, server: str, *, tls: Tls | None = None, token: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._server = one_address(server)
        self._timeout_s = check_timeout(timeout_s)
        self._opener = Opener(tls, token)
        self._links = AsyncLinks(lambda: AsyncAdminLink(self._opener.async_channel(self._server)))
        self._closed = False

    async def list_bundles(self, *, timeout_s: float | None = None) -> list[BundleSummary]:
        """List the bundles in the server's model root, sorted by folder."""
        try:
            response = await self._link().admin.ListBundles(ListBundlesRequest(), timeout=self._limit(timeout_s))
        except grpc.RpcError as error:
            raise call_error(error, self._server, tls=self._opener.tls) from None
        return [bundle_from_proto(bundle) for bundle in response.bundles]

    async def load_model(self, bundle: str, *, timeout_s: float | None = None) -> LoadResult:
        """Load a bundle and wait; it replaces the model of its name.

        Args:
            bundle: name of a folder in the model root.
            timeout_s: timeout of the call; None: the client's.

        Raises:
            InvalidArgumentError: the name is not that of a folder in the model root.
            BundleNotFoundError: the model root has no such folder.
            BundleNotLoadedError: the bundle cannot be used; the message has the reason.
        """
        request = LoadModelRequest(bundle=check_text("bundle", bundle))
        try:
            response = await self._link().admin.LoadModel(request, timeout=self._limit(timeout_s))
        except grpc.RpcError as error:
            raise call_error(error, self._server, tls=self._opener.tls) from None
        return loaded_from_proto(response)

    async def unload_model(self, name: str, *, timeout_s: float | None = None) -> Model:
        """Unload a model after its accepted requests.

        Raises:
            ModelNotFoundError: the server does not hold the model.
        """
        request = UnloadModelRequest(name=check_text("name", name))
        try:
            response = await self._link().admin.UnloadModel(request, timeout=self._limit(timeout_s))
        except grpc.RpcError as error:
            raise call_error(error, self._server, tls=self._opener.tls) from None
        return model_from_proto(response.model)

    async def close(self) -> None:
        """Close the connection; running calls fail with CallCancelledError, later ones with ValueError."""
        self._closed = True
        link = self._links.take()
        if link is not None:
            await link.channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _link(self) -> AsyncAdminLink:
        check_open(self._closed)
        return self._links.get()

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else check_timeout(timeout_s)
