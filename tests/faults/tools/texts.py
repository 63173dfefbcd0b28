"""Descriptions of scenes, as the committed models were trained to translate: any number of them, all different."""

import itertools
import random

WHO = ("A man", "A young woman", "Two boys", "An old man", "A little girl", "Three dogs", "A group of people", "A chef")
HOW = ("in a red shirt", "with a black hat", "wearing sunglasses", "in blue jeans", "with long hair", "")
DOES = (
    *("sitting on a bench", "playing with a ball", "looking at a small lake", "standing next to a bicycle"),
    *("walking along a street", "waiting for the bus", "jumping over a wooden fence", "talking to a friend"),
)
WHERE = ("in the park", "near a large building", "on a sunny day", "while it snows", "in front of a store", "at night")


def scenes(count: int, seed: int) -> list[str]:
    """Sentences of 6 to 20 words, the same for the same seed.

    Raises:
        ValueError: fewer texts exist.
    """
    every = [
        f"{' '.join(filter(None, (who, how, 'is' if who.startswith('A') else 'are', does, where)))}."
        for who, how, does, where in itertools.product(WHO, HOW, DOES, WHERE)
    ]
    return random.Random(seed).sample(every, count)
