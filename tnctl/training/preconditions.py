"""What keeps a run from being trained, found before TensorFlow is imported."""

from tnctl import files
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import newest_first
from tnctl.data import row_split, sources
from tnctl.data.bad_rows import SPLITS
from tnctl.data.column_names import columns_read
from tnctl.data.days import daily
from tnctl.errors import UserError, refuse_if
from tnctl.evaluation.split_scoring import first_given, reported_splits
from tnctl.evaluation.value_figures import columns_of
from tnctl.schema import Conf
from tnctl.training import early_stopping, eviction, recalibrating, run_folder, schedule
from tnctl.training.baseline import baseline_run
from tnctl.training.warm import warm_start


def check(conf: Conf, overwrite: bool, accept: bool) -> None:
    """Refuse a conf that cannot be trained, by its keys. Raises UserError, Failure."""
    row_split.check(conf.data)
    early_stopping.check(conf)
    recalibrating.check(conf)
    eviction.check(conf)
    schedule.check(conf)
    warm_start.check(conf, overwrite)
    baseline_run.check(conf)
    if accept and not daily(conf):
        raise UserError("accept=true is for days: data.train has no {day}. Leave it out")


def check_files(conf: Conf, overwrite: bool) -> None:
    """Refuse an output that cannot be written, and data that is not there or lacks a column.

    Of each split the beginning of the first file is read. The data of a run that is resumed is not
    looked at: what is trained already need not be there. Raises UserError, Failure.
    """
    is_new = overwrite or not any(newest_first(files.join(conf.output, CHECKPOINTS)))
    with files.locked(conf.output, is_written=is_new):
        run_folder.refuse_data_in_places(conf)
        run_folder.refuse_no_folders(conf.output)
    if is_new:
        splits = [split for split in SPLITS if split != "test" or conf.evaluation.test]
        sources.require(conf, splits, columns_read(conf))
        if conf.evaluation.by:
            reported = first_given(conf.data, reported_splits(conf.evaluation))
            refuse_if(
                reported is None,
                "evaluation.by is of data.test or data.validation, and neither is given",
            )
            sources.require(conf, [str(reported)], list(columns_of(conf).values()))
