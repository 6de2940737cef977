"""Scores rows by the version in force of what `tnctl publish` wrote, and changes to each new one.

    python reader.py FOLDER < rows.jsonl

A request takes `reader.version` once, and uses it to its end: it has the graph and the rows of one
step. The next version is loaded, and compared with its golden rows, beside the one in force.
"""

import json
import sys
import threading
import time
from pathlib import Path

from scorer import scorer


class Reader:
    def __init__(self, folder, seconds=1.0):
        self.folder, self.seconds, self.version = Path(folder), seconds, None
        self.look()
        threading.Thread(target=self.watch, daemon=True).start()

    def look(self):
        in_force = json.loads((self.folder / "current.json").read_text())["versions"][0]
        if self.version is None or in_force != self.version[0]:
            rows = [self.folder / name for name in reversed(in_force["chain"])]
            score = scorer(str(self.folder / in_force["graph"]), *map(str, rows))
            self.version = in_force, score  # both at once

    def watch(self):
        while True:
            time.sleep(self.seconds)
            try:
                self.look()
            except (Exception, SystemExit) as error:  # it is removed meanwhile, or no good
                print(f"the version in use stays: {error}", file=sys.stderr)


if __name__ == "__main__":
    reader = Reader(sys.argv[1])
    for line in sys.stdin:
        version, score = reader.version
        print(version["step"], float(score([json.loads(line)])[0]), flush=True)
