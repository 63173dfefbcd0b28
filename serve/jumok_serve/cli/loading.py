"""Parts of a server by its settings: models, limits, glossaries and observers."""

import sys
import weakref
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from jumok_serve.bundle.model_root import copy_bundle
from jumok_serve.cli.named_models import bundles_of
from jumok_serve.cli.settings import NO_PIVOT, Configuration, flag
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.errors import BundleError
from jumok_serve.runtime.device import CudaSettings
from jumok_serve.runtime.process_memory import tune_malloc
from jumok_serve.sandbox.checker import BundleChecker
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import CallObserver
from jumok_serve.service.telemetry.logs import CallLog
from jumok_serve.text.terms.store import GlossaryStore
from jumok_serve.translator import Translator

SWITCH_INTERVAL_S = 0.001
"""Time after which a thread gives up Python's lock to a waiting thread. With the default of 5 ms, engine threads and
the event loop wait for each other, and an overloaded server translates a tenth less."""

Limits = TypeVar("Limits", EngineLimits, ServiceLimits)


def tune_process() -> None:
    """Set the process up for engine threads beside an event loop."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    tune_malloc()


def service_arguments(settings: Configuration) -> dict[str, Any]:
    """Return the arguments of ``Services`` that follow from settings alone.

    Raises:
        CredentialsError: the file of tokens is unusable.
        UsageError: of click: the folder of glossaries is unusable.
    """
    return {
        "limits": _limits(ServiceLimits, settings),
        "tokens": None if settings.tokens is None else TokenFile(settings.tokens),
        "pivot": "" if settings.pivot == NO_PIVOT else settings.pivot,
        "glossaries": _glossaries(settings),
    }


def _limits(kind: type[Limits], settings: Configuration) -> Limits:
    """Make limits of the settings that have their names."""
    names = {field.name for field in fields(kind)} & Configuration.model_fields.keys()
    return kind(**{name: getattr(settings, name) for name in names})


def open_observers(settings: Configuration, opened: ExitStack) -> list[CallObserver]:
    """Open the observers of calls, until the stack is closed."""
    observers: list[CallObserver] = []
    if settings.log_requests:
        observers.append(CallLog(texts=settings.log_texts))
    if settings.traces_endpoint is not None:
        from jumok_serve.service.telemetry.tracing import CallTracer  # noqa: PLC0415 - needs OpenTelemetry, an extra

        observers.append(opened.enter_context(CallTracer.to_collector(settings.traces_endpoint)))
    return observers


def _glossaries(settings: Configuration) -> GlossaryStore | None:
    if settings.glossaries is None:
        return None
    try:
        return GlossaryStore(settings.glossaries)
    except OSError as error:
        raise click.UsageError(
            f"{flag('glossaries')}: the folder {settings.glossaries} cannot be used: {error.strerror}; choose another"
        ) from error


def make_checker(settings: Configuration) -> BundleChecker | None:
    """Make the checker of bundles; None if they are trusted."""
    if settings.trusted_bundles:
        return None
    return BundleChecker(precision=settings.precision, shortlist=settings.shortlist)


def open_models(settings: Configuration, checker: BundleChecker | None) -> list[Translator]:
    """Open and warm up the models of all bundles.

    Raises:
        BundleError: a bundle is missing, or cannot be used.
    """
    bundles = [bundle for source in settings.bundles for bundle in bundles_of(source)]
    models: list[Translator] = []
    try:
        for bundle in bundles:
            models.append(open_model(settings, checker, bundle))
    except BaseException:
        for model in models:
            model.close(drain=False)
        raise
    return models


def open_model(settings: Configuration, checker: BundleChecker | None, bundle: Path) -> Translator:
    """Open and warm up the model of a bundle, or of a private copy."""
    if not settings.private_copies:
        return _open(settings, checker, bundle)
    copy = copy_bundle(bundle)
    try:
        translator = _open(settings, checker, Path(copy.name))
    except BundleError as error:  # it names the copy
        copy.cleanup()
        raise BundleError(bundle, error.problems) from error
    weakref.finalize(translator, copy.cleanup)
    return translator


def _open(settings: Configuration, checker: BundleChecker | None, bundle: Path) -> Translator:
    if checker is not None:
        checker.check(bundle)
    translator = Translator(
        bundle,
        precision=settings.precision,
        device=settings.device,
        cuda=CudaSettings(
            memory_limit_mib=settings.gpu_mem_limit_mib,
            arena=settings.gpu_arena,
            allow_copies=settings.gpu_allow_copies,
        ),
        replicas=settings.replicas,
        threads=settings.threads,
        shortlist=settings.shortlist,
        limits=_limits(EngineLimits, settings),
    )
    try:
        translator.warm_up()
    except BaseException:
        translator.close(drain=False)
        raise
    return translator
