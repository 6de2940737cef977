"""What must be the same on all workers, as digests."""

import dataclasses
import hashlib
import json

from tnctl.cluster.joining.members import Digests
from tnctl.saved_conf import conf_to_json
from tnctl.schema import Conf

NO_DIGEST = hashlib.sha256(b"").hexdigest()


def digests_of(conf: Conf, *, runs_recipe: bool = True) -> Digests:
    """The digests of a worker's conf and recipe; the file of one that is not run may be absent."""
    cluster = dataclasses.asdict(conf.cluster)
    del cluster["tls"]  # each machine may have files of its own
    values = conf_to_json(conf)
    del values["paths"]  # and copies of the conf and its data elsewhere
    text = json.dumps([values, cluster], sort_keys=True).encode()
    recipe = NO_DIGEST
    if runs_recipe:
        from tnctl.model import recipes

        recipe = recipes.digest_of(conf.recipe_name)
    return Digests(conf=hashlib.sha256(text).hexdigest(), recipe=recipe)
