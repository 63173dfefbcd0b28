"""The models of a request."""

from typing import NamedTuple

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.service.models.loaded_model import LoadedModel


class ChosenModels(NamedTuple):
    """The models of a request: one, or two that translate one after the other.

    Attributes:
        models: models, first to last.
        pivot: language between two models.
    """

    models: tuple[LoadedModel, ...]
    pivot: str = ""

    @property
    def last(self) -> LoadedModel:
        """The model that writes the translations."""
        return self.models[-1]

    def languages(self, source: str, target: str) -> tuple[str, str]:
        """Return the first model's source and the last model's target language, as the models spell them.

        Args:
            source, target: languages of the request; empty: the model's default.
        """
        first, last = self.models[0].manifest.languages, self.last.manifest.languages
        middle = self.pivot if len(self.models) > 1 else None
        of_first = first.direction(source or None, middle or target or None)
        return of_first.source, last.direction(middle or source or None, target or None).target

    def only(self, work: str) -> LoadedModel:
        """Return the only model, for work that two cannot do together.

        Raises:
            InvalidArgumentError: the request has two models.
        """
        if len(self.models) > 1:
            names = " and ".join(model.manifest.name for model in self.models)
            raise InvalidArgumentError(
                f"{work} takes one model, but these languages take two, {names}: name the model of the request",
                field="model",
            )
        return self.last
