"""`cluster.mode` and what it refuses."""

import pytest
from test_cluster_conf import OWN, composed

from tnctl.errors import UserError

ASYNC = ["cluster=local", "cluster.mode=async"]


@pytest.mark.parametrize(("overrides", "words"), [
    ([*ASYNC, "train.deterministic=true"], "train.deterministic=true is for cluster.mode=sync"),
    (["cluster=local", "cluster.staleness=2"], "cluster.staleness is for cluster.mode=async"),
    ([*ASYNC, "cluster.staleness=-1"], "staleness"),
    (["cluster=local", "cluster.mode=hybrid"], "no choice .hybrid.. Choose from: async, sync"),
    ([*ASYNC, "cluster.workers=2", "cluster.backup=1"], "cluster.backup is for cluster.mode=sync"),
    ([*ASYNC, "optimizer.clip_norm=1"], "optimizer.clip_norm is for cluster.mode=sync"),
])  # fmt: skip
def test_what_a_mode_does_not_do_is_refused(tmp_path, overrides, words):
    (tmp_path / "own.yaml").write_text(OWN)
    with pytest.raises(UserError, match=words) as refused:
        composed(tmp_path / "own.yaml", *overrides).check_training()
    assert "\n" not in str(refused.value)


def test_staleness_is_unlimited_unless_it_is_given(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    assert composed(tmp_path / "own.yaml", *ASYNC).cluster.staleness is None
    assert composed(tmp_path / "own.yaml", *ASYNC, "cluster.staleness=0").cluster.staleness == 0
