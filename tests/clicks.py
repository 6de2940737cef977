"""Raw rows of two labels for every kind of input, with gaps in everything that can have one."""

import json

import numpy as np


def clicks(n):
    random = np.random.default_rng(3)

    def some(value):
        return value if random.random() < 0.9 else None

    for at in range(n):
        tags = random.integers(0, 9, random.integers(0, 5))
        clicked = int(random.random() < 0.4)
        yield {
            # Users come and go: some are not seen again.
            "user": some(f"u{random.integers(30) + at // 64 * 10}"),
            "tags": "|".join(f"t{one}" for one in tags),
            "scores": "|".join(f"{one / 8 + 0.3}" for one in tags),
            "item": some(f"i{random.integers(40)}"),
            "history": [some(f"i{one}") for one in random.integers(0, 40, random.integers(0, 6))],
            "number": some(int(random.integers(-1, 20))) or 0,
            "age": some(int(random.integers(18, 70))),
            "price": some(float(random.integers(0, 999)) / 8),
            "land": [some(str(random.choice(["de", "für", "it", "?"]))) for _ in range(at % 4)],
            "weekday": some(int(random.integers(0, 9))),
            "city": some(f"c{random.integers(5)}"),
            "kind": some(str(random.choice(["a", "b", "c"]))),
            "vector": some(json.dumps(random.normal(size=3).round(2).tolist())),
            "clicked": clicked,
            "bought": int(clicked and random.random() < 0.3),
        }
