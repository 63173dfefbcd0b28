"""What one request, one connection and one caller may ask of a server."""

from collections.abc import Sequence
from dataclasses import dataclass

from jumok_proto.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Bounds of the service, on by default; those of queue and batch are ``jumok_serve.engine.limits.EngineLimits``.

    Attributes:
        max_message_bytes: of a request.
        max_texts: of a request.
        max_characters: of a text, to be truncated or not, of a target prefix, and of a target.
        max_hypotheses: of all texts of a request together, which bounds its answer.
        max_beam_hypotheses: beam size times hypotheses of a text; the default is the most that options allow.
        max_streams: calls that one connection may have open; its others wait at the client.
        max_calls: calls that may be open on all connections together, health checks not counted.
        requests_per_second: calls that each caller may make in the long run; None: no bound.
        request_burst: calls that it may make at once after a rest; None: those of one second, at least 1.
    """

    max_message_bytes: int = 32 * 2**20
    max_texts: int = 1024
    max_characters: int = 100_000
    max_hypotheses: int = 4096
    max_beam_hypotheses: int = 4096
    max_streams: int = 1024
    max_calls: int = 8192
    requests_per_second: float | None = None
    request_burst: int | None = None

    def check_number(self, texts: int) -> None:
        """Raise InvalidArgumentError for too many texts."""
        if texts > self.max_texts:
            raise InvalidArgumentError(
                f"a request takes at most {self.max_texts} texts, got {texts}; send several requests", field="contents"
            )

    def check_lengths(self, **texts: Sequence[str]) -> None:
        """Raise InvalidArgumentError for a text that is too long; the names are those of the fields."""
        for field, of_field in texts.items():
            for index, text in enumerate(of_field):
                if len(text) > self.max_characters:
                    raise InvalidArgumentError(
                        f"a text takes at most {self.max_characters} characters here, got {len(text)}: split it",
                        field=f"{field}[{index}]",
                    )

    def check_hypotheses(self, texts: int, beam_size: int, num_hypotheses: int) -> None:
        """Raise InvalidArgumentError for too many hypotheses, of all texts or of one with its beam."""
        if texts * num_hypotheses > self.max_hypotheses:
            raise InvalidArgumentError(
                f"a request takes at most {self.max_hypotheses} hypotheses of all texts together, got "
                f"{texts * num_hypotheses}; send several requests",
                field="contents",
            )
        if beam_size * num_hypotheses > self.max_beam_hypotheses:
            raise InvalidArgumentError(
                f"beam_size times num_hypotheses is at most {self.max_beam_hypotheses} here, got {beam_size} times "
                f"{num_hypotheses}",
                field="options.beam_size",
            )
