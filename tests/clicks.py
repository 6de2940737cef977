"""Raw rows of two labels for every kind of input, with gaps in everything that can have one."""

import json

import numpy as np


def clicks(n):
    random = np.random.default_rng(3)

    def value_or_none(value):
        return value if random.random() < 0.9 else None

    for at in range(n):
        tags = random.integers(0, 9, random.integers(0, 5))
        clicked = int(random.random() < 0.4)
        yield {
            # Users come and go: some are not seen again.
            "user": value_or_none(f"u{random.integers(30) + at // 64 * 10}"),
            "tags": "|".join(f"t{tag}" for tag in tags),
            "scores": "|".join(f"{tag / 8 + 0.3}" for tag in tags),
            "item": value_or_none(f"i{random.integers(40)}"),
            "history": [
                value_or_none(f"i{number}")
                for number in random.integers(0, 40, random.integers(0, 6))
            ],
            "number": value_or_none(int(random.integers(-1, 20))) or 0,
            "age": value_or_none(int(random.integers(18, 70))),
            "price": value_or_none(float(random.integers(0, 999)) / 8),
            "land": [
                value_or_none(str(random.choice(["de", "für", "it", "?"]))) for _ in range(at % 4)
            ],
            "weekday": value_or_none(int(random.integers(0, 9))),
            "city": value_or_none(f"c{random.integers(5)}"),
            "kind": value_or_none(str(random.choice(["a", "b", "c"]))),
            "vector": value_or_none(json.dumps(random.normal(size=3).round(2).tolist())),
            "clicked": clicked,
            "bought": int(clicked and random.random() < 0.3),
        }
