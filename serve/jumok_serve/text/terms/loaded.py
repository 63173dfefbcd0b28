"""Glossaries in memory: one copy of each, which all calls share."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Set
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from jumok_proto.errors import OverloadedError
from jumok_serve.text.terms.glossary import Glossary

MAX_KEPT_BYTES: Final = 32 * 2**20
"""Memory of the glossaries that are kept after their last use; a single larger one is kept too."""
MAX_BYTES: Final = 128 * 2**20
"""Memory of all glossaries from which a further one is refused; one owner may have half."""
RETRY_AFTER_S: Final = 1.0


class Key(NamedTuple):
    """A dictionary of a stored glossary."""

    owner: str
    revision: str
    number: int


class LoadedGlossaries:
    """Glossaries that calls use, and the last ones that were used. Any thread may call the methods."""

    def __init__(self) -> None:
        self._reading = threading.Lock()  # held while a glossary is read: one at a time takes the memory for it
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[Key, Glossary] = WeakValueDictionary()
        self._kept: OrderedDict[Key, Glossary] = OrderedDict()  # last used last

    def get(self, key: Key, read: Callable[[], Glossary]) -> Glossary:
        """Return a glossary; read once, however many calls wait for it.

        Raises:
            OverloadedError: the glossaries in use leave no memory for another; errors of ``read``.
        """
        found = self._find(key)
        if found is not None:
            return found
        with self._reading:
            found = self._find(key)
            if found is None:
                self._check_room(key.owner)
                found = read()
                self._keep(key, found)
        return found

    def retain(self, owner: str, revisions: Set[str]) -> None:
        """Drop the kept glossaries of an owner that have no such revision; calls that use them keep them."""
        with self._lock:
            for key in [key for key in self._kept if key.owner == owner and key.revision not in revisions]:
                del self._kept[key]

    def _find(self, key: Key) -> Glossary | None:
        found = self._known.get(key)
        if found is not None:
            self._keep(key, found)
        return found

    def _keep(self, key: Key, glossary: Glossary) -> None:
        with self._lock:
            self._known[key] = self._kept[key] = glossary
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and sum(one.num_bytes for one in self._kept.values()) > MAX_KEPT_BYTES:
                self._kept.popitem(last=False)

    def _check_room(self, owner: str) -> None:
        with self._lock:
            if not self._has_room(owner):
                self._kept.clear()  # those in use stay known
            if self._has_room(owner):
                return
        raise OverloadedError(
            "the stored glossaries that calls use leave no memory for another: wait for their end",
            retry_after_s=RETRY_AFTER_S,
        )

    def _has_room(self, owner: str) -> bool:
        sizes = [(key.owner == owner, one.num_bytes) for key, one in self._known.items()]
        own = sum(size for is_own, size in sizes if is_own)
        return own < MAX_BYTES // 2 and sum(size for _, size in sizes) < MAX_BYTES
