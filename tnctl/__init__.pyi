from tnctl.api.artefacts import fold as fold
from tnctl.api.artefacts import score as score
from tnctl.api.artefacts import verify_artefacts as verify_artefacts
from tnctl.api.calls import compose as compose
from tnctl.api.opened_run import Run as Run
from tnctl.api.opened_run import ids as ids
from tnctl.api.opening import open as open
from tnctl.api.search import search as search
from tnctl.api.starting import first_conf as first_conf
from tnctl.api.starting import import_tensornet as import_tensornet
from tnctl.api.starting import shipped_recipes as shipped_recipes
from tnctl.api.sweep import sweep as sweep
from tnctl.api.training import check as check
from tnctl.api.training import prepare as prepare
from tnctl.api.training import rollback as rollback
from tnctl.api.training import runs as runs
from tnctl.api.training import train as train
from tnctl.errors import Failure as Failure
from tnctl.errors import UserError as UserError
from tnctl.schema import Conf as Conf

__version__: str
