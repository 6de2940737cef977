"""The advice to train in bfloat16, on CPUs that have it."""

import pytest
from conftest import CONF, write_clicks

from tnctl.model import building as advice
from tnctl.schema import Train

WITH, WITHOUT = "flags\t\t: fpu avx512f avx512_bf16\n", "flags\t\t: fpu avx512f\n"
LARGE = "recipe.hidden=[300,200,100]"


@pytest.fixture
def cpu(monkeypatch, tmp_path):
    """Call it with the text of /proc/cpuinfo."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(advice, "CPU_INFO", path)
    return path.write_text


def test_large_networks_of_float32_on_a_cpu_that_has_bfloat16(cpu):
    assert advice.bfloat16_advice(Train(), 400_000) is None  # no /proc/cpuinfo
    cpu(WITHOUT)
    assert advice.bfloat16_advice(Train(), 400_000) is None
    cpu(WITH)
    assert "avx512_bf16" in advice.bfloat16_advice(Train(), 400_000)
    assert advice.bfloat16_advice(Train(), 8_000) is None
    assert advice.bfloat16_advice(Train(precision="bfloat16"), 400_000) is None
    assert advice.bfloat16_advice(Train(xla=True), 400_000) is None


def test_train_and_check_say_it_once(cpu, cli, tmp_path):
    cpu(WITH)
    (tmp_path / "small.yaml").write_text(CONF)
    write_clicks(tmp_path / "clicks")
    given = ["conf=small.yaml", LARGE, "evaluation.ablate=false"]
    checked = cli("check", *given, cwd=tmp_path)
    assert checked.out.count("train.precision=bfloat16") == 1
    trained = cli("train", *given, "output=run", cwd=tmp_path)
    assert trained.err.count("train.precision=bfloat16") == 1, trained.err
    assert "bfloat16" not in cli("train", *given, "output=run", cwd=tmp_path).err
    checked = cli("check", *given, "train.precision=bfloat16", cwd=tmp_path)
    assert "computes in bfloat16" not in checked.out
