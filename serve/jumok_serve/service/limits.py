"""Limits of one request, one connection and one caller."""

from collections.abc import Sequence
from dataclasses import dataclass

from jumok_proto.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class ServiceLimits:
    """Limits of the service; ``jumok_serve.engine.limits.EngineLimits`` has those of queue and batch.

    Attributes:
        max_message_bytes: size of a request.
        max_texts: texts of a request.
        max_characters: characters of a text before truncation, of a target prefix, and of a target.
        max_hypotheses: hypotheses of all texts of a request together; bounds the response.
        max_beam_hypotheses: beam size times hypotheses of a text; the default is the most that options allow.
        max_streams: open calls of one connection; further calls wait in the client.
        max_calls: open calls of all connections together, without health checks.
        requests_per_second: sustained rate of each caller; None: no limit.
        request_burst: calls at once after a pause; None: calls of one second, at least 1.
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

    def check_num_texts(self, num_texts: int) -> None:
        """Raise InvalidArgumentError for too many texts."""
        if num_texts > self.max_texts:
            raise InvalidArgumentError(
                f"a request takes at most {self.max_texts} texts, got {num_texts}; send several requests",
                field="contents",
            )

    def check_lengths(self, **texts: Sequence[str]) -> None:
        """Raise InvalidArgumentError for a text that is too long; keywords are request fields."""
        for field, field_texts in texts.items():
            for index, text in enumerate(field_texts):
                if len(text) > self.max_characters:
                    raise InvalidArgumentError(
                        f"a text takes at most {self.max_characters} characters here, got {len(text)}: split it",
                        field=f"{field}[{index}]",
                    )

    def check_hypotheses(self, num_texts: int, beam_size: int, num_hypotheses: int) -> None:
        """Raise InvalidArgumentError for too many hypotheses, in all or for one text."""
        if num_texts * num_hypotheses > self.max_hypotheses:
            raise InvalidArgumentError(
                f"a request takes at most {self.max_hypotheses} hypotheses of all texts together, got "
                f"{num_texts * num_hypotheses}; send several requests",
                field="contents",
            )
        if beam_size * num_hypotheses > self.max_beam_hypotheses:
            raise InvalidArgumentError(
                f"beam_size times num_hypotheses is at most {self.max_beam_hypotheses} here, got {beam_size} times "
                f"{num_hypotheses}",
                field="options.beam_size",
            )
