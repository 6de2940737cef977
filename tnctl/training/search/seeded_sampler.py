"""A sampler whose draws depend on the trials that have ended, and not on when it draws."""

import zlib
from typing import Any

import numpy as np
from optuna.samplers import BaseSampler, TPESampler


class SeededSampler(BaseSampler):
    """Optuna's tree-structured Parzen estimator (TPE), seeded for each value.

    The seed is made of the seed of the search, the number of the trial and the parameter. So a
    process that takes over a trial draws what the one before would have drawn.
    """

    def __init__(self, seed: int, parallel: bool) -> None:
        """With `parallel`, trials that run at the same time keep away from each other's values."""
        self._seed, self._parallel = seed, parallel

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """No parameters are drawn together."""
        del study, trial
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """Nothing: there are no such parameters."""
        del study, trial, search_space
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, distribution: Any) -> Any:
        """The value of a parameter in a trial."""
        entropy = [self._seed, trial.number, zlib.crc32(param_name.encode())]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        sampler = TPESampler(seed=seed, multivariate=False, constant_liar=self._parallel)
        return sampler.sample_independent(study, trial, param_name, distribution)
