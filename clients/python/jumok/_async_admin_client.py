"""The client for operators built on asyncio: load and unload models."""

from jumok._transport.aio import AsyncConnected, AsyncConnection
from jumok._transport.servers import Servers, Tls, one_address
from jumok._validation import check_text
from jumok_proto.conversion import bundle_from_proto, loaded_from_proto, model_from_proto
from jumok_proto.results import BundleSummary, LoadResult, Model
from jumok_proto.v1.admin_pb2 import ListBundlesRequest, LoadModelRequest, UnloadModelRequest

DEFAULT_TIMEOUT_S = 600.0
"""Large models take minutes to load."""


class AsyncAdminClient(AsyncConnected):
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
        servers = Servers(one_address(server), tls=tls, token=token, timeout_s=timeout_s, max_attempts=0)
        self._connection = AsyncConnection(servers)

    async def list_bundles(self, *, timeout_s: float | None = None) -> list[BundleSummary]:
        """List the bundles in the server's model root, sorted by folder."""
        response = await self._connection.call(lambda stubs: stubs.admin.ListBundles, ListBundlesRequest(), timeout_s)
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
        return loaded_from_proto(await self._connection.call(lambda stubs: stubs.admin.LoadModel, request, timeout_s))

    async def unload_model(self, name: str, *, timeout_s: float | None = None) -> Model:
        """Unload a model after its accepted requests.

        Raises:
            ModelNotFoundError: the server does not hold the model.
        """
        request = UnloadModelRequest(name=check_text("name", name))
        response = await self._connection.call(lambda stubs: stubs.admin.UnloadModel, request, timeout_s)
        return model_from_proto(response.model)
