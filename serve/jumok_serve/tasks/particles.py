"""Korean particles, which follow a word without a space."""

from collections.abc import Iterator
from typing import Final

_AFTER_CONSONANT: Final = (
    "을 은 이 과 과의 과는 과도 이랑 이나 이며 이고 이란 이라는 이라고 이라도 이든 이든지 으로 으로는 으로도 으로만 "
    "으로의 으로서 으로서의 으로써 으로부터"
)
_AFTER_VOWEL: Final = "를 는 가 와 와의 와는 와도 랑 나 며 고 란 라는 라고 라도 든 든지"
_AFTER_VOWEL_OR_RIEUL: Final = "로 로는 로도 로만 로의 로서 로서의 로써 로부터"
_AFTER_ALL: Final = (
    "의 에 에는 에도 에만 에의 에서 에서는 에서도 에서만 에서의 에서부터 에게 에게는 에게도 에게만 에게서 께 께서 "
    "께서는 한테 한테는 한테서 하고 보다 보다는 보다도 처럼 처럼은 만큼 만큼은 만큼의 같이 까지 까지는 까지도 "
    "까지의 부터 부터는 부터의 마다 마다의 밖에 밖에는 조차 조차도 마저 마저도 대로 도 만 만의 만이 만을 만은 "
    "만으로 뿐 뿐만 뿐이 인 이다 입니다 이라면 이면 들 들은 들이 들을 들의 들과 들로 들에 들에게 들도 들만 들에서 "
    "들에는 들로부터"
)
_PARTICLES: Final = (
    frozenset(_AFTER_CONSONANT.split()),
    frozenset(_AFTER_VOWEL.split()),
    frozenset(_AFTER_VOWEL_OR_RIEUL.split()),
    frozenset(_AFTER_ALL.split()),
)
_LONGEST: Final = max(len(particle) for particles in _PARTICLES for particle in particles)
_RIEUL: Final = 8
"""Number of the final consonant of Hangul syllables such as 글, Unicode 3.12."""


def particles(word: str) -> Iterator[int]:
    """Yield the lengths of the particles with which a word may end, the longest first.

    A particle must suit the final consonant of a Korean word before it. After letters and digits of other scripts each
    form suits, as their pronunciation is unknown.
    """
    if "가" <= word[-1:] <= "힣":
        for length in range(min(_LONGEST, len(word) - 1), 0, -1):
            before, ending = word[-length - 1], word[-length:]
            final = (ord(before) - ord("가")) % 28 if "가" <= before <= "힣" else None
            forms = (final != 0, not final, not final or final == _RIEUL, True)
            if any(suits and ending in known for suits, known in zip(forms, _PARTICLES, strict=True)):
                yield length
