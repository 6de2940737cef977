from tnctl.api.calls import compose as compose
from tnctl.api.opened_run import Run as Run
from tnctl.api.opened_run import ids as ids
from tnctl.api.opening import open as open
from tnctl.api.starting import first_conf as first_conf
from tnctl.api.starting import import_tensornet as import_tensornet
from tnctl.api.training import train as train
from tnctl.errors import Failure as Failure
from tnctl.errors import UserError as UserError
from tnctl.schema import Conf as Conf

__version__: str
