"""A small model that is trained without data, so that its checkpoints can be tested alone."""

from dataclasses import dataclass, field

import numpy as np

from tnctl import schema
from tnctl.checkpoint.document import Clock, Metrics, Position
from tnctl.checkpoint.golden_lines import GoldenLine
from tnctl.checkpoint.saver import Saver
from tnctl.checkpoint.staging import Contents
from tnctl.data.statistics_document import Statistics
from tnctl.model import building
from tnctl.model.layout import slot_plans
from tnctl.tables import Workspace

IDS = 60
EXAMPLES = 4
LIFE = {
    "sketch": 65_536,
    "admission": {"after": 2},
    "shows": {"keep": True},
    "eviction": {"unseen_steps": 3},
}
GOLDEN = GoldenLine(row={"user": "a"}, ids={}, logits={"label": 0.0}, predictions={"label": 0.5})


def conf_of(output, save=None, life=None, **more):
    """A conf of three slots in two groups."""
    return schema.from_values(
        {
            "output": str(output),
            "seed": 5,
            "recipe": {"name": "deepfm", "hidden": [4]},
            "slots": {"user": {}, "item": {}, "last_item": {"group": "item"}},
            "embedding": {"width": 3},
            "data": {"train": "none.csv"},
            "train": {"threads": 2},
            "save": {"keep": 0, **(save or {})},
            "life": life or {},
            **more,
        }
    )


@dataclass
class Run:
    """A model on its way; `step` trains it on random ids, `save` saves it."""

    conf: schema.Conf
    last: object = None
    model: object = None
    steps: int = 0
    days: list = field(default_factory=list)

    def __post_init__(self):
        if self.model is None:
            self.model = building.build(self.conf, Statistics())
        self.saver = Saver(self.conf, self.last)
        self.batches = [
            Workspace(table, slot_plans(self.conf.slots, layout))
            for table, layout in zip(self.model.tables, self.model.layout.tables, strict=True)
        ]

    def train(self, steps=1, ids=IDS):
        """Steps whose ids and gradients are functions of the step's number."""
        for _ in range(steps):
            self.steps += 1
            rng = np.random.default_rng(self.steps)
            for table, layout, batch in zip(
                self.model.tables, self.model.layout.tables, self.batches, strict=True
            ):
                table.set_step(self.steps)
                cells = EXAMPLES * layout.cells
                given = rng.integers(0, ids, cells, dtype=np.uint64)
                batch.find(given, np.arange(cells + 1, dtype=np.uint32), EXAMPLES, True)
                if layout.kind.shows:
                    batch.count(rng.integers(0, 2, EXAMPLES).astype(np.float32))
                linear = rng.normal(size=(EXAMPLES, 1)).astype(np.float32)
                x = rng.normal(size=(EXAMPLES, self.model.layout.width)).astype(np.float32)
                batch.accumulate([linear, x])
                batch.apply()
            sizes = self.model.dense.sizes
            self.model.dense.apply([rng.normal(size=n).astype(np.float32) for n in sizes])
        return self

    def evict(self):
        return sum(table.evict() for table in self.model.tables)

    def save(self, wait=True, **more):
        """Save, and return the checkpoint's folder."""
        given = {
            "clock": Clock(self.steps, tuple(self.days)),
            "position": Position(None, 0, 0, self.steps, 0),
            "finished": False,
            "golden": [GOLDEN],
            "metrics": Metrics(),
            **more,
        }
        folder = f"{self.conf.output}/{self.saver.save(self.model, Contents(**given))}"
        if wait:
            self.saver.wait()
        return folder

    def records(self):
        """The rows of all tables as they are."""
        return [
            b"".join(records.tobytes() for records in table.records())
            for table in self.model.tables
        ]
