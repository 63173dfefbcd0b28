"""Server reflection in both versions that tools speak: v1 and v1alpha."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from google.protobuf import descriptor_pool, json_format
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1_FILE = "grpc/reflection/v1/reflection.proto"


def _v1_file() -> FileDescriptor:
    """Return the contract of v1, which is that of v1alpha in another package.

    The library has v1alpha alone.
    """
    pool = descriptor_pool.Default()
    try:
        return pool.FindFileByName(V1_FILE)
    except KeyError:
        contract = FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(contract)
        contract = json_format.Parse(
            json_format.MessageToJson(contract).replace("v1alpha", "v1"), FileDescriptorProto()
        )
        contract.name = V1_FILE
        pool.AddSerializedFile(contract.SerializeToString())
        return pool.FindFileByName(V1_FILE)


V1_SERVICE = _v1_file().services_by_name["ServerReflection"]
V1ALPHA_SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
REFLECTION_SERVICES = (V1_SERVICE, V1ALPHA_SERVICE)


def reflection_servicers(names: Iterable[str], stopping: asyncio.Event) -> dict[ServiceDescriptor, object]:
    """Return the servicer of each version.

    Args:
        names: full names of the services to list, reflection among them.
        stopping: event that ends open calls, which tools keep for as long as they run.
    """
    v1alpha = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]  # its types lack it
    return {service: _Reflection(v1alpha, service, stopping) for service in REFLECTION_SERVICES}


class _Reflection:
    """Servicer of a version by that of v1alpha: their messages have the same bytes."""

    def __init__(self, v1alpha: Any, service: ServiceDescriptor, stopping: asyncio.Event) -> None:
        self._v1alpha = v1alpha
        self._response = GetMessageClass(service.methods_by_name["ServerReflectionInfo"].output_type)
        self._stopping = stopping

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Answer each request about the server's contracts."""
        async for response in self._v1alpha.ServerReflectionInfo(self._converted(requests), context):
            yield self._response.FromString(response.SerializeToString())

    async def _converted(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield requests of v1alpha, until the caller or the server stops."""
        reader, stopping = aiter(requests), asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                reading = asyncio.ensure_future(anext(reader, None))
                try:
                    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    request = reading.result() if reading.done() else None
                finally:
                    reading.cancel()
                if request is None:
                    return
                yield reflection_pb2.ServerReflectionRequest.FromString(request.SerializeToString())
        finally:
            stopping.cancel()
