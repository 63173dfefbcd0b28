"""Reflection in v1 and v1alpha, as generic tools use it."""

from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from tests.support.hang import HANG_S
from tests.support.servers.fake_model import FakeModel, serving

VERSIONS = ("v1", "v1alpha")


def method_of(channel: grpc.aio.Channel, version: str) -> Any:
    """Return the method of a version."""
    return channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        ServerReflectionRequest.SerializeToString,
        ServerReflectionResponse.FromString,
    )


async def reflect(
    channel: grpc.aio.Channel, version: str, *requests: ServerReflectionRequest
) -> list[ServerReflectionResponse]:
    """Send requests of a version; the messages of both have the same bytes."""
    return [response async for response in method_of(channel, version)(iter(requests))]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_tool_that_knows_no_contract_can_call(version: str) -> None:
    async with serving(FakeModel()) as (_, channel):
        listed, unknown = await reflect(
            channel,
            version,
            ServerReflectionRequest(list_services=""),
            ServerReflectionRequest(file_containing_symbol="any.Unknown"),
        )
        names = [service.name for service in listed.list_services_response.service]
        assert {f"grpc.reflection.{each}.ServerReflection" for each in VERSIONS} <= set(names)
        assert listed.original_request == ServerReflectionRequest(list_services="")
        assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        pool = DescriptorPool()
        added: set[str] = set()
        for name in names:  # its own contract among them
            (found,) = await reflect(channel, version, ServerReflectionRequest(file_containing_symbol=name))
            contracts = map(FileDescriptorProto.FromString, found.file_descriptor_response.file_descriptor_proto)
            waiting = [contract for contract in contracts if contract.name not in added]
            while waiting:  # those that a contract imports may come before or after it
                contract = waiting.pop(0)
                if added.issuperset(contract.dependency):
                    added.add(contract.name)
                    pool.Add(contract)
                else:
                    waiting.append(contract)
            assert pool.FindServiceByName(name).methods
        assert "google/rpc/status.proto" in added
        (by_name,) = await reflect(
            channel, version, ServerReflectionRequest(file_by_filename="google/rpc/status.proto")
        )
        assert by_name.file_descriptor_response.file_descriptor_proto
        method = pool.FindServiceByName("jumok.v1.ModelService").FindMethodByName("ListModels")
        answer = await channel.unary_unary("/jumok.v1.ModelService/ListModels", None, None)(b"")
        (model,) = GetMessageClass(method.output_type).FromString(answer).models  # type: ignore[attr-defined]
        assert model.name == "held"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_tool_that_stays_does_not_keep_a_server_that_stops(version: str) -> None:
    async with serving(FakeModel()) as (server, channel):
        call = method_of(channel, version)()
        await call.write(ServerReflectionRequest(list_services=""))
        assert (await call.read()).list_services_response.service
        await server.stop(HANG_S)
        assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # its types lack it
        assert await call.code() is grpc.StatusCode.OK
