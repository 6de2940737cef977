"""`crosses`, which makes slots of all pairs or triples of some slots."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tnctl.errors import did_you_mean, refuse_if
from tnctl.schema.declarations import Section, key, number
from tnctl.schema.input_sections import Slot

MOST = 2000  # crosses that are made: all pairs of 63 slots, all triples of 23
BETWEEN = "_x_"


@dataclass
class Crosses(Section):
    """All pairs or triples of some slots, each a slot with a `cross` of them."""

    pairs: list[str] = key(list, "slots of which every two are crossed, as the slot a_x_b")
    triples: list[str] = key(list, "slots of which every three are crossed, as the slot a_x_b_x_c")
    width: int | None = number(
        None,
        0,
        1024,
        "floats per embedding of these crosses (0: only a linear weight; default: embedding.width)",
    )
    size: int | None = number(
        None, 1, 2**63 - 1, "how many ids each of them has, by ids=modulo (default: ids=hash)"
    )

    def check(self) -> None:
        for name, slots, count in self._lists():
            refuse_if(
                len(set(slots)) < len(slots), f"{name} has a slot twice. Received: {name}={slots}"
            )
            refuse_if(
                0 < len(slots) < count, f"{name} needs {count} slots or more. Received: {slots}"
            )
        total = sum(math.comb(len(slots), count) for _, slots, count in self._lists())
        refuse_if(
            total > MOST,
            f"pairs and triples are {total:,} crosses, and at most {MOST:,} are made. Name fewer "
            "slots, or those crosses that matter in slots.NAME.cross",
        )
        refuse_if(
            total == 0 and (self.width is not None or self.size is not None),
            "width and size are of the crosses that pairs or triples make. Give pairs or triples",
        )

    def expanded(self, slots: Mapping[str, Slot]) -> dict[str, Slot]:
        """All slots, those given first.

        The parts of a cross are in the order of the alphabet, so its name and ids do not depend on
        the order of the list. A slot that is declared as the same cross stays as it is. Raises
        UserError for a part that is no slot, and a name that another slot has.
        """
        made: dict[str, Slot] = {}
        for name, parts, count in self._lists():
            _refuse_others(name, parts, slots)
            for cross in combinations(sorted(parts), count):
                slot = BETWEEN.join(cross)
                given = slots.get(slot, made.get(slot))
                refuse_if(
                    given is not None and set(given.cross or ()) != set(cross),
                    f"crosses.{name} makes slots.{slot} of {', '.join(cross)}, and the conf has "
                    "another slot of this name. Rename that, its `column` may be anything",
                )
                made[slot] = given or self._slot(list(cross))
        return {**slots, **made}

    def _lists(self) -> list[tuple[str, Sequence[str], int]]:
        return [("pairs", self.pairs, 2), ("triples", self.triples, 3)]

    def _slot(self, cross: list[str]) -> Slot:
        ids = "hash" if self.size is None else "modulo"
        return Slot(cross=cross, ids=ids, size=self.size, width=self.width)


def _refuse_others(name: str, parts: Sequence[str], slots: Mapping[str, Slot]) -> None:
    for part in parts:
        refuse_if(
            part not in slots,
            f"crosses.{name}: {part} is no slot. {did_you_mean(part, slots)}",
        )
        refuse_if(
            slots[part].cross is not None,
            f"crosses.{name}: {part} is a cross itself. Name the slots that it is made of",
        )
