"""The committed stubs are what the .proto files generate, and the .proto files keep to the conventions."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf.descriptor import EnumDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc  # type: ignore[import-untyped]

from jumok_proto.v1 import admin_pb2, alignment_pb2, decoding_pb2, file_pb2, glossary_pb2, model_pb2, translation_pb2

PROTO = Path(__file__).parents[2] / "proto"
FILES: list[FileDescriptor] = [
    module.DESCRIPTOR
    for module in (admin_pb2, alignment_pb2, decoding_pb2, file_pb2, glossary_pb2, model_pb2, translation_pb2)
]


def stubs(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*_pb2*.py*") if path.is_file()}


def test_regenerating_gives_the_committed_stubs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PROTO / "generate.py", "--out", tmp_path], check=True)
    committed = {name: data for name, data in stubs(PROTO).items() if "__pycache__" not in name}
    assert len(committed) == 2 * (7 + 5)
    assert stubs(tmp_path) == committed


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    """All files of the contract and those that they import, compiled from the repository alone."""
    protos = [str(path.relative_to(PROTO)) for path in (PROTO / "jumok_proto/v1").glob("*.proto")]
    compiled = tmp_path_factory.mktemp("contract") / "contract"
    well_known = files("grpc_tools") / "_proto"  # google.protobuf, which every protoc brings
    arguments = [f"-I{PROTO}", f"-I{PROTO / 'third_party'}", f"-I{well_known}", "--include_imports"]
    arguments += ["--include_source_info", f"--descriptor_set_out={compiled}"]
    assert protoc.main(["protoc", *arguments, *protos]) == 0
    return {file.name: file for file in FileDescriptorSet.FromString(compiled.read_bytes()).file}


def test_the_contract_compiles_from_the_repository_alone(contract: dict[str, FileDescriptorProto]) -> None:
    assert contract.keys() >= {"google/rpc/status.proto", *(file.name for file in FILES)}


def test_another_generator_is_refused(tmp_path: Path) -> None:
    program = (
        "import importlib.metadata, runpy, sys; importlib.metadata.version = lambda name: '9.9'; "
        f"sys.argv = ['generate.py', '--out', {str(tmp_path)!r}]; "
        f"runpy.run_path({str(PROTO / 'generate.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "grpcio-tools 1.72.1, found 9.9" in done.stderr
    assert stubs(tmp_path) == {}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_names_follow_the_conventions(file: FileDescriptor) -> None:
    assert file.package == "jumok.v1"
    for enum in file.enum_types_by_name.values():
        check_enum(enum)
    for service in file.services_by_name.values():
        assert service.name.endswith("Service")
        for method in service.methods:
            assert method.input_type.name == f"{method.name}Request"
            assert method.output_type.name == f"{method.name}Response"


def check_enum(enum: EnumDescriptor) -> None:
    prefix = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in enum.name).lstrip("_")
    assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
    assert all(value.name.startswith(f"{prefix}_") for value in enum.values)


@pytest.mark.parametrize("name", [file.name for file in FILES])
def test_everything_has_a_comment(name: str, contract: dict[str, FileDescriptorProto]) -> None:
    file = contract[name]
    commented = {tuple(location.path) for location in file.source_code_info.location if location.leading_comments}
    # Paths of messages, fields, enums, values, services and methods: see descriptor.proto on SourceCodeInfo.
    paths: list[tuple[int, ...]] = [(4, i) for i in range(len(file.message_type))]
    paths += [(4, i, 2, j) for i, message in enumerate(file.message_type) for j in range(len(message.field))]
    paths += [(5, i) for i in range(len(file.enum_type))]
    paths += [(5, i, 2, j) for i, enum in enumerate(file.enum_type) for j in range(len(enum.value))]
    paths += [(6, i) for i in range(len(file.service))]
    paths += [(6, i, 2, j) for i, service in enumerate(file.service) for j in range(len(service.method))]
    assert [path for path in paths if path not in commented] == []
