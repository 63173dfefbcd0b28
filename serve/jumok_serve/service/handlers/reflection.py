"""Server reflection in both versions that tools speak: v1 and v1alpha."""

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


def reflection_servicers(names: Iterable[str]) -> dict[ServiceDescriptor, object]:
    """Return the servicer of each version.

    Args:
        names: full names of the services to list, reflection among them.
    """
    v1alpha = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]  # its types lack it
    return {V1_SERVICE: _ReflectionV1(v1alpha), V1ALPHA_SERVICE: v1alpha}


class _ReflectionV1:
    """Servicer of v1 by that of v1alpha: their messages have the same bytes."""

    def __init__(self, v1alpha: Any) -> None:
        self._v1alpha = v1alpha
        self._response = GetMessageClass(V1_SERVICE.methods_by_name["ServerReflectionInfo"].output_type)

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Answer each request about the server's contracts."""
        converted = (
            reflection_pb2.ServerReflectionRequest.FromString(request.SerializeToString()) async for request in requests
        )
        async for response in self._v1alpha.ServerReflectionInfo(converted, context):
            yield self._response.FromString(response.SerializeToString())
