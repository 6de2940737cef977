"""LightGBM: the one module that imports it, and only when it is needed."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl.errors import Failure, UserError, shortened
from tnctl.schema import Conf

TREES = 2000  # at most, with data.validation
TREES_WITHOUT_VALIDATION = 200
LONGEST_REASON = 200  # characters of what LightGBM says


@dataclass(frozen=True)
class Examples:
    """Rows to train on or to stop by: columns float32 [n, width], labels and weights [n]."""

    matrix: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None


def library() -> Any:
    """The lightgbm package. Raises UserError when it is not installed, Failure if it is broken."""
    # Its threads would wait for each other in loops, and beside other work take the CPUs from those
    # that they wait for: 40 trees took 37 to 73 s, not 1 s. OpenMP reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import lightgbm
    except ImportError as error:
        raise UserError(
            "baseline needs a package that is not installed: pip install 'tnctl[baseline]'"
        ) from error
    except OSError as error:
        raise Failure(
            f"LightGBM cannot be loaded ({shortened(str(error), LONGEST_REASON)}). Install what "
            "it needs (libgomp1 on Debian), or leave baseline out"
        ) from error
    return lightgbm


def version() -> str:
    """The name and version of the library."""
    return f"LightGBM {library().__version__}"


class BoostedTrees:
    """Gradient-boosted trees, trained (Ke et al., LightGBM, NIPS 2017)."""

    def __init__(
        self,
        conf: Conf,
        train: Examples,
        validation: Examples | None,
        categorical: list[int],
        on_tree: Callable[[int, dict[str, str]], None],
    ) -> None:
        """Train until the metric of `validation` gets no better, and keep the trees up to its best.

        `categorical` are the columns of categories. `on_tree` is called after each tree with the
        number of trees and the metrics of `validation`. Raises Failure for what LightGBM refuses.
        """

        def tree_is_done(state: Any) -> None:
            metrics = {name: f"{value:.4f}" for _, name, value, *_ in state.evaluation_result_list}
            on_tree(state.iteration + 1, metrics)

        lightgbm, settings = library(), conf.baseline
        parameters = _parameters(conf, train, validation)
        trees = settings.trees or (TREES_WITHOUT_VALIDATION if validation is None else TREES)
        try:
            data = _dataset(lightgbm, train, parameters, categorical)
            valid_sets, callbacks = [], [tree_is_done]
            if validation is not None:
                valid_sets = [_dataset(lightgbm, validation, parameters, categorical, data)]
                callbacks.append(lightgbm.early_stopping(settings.patience, verbose=False))
            del train, validation  # what LightGBM has made of them is enough
            self._trees = lightgbm.train(
                parameters, data, trees, valid_sets=valid_sets, callbacks=callbacks
            )
        except lightgbm.basic.LightGBMError as error:
            reason = shortened(str(error), LONGEST_REASON)
            raise Failure(
                f"LightGBM cannot train the baseline ({reason}). Leave baseline out"
            ) from error
        self.count = self._trees.best_iteration or self._trees.current_iteration()

    def logits(self, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
        """The sums of the trees, float32 [rows]: logits, of a squared loss predictions."""
        sums = self._trees.predict(matrix, raw_score=True, num_iteration=self.count)
        return np.asarray(sums, np.float32)


def _parameters(conf: Conf, train: Examples, validation: Examples | None) -> dict[str, Any]:
    """LightGBM's parameters; all others have its own defaults."""
    if conf.train.loss.name == "mse":
        objective = "regression"
    else:  # `binary` takes classes only
        has_classes = np.isin(train.labels, (0, 1)).all()
        objective = "binary" if has_classes else "cross_entropy"
    metric = {"regression": "l2", "binary": "binary_logloss"}.get(objective, objective)
    if objective == "binary" and conf.evaluation.monitor in ("auc", "gauc"):
        of_both = validation is not None and len(np.unique(validation.labels)) > 1
        metric = "auc" if of_both else metric
    return {
        "objective": objective,
        "metric": metric,
        "num_leaves": conf.baseline.leaves,
        "learning_rate": conf.baseline.learning_rate,
        "num_threads": conf.train.threads or 0,  # 0: as many as there are CPUs
        "seed": conf.seed % 2**31,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
    }


def _dataset(
    lightgbm: Any,
    examples: Examples,
    parameters: dict[str, Any],
    categorical: list[int],
    reference: Any = None,
) -> Any:
    """Examples as LightGBM has them, in the bins of `reference` if it is given."""
    return lightgbm.Dataset(
        examples.matrix,
        examples.labels,
        weight=examples.weights,
        categorical_feature=categorical,
        reference=reference,
        params=parameters,
    )
