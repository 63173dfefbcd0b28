"""Bundles and load results as protobuf messages, and back."""

from jumok_proto.conversion import model_from_proto, model_to_proto
from jumok_proto.fields import Conversion, Enumeration, Form
from jumok_proto.results import BundleState, BundleSummary, LoadResult
from jumok_proto.v1 import admin_pb2

_BUNDLE = Conversion(
    BundleSummary,
    admin_pb2.BundleSummary,
    state=Enumeration(BundleState, admin_pb2.BundleState, "BUNDLE_STATE", default=BundleState.AVAILABLE),
)
bundle_to_proto, bundle_from_proto = _BUNDLE.to_proto, _BUNDLE.from_proto
"""Make the message of a bundle, and read it."""

_LOADED = Conversion(LoadResult, admin_pb2.LoadModelResponse, model=Form(model_to_proto, model_from_proto))
loaded_to_proto, loaded_from_proto = _LOADED.to_proto, _LOADED.from_proto
"""Make the message of a load result, and read it."""
