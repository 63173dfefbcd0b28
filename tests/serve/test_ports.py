"""A server with two ports: neither answers for the services of the other, whatever was called before."""

import asyncio
from pathlib import Path

import grpc
import pytest

from jumok_proto.v1.admin_pb2 import ListBundlesRequest
from jumok_proto.v1.admin_pb2_grpc import AdminServiceStub
from jumok_proto.v1.model_pb2 import ListModelsRequest
from jumok_proto.v1.model_pb2_grpc import ModelServiceStub
from jumok_serve.service.server import Administration

from .held_model import HeldModel, serving


def test_a_port_has_its_own_services_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        administration = Administration(root=tmp_path, load=lambda _: HeldModel(), port=0)
        async with serving(HeldModel(), administration=administration) as (server, channel):
            assert server.admin_address is not None
            async with grpc.aio.insecure_channel(server.admin_address) as admin:
                assert await AdminServiceStub(admin).ListBundles(ListBundlesRequest())
                assert await ModelServiceStub(channel).ListModels(ListModelsRequest())
                for call in (
                    AdminServiceStub(channel).ListBundles(ListBundlesRequest()),
                    ModelServiceStub(admin).ListModels(ListModelsRequest()),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call
                    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(scenario())
