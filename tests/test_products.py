"""On accelerators, matrix products use float32 unless the user sets another precision."""

import jax
import numpy as np
import pytest
from small_updates import sent_by

from jaxleak import audit, models
from jaxleak._precision import settle_products
from jaxleak.attacks import party_records
from jaxleak.study.updates import Case, forward_seconds

SETTING = "jax_default_matmul_precision"
BUILD = {
    "a network": lambda: models.mlp((4, 4, 1), 6, widths=()),
    "a split network": lambda: models.cafe_vertical((2, 2, 1), parties=2, num_classes=3),
    "bottoms and a top": lambda: models.bottom_top((2, 2), 2),
    "recorded steps": lambda: party_records.recorded(np.zeros((2, 3), int), np.zeros((2, 3, 4)), np.ones((2, 3, 2))),
}


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    yield
    jax.config.update(SETTING, None)


@pytest.mark.parametrize("name", BUILD)
def test_what_every_use_begins_with_settles_the_products(on_a_gpu, name):
    BUILD[name]()
    assert getattr(jax.config, SETTING) == "float32"
    # The setting also applies to gradients, and to traced code of other libraries.
    program = str(jax.make_jaxpr(jax.grad(lambda a: (a @ a).sum()))(np.ones((2, 2), np.float32)))
    assert program.count("HIGHEST") == 2 * program.count("dot_general[")


def test_the_users_own_setting_stays(on_a_gpu):
    jax.config.update(SETTING, "tensorfloat32")
    settle_products()
    assert getattr(jax.config, SETTING) == "tensorfloat32"


def test_on_a_cpu_nothing_is_set():
    settle_products()
    assert getattr(jax.config, SETTING) is None


@pytest.mark.parametrize(
    ("setting", "said"), [("tensorfloat32", 1), pytest.param("float32", 0, marks=pytest.mark.slow)]
)
def test_an_audit_says_that_its_products_are_rounded(on_a_gpu, setting, said):
    jax.config.update(SETTING, setting)
    model = BUILD["a network"]()
    variables, _, gradient = sent_by(model, images=3)
    verdict = audit.update(model, variables, gradient, batch_size=3, minutes=1e-4)
    assert sum(SETTING in reason for reason in verdict.reasons) == said


def test_costs_are_counted_on_the_cpu_since_other_devices_count_only_what_is_compiled(monkeypatch):
    case = Case(attack="fedleak", iterations=1, model="lenet", data="digits", pool=8, batch_size=1)
    asked = []
    lower = jax.stages.Lowered.cost_analysis

    def cost_analysis(self):
        asked.append(jax.config.jax_default_device)
        return lower(self)

    monkeypatch.setattr(jax.stages.Lowered, "cost_analysis", cost_analysis)
    assert forward_seconds(case) > 0
    assert asked == [jax.devices("cpu")[0]]
