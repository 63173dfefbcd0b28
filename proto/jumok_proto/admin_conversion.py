"""Bundles and load results as protobuf messages, and back."""

from jumok_proto.conversion import model_from_proto, model_to_proto
from jumok_proto.results import BundleState, BundleSummary, LoadResult
from jumok_proto.v1 import admin_pb2

_STATES = {
    BundleState.AVAILABLE: admin_pb2.BUNDLE_STATE_AVAILABLE,
    BundleState.LOADING: admin_pb2.BUNDLE_STATE_LOADING,
    BundleState.LOADED: admin_pb2.BUNDLE_STATE_LOADED,
    BundleState.UNUSABLE: admin_pb2.BUNDLE_STATE_UNUSABLE,
}
_STATES_BACK = {number: state for state, number in _STATES.items()}


def bundle_to_proto(bundle: BundleSummary) -> admin_pb2.BundleSummary:
    """Make the message of a bundle."""
    return admin_pb2.BundleSummary(
        bundle=bundle.bundle,
        model=bundle.model,
        version=bundle.version,
        state=_STATES[bundle.state],
        problem=bundle.problem,
    )


def bundle_from_proto(message: admin_pb2.BundleSummary) -> BundleSummary:
    """Read the description of a bundle."""
    return BundleSummary(
        bundle=message.bundle,
        model=message.model,
        version=message.version,
        state=_STATES_BACK.get(message.state, BundleState.AVAILABLE),
        problem=message.problem,
    )


def loaded_to_proto(loaded: LoadResult) -> admin_pb2.LoadModelResponse:
    """Make the message of a load result."""
    return admin_pb2.LoadModelResponse(
        model=model_to_proto(loaded.model), replaced_version=loaded.replaced_version or ""
    )


def loaded_from_proto(message: admin_pb2.LoadModelResponse) -> LoadResult:
    """Read a load result."""
    return LoadResult(model=model_from_proto(message.model), replaced_version=message.replaced_version or None)
