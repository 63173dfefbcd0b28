"""How far the translation of a text has come, for who wants to see it before it is done."""

from collections.abc import Callable, Sequence

from jumok_serve.search import Search


class Progress:
    """What a translation is sure to begin with, so far; the engine's thread writes it, and any may read it.

    Only the newest is kept, so that nobody who is slow to read holds up the engine or takes memory.

    Args:
        on_change: is called in the engine's thread when there is more of it, and must return soon.

    Attributes:
        token_ids: those tokens, a target prefix not among them.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.token_ids: Sequence[int] = ()
        self._on_change = on_change

    def see(self, search: Search) -> None:
        """Take note of a search between two steps."""
        sure = search.stable_tokens()
        if len(sure) > len(self.token_ids):
            self.token_ids = sure
            self._on_change()
