"""Common tests for every attack. A new attack needs one more line in `CASES`."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from slowness import slow_among

from jaxleak import attacks, defenses, models
from jaxleak._base import Attack, Batch, Transcript
from jaxleak.attacks import adaptive, aggregated, client_updates, party_records
from jaxleak.audit import best_restart, watch
from jaxleak.threats import FIRST_LAYER_ONLY, SERVER_WITHOUT_INDICES, Threat, party_view, view

N, K, ROUNDS = 6, 2, 3


class Case(NamedTuple):
    """One configuration of an attack: its constructor, and the narrowest threat under which it works."""

    build: Callable[..., Attack]  # (model, share, num_samples=N, **options)
    threat: Threat = Threat()
    options: dict = {}  # noqa: RUF012
    random_start: bool = True
    on_host: bool = False  # reconstructs by NumPy and SciPy, outside of compiled programs
    rtol: float = 1e-3  # eager against compiled
    info_atol: float = 1e-6  # SPEAR's distance is a share of signs, and rounding may flip one
    # "split": bottom and top models; "client": one client's update of all samples; "transformer": one image's update.
    setting: str = "aligned"


def shortest_plan(num_samples):
    """A plan of three rounds, far too few to recover anything."""
    return aggregated.CafeExactPlan(num_samples, K, 1, ROUNDS - 1, 1, direct=True)


def cafe(model, share, num_samples, start=aggregated.CafeOptions(), **options):  # noqa: B008
    return attacks.cafe(model, share, num_samples=num_samples, options=start._replace(**options))


def cafe_cosine(model, share, num_samples, **options):
    return attacks.cafe(model, share, num_samples=num_samples, options=aggregated.cosine_options(**options))


def cafe_exact(model, share, num_samples):
    return attacks.cafe_exact(model, shortest_plan(num_samples))


def cafe_censored(model, share, num_samples):
    return attacks.cafe_censored(model, shortest_plan(num_samples))


def cafe_ordinal(model, share, num_samples):
    plan = aggregated.CafeExactPlan(num_samples, K, 1, 1, ROUNDS - 1, direct=True)  # a round per sweep
    return attacks.cafe_ordinal(model, plan, sweeps=ROUNDS - 1)


def vflrecon(model, share, num_samples):
    """VFLRecon with R trained for one pass over three steps on its own records."""
    shadow = reference.split_problem(seed=7)
    start = jax.jit(shadow.protocol.init)(jax.random.key(8))
    _, seen = watch(shadow.protocol, party_view(0), shadow.private, start, key=jax.random.key(9), rounds=3)
    nets = {
        task: attacks.train_vflrecon(
            jax.random.key(0), seen, shadow.private, model, party=0, task=task, hidden=(4,), epochs=1
        )
        for task in ("labels", "features")
    }
    return attacks.vflrecon(model, party=0, num_samples=num_samples, **nets)


def vflrecon_free(model, share, num_samples):
    """VFLRecon without a shadow run; twelve shadow records train the baseline that names clusters."""
    rng = np.random.default_rng(0)
    baseline = party_records.fit_label_baseline(rng.random((12, model.widths[0])), np.arange(12) % 2, 2)
    return attacks.vflrecon_free(
        model, baseline, party=0, num_samples=num_samples, rounds=ROUNDS, batch_size=K, window=ROUNDS * K
    )


def inversion(model, share, num_samples, name, weights=(), **changes):
    """A preset of the gradient-inversion engine in its smallest form."""
    trained = {"generator": tiny_public_generator()} if name in attacks.presets.GENERATIVE else {}
    if name == "ggl":
        trained["population"] = 6
    settings = attacks.presets.preset(name, 10, **trained)._replace(**changes).weighing(**dict(weights))
    return attacks.inversion(model, share, settings, batch_size=num_samples)


def epoch_copies(model, share, num_samples, **changes):
    """FedLeak with a copy of the images for each of two epochs."""
    settings = attacks.presets.fedleak(10)._replace(**changes)
    return attacks.epoch_copies(model, share, settings, batch_size=num_samples)


@functools.cache
def tiny_public_generator():
    """A generator trained for one epoch on eight images of noise."""
    images = np.random.default_rng(0).random((8, 4, 4, 1))
    return client_updates.train_generator(jax.random.key(0), images, 2, epochs=1, batch_size=4, kl=0.1, channels=2)


def informed(model, share, num_samples, kind):
    """FedLeak by an attacker who knows that the client uses this defense at its middle strength."""
    strengths = defenses.CLIENT_DEFENSES[kind].strengths
    defense = defenses.client_defense(kind, strengths[len(strengths) // 2])
    settings = attacks.presets.fedleak(10)._replace(labels="bias_rule")
    known = adaptive.informed(defense, model, share, settings, batch_size=num_samples)
    return attacks.inversion(model, known.share, known.settings, batch_size=num_samples)


def patch_embedding(model, share, num_samples):
    return attacks.patch_embedding(model)


def spear(model, share, num_samples):
    return attacks.spear(model, share, batch_size=num_samples, draws=1, reweighted=2)


def client(name, threat=SERVER_WITHOUT_INDICES, rtol=1e-2, **changes):
    """A case of the gradient-inversion engine."""
    # Batch normalisation of small batches and L-BFGS's line search amplify rounding.
    return Case(inversion, threat, {"name": name, **changes}, rtol=rtol, setting="client")


def knowing(kind):
    """A case of an attacker who knows the defense; other files test the attack on a defended payload."""
    return Case(informed, SERVER_WITHOUT_INDICES, {"kind": kind}, rtol=1e-2, setting="client")


GIVEN = Threat(index=False, labels=True)
SHIFTS = client_updates.Shifts(reach=1, stride=1, tries=2)
TINY_GENERATOR = client_updates.generator_weights(channels=4, noise_channels=2, stages=1)
CASES = {
    "inversion_dlg": client("dlg"),
    "inversion_idlg": client("idlg", GIVEN, labels="given"),
    "inversion_inverting_gradients": client("inverting_gradients", labels="bias_rule"),
    # SAPAG's kernel is so flat far from the truth that Adam amplifies rounding.
    # Changing its pixels by 1e-7 changes Adam's moments by 0.018, a tenth of the largest.
    "inversion_sapag": client("sapag", rtol=0.2),
    "inversion_gradinversion": client("gradinversion", labels="bias_rule", group=2),
    "inversion_gradinversion_statistics": client(
        "gradinversion", Threat(index=False, statistics=True), labels="bias_rule", weights={"batch_norm": 0.1}, group=2
    ),
    "inversion_bayes": client("bayes", labels="bias_rule"),
    "inversion_fedleak": client("fedleak", labels="bias_rule"),
    "epoch_copies": Case(
        epoch_copies, SERVER_WITHOUT_INDICES, {"labels": "bias_rule"}, rtol=1e-2, setting="client_of_epochs"
    ),
    "inversion_row_space": Case(
        inversion,
        SERVER_WITHOUT_INDICES,
        {
            "name": "row_space",
            "iterations": 120,
            "labels": "bias_rule",
            "shifts": ((0.0, SHIFTS),),
        },
        rtol=1e-2,
        setting="wide_client",
    ),
    "inversion_any_loss": client("any_loss"),
    "inversion_fedleak_paper": client("fedleak_paper"),
    "inversion_fedleak_upstream": client("fedleak_upstream", GIVEN, candidate=TINY_GENERATOR),
    "inversion_ggl": client("ggl"),
    "inversion_rog": client("rog"),
    # One line per mechanism of defenses; kinds with the same mechanism differ only in numbers.
    "informed_quantization": knowing("quantization"),
    "informed_stochastic_quantization": knowing("stochastic_quantization"),
    "informed_feature_dropout": knowing("feature_dropout"),
    "informed_dp_soteria": knowing("dp_soteria"),
    "informed_dp_update": knowing("dp_update"),
    "informed_laplace": knowing("laplace"),
    "informed_magnitude_noise": knowing("magnitude_noise"),
    "informed_outpost": knowing("outpost"),
    "informed_adam_step": knowing("adam_step"),
    "informed_guardian": knowing("guardian"),
    "informed_encrypt_top": knowing("encrypt_top"),
    "patch_embedding": Case(patch_embedding, SERVER_WITHOUT_INDICES, random_start=False, setting="transformer"),
    "spear": Case(spear, SERVER_WITHOUT_INDICES, random_start=False, setting="dense_client", info_atol=0.02),
    "vflrecon": Case(vflrecon, party_view(0), setting="split"),
    "vflrecon_free": Case(vflrecon_free, party_view(0), on_host=True, setting="split"),
    "cafe_exact": Case(cafe_exact, FIRST_LAYER_ONLY, random_start=False, on_host=True),
    "cafe_censored": Case(cafe_censored, FIRST_LAYER_ONLY, random_start=False, on_host=True),
    "cafe_ordinal": Case(cafe_ordinal, FIRST_LAYER_ONLY, random_start=False, on_host=True),
    "cafe_nested": Case(cafe, options={"iterations": 1, "batch_size": K}),
    "cafe_single": Case(cafe, options={"loops": "single", "thresholds": (1e9, 1e9)}),
    "cafe_all_steps": Case(cafe, options={"loops": "single", "switch": False}),
    "cafe_features_only": Case(cafe, FIRST_LAYER_ONLY, {"iterations": 1, "alpha": 0.0}),
    "cafe_given_labels": Case(cafe, Threat(labels=True), {"iterations": 1, "label_mode": "given"}),
    "cafe_iclr": Case(cafe, options={"start": aggregated.CAFE_ICLR, "inner_updates": 2}),
    "cafe_upstream": Case(cafe, options={"start": aggregated.CAFE_UPSTREAM}),
    "cafe_cosine": Case(cafe_cosine, options={"iterations": 1}),
    "dlg": Case(aggregated.aligned_dlg),
    "idlg": Case(aggregated.aligned_idlg, Threat(labels=True)),
    "cosine_tv": Case(aggregated.aligned_cosine_tv),
    "sapag": Case(aggregated.aligned_sapag),
    "bn_regularizer": Case(aggregated.aligned_batch_statistics, Threat(statistics=True)),
    "gc_regularizer": Case(aggregated.aligned_group_consistency, options={"candidates": 2}),
}


def wide_client_problem():
    """A client problem with a network that has more channels than pixels in its second layer."""
    model = models.convnet((4, 4, 1), 3, channels=(16, 8), strides=(2, 2), batch_norm=True)
    return reference.client_problem(N, model)


#: Setting -> function that makes its problem.
PROBLEMS = {
    "aligned": lambda: reference.small_problem(with_statistics=True),
    "split": reference.split_problem,
    "client": lambda: reference.client_problem(N),
    "dense_client": lambda: reference.client_problem(N, models.mlp((4, 4, 1), 3, widths=(24,))),
    "client_of_epochs": lambda: reference.client_problem(N, local_steps=2, local_epochs=2, learning_rate=0.1),
    "wide_client": wide_client_problem,
    "transformer": lambda: reference.client_problem(1, reference.transformer()),
}


@functools.cache
def three_rounds(setting):
    """The problem of a setting, and the transcripts of three of its rounds."""
    problem = PROBLEMS[setting]()
    one_round = jax.jit(problem.protocol.round)
    state, transcripts = jax.jit(problem.protocol.init)(jax.random.key(1)), []
    for _ in range(ROUNDS):
        state, transcript = one_round(jax.random.key(2), state, problem.private)
        transcripts.append(transcript)
    return problem, transcripts


class Run(NamedTuple):
    name: str
    case: Case
    attack: Attack
    problem: reference.Problem
    transcripts: list[Transcript]
    step: Callable
    states: list
    infos: list


#: Informed attackers run the engine with another share or distance, or leave entries out; one of each runs by default.
INFORMED = {name for name in CASES if name.startswith("informed")}
MORE_INFORMED = INFORMED - {"informed_stochastic_quantization", "informed_adam_step"}

#: Cases that run only with -m slow: they run another case's code with other settings, or take seconds and have tests of
#: their own.
OTHER_SETTINGS = {
    "epoch_copies",
    "inversion_row_space",
    "inversion_rog",
    "cafe_all_steps",
    "inversion_idlg",
    "inversion_gradinversion",
    "inversion_fedleak_upstream",
    "inversion_ggl",
    "inversion_sapag",
    "cafe_given_labels",
    "idlg",
}


@pytest.fixture(scope="module", params=slow_among(CASES, MORE_INFORMED | OTHER_SETTINGS))
def run(request):
    """Three rounds of one attack, compiled once, initialised from shapes alone."""
    case = CASES[request.param]
    problem, transcripts = three_rounds(case.setting)
    attack = case.build(problem.model, problem.protocol.share, num_samples=N, **case.options)
    chex.clear_trace_counter()
    step = jax.jit(chex.assert_max_traces(attack.step, n=1))
    states, infos = [attack.init(jax.random.key(3), problem.template)], []
    for t, transcript in enumerate(transcripts):
        key = jax.random.fold_in(jax.random.key(4), t)
        state, info = step(key, states[-1], view(case.threat, transcript))
        states.append(state)
        infos.append(info)
    return Run(request.param, case, attack, problem, transcripts, step, states, infos)


def test_the_template_holds_no_data(run):
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(run.problem.template))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(run.states[0]))


def test_states_keep_structure_shape_and_dtype(run):
    for state in run.states[1:]:
        chex.assert_trees_all_equal_shapes_and_dtypes(run.states[0], state)


def test_infos_are_dicts_of_scalars_that_stack(run):
    for info in run.infos:
        assert info.keys() == run.infos[0].keys()
        assert all(leaf.shape == () for leaf in info.values())
        assert not any(np.isnan(leaf) for leaf in info.values())
    chex.assert_trees_all_equal_shapes_and_dtypes(*run.infos)


def test_a_step_changes_the_state_and_nothing_is_nan(run):
    before, after = (jax.tree.leaves(state) for state in (run.states[0], run.states[-1]))
    assert any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(before, after, strict=True))
    assert not any(np.isnan(leaf).any() for leaf in after)


#: Cases that run one operation at a time only with -m slow: their steps share the code of another case, or their
#: operations take longest.
VARIANTS = (
    "inversion_idlg", "inversion_gradinversion", "inversion_gradinversion_statistics", "inversion_fedleak_upstream",
    "inversion_ggl", "cafe_features_only", "cafe_given_labels", "cafe_all_steps", "idlg", "gc_regularizer",
    "cafe_censored", "cafe_nested", "inversion_row_space", "inversion_dlg", "inversion_rog", "epoch_copies",
    "cafe_single", "cafe_ordinal", "inversion_inverting_gradients", "inversion_any_loss", "inversion_sapag",
    "cafe_iclr", "inversion_bayes", "sapag", "inversion_fedleak_paper", "cafe_cosine", "cosine_tv", "bn_regularizer",
    "cafe_upstream", "inversion_fedleak", "dlg", "spear",
)  # fmt: skip


@pytest.mark.parametrize("run", slow_among(CASES, INFORMED | set(VARIANTS)), indirect=True)
def test_eager_equals_compiled(run):
    # Adam divides by gradients that may be rounding noise, and then results may differ by a step of its rate.
    with jax.disable_jit():
        state, info = run.attack.step(
            jax.random.fold_in(jax.random.key(4), 2), run.states[-2], view(run.case.threat, run.transcripts[-1])
        )
    chex.assert_trees_all_close(info, run.infos[-1], rtol=run.case.rtol, atol=run.case.info_atol)
    last = run.states[-1]
    if hasattr(state, "wrong"):  # SPEAR's share of wrong signs
        np.testing.assert_allclose(state.wrong, last.wrong, atol=run.case.info_atol)
        last = last._replace(wrong=state.wrong)
    chex.assert_trees_all_close(state, last, rtol=run.case.rtol, atol=run.case.rtol / 10)


def test_the_same_keys_give_the_same_bits(run):
    state = run.attack.init(jax.random.key(3), run.problem.template)
    chex.assert_trees_all_equal(state, run.states[0])
    for t, transcript in enumerate(run.transcripts):
        key = jax.random.fold_in(jax.random.key(4), t)
        state, _ = run.step(key, state, view(run.case.threat, transcript))
    chex.assert_trees_all_equal(state, run.states[-1])
    other = run.attack.init(jax.random.key(5), run.problem.template)
    differs = [(a != b).any() for a, b in zip(*map(jax.tree.leaves, (other, run.states[0])), strict=True)]
    assert any(differs) == run.case.random_start


def test_only_granted_fields_are_seen(run):
    observation = view(run.case.threat, run.transcripts[0])
    assert (observation.labels is not None) == run.case.threat.labels
    assert (observation.statistics is not None) == run.case.threat.statistics


#: Text of the message for a field of an observation that an attack reads and does not get.
MISSED = {
    "params": "needs the model's parameters",
    "payload": "the threat does not grant ",
    "index": "the threat must grant index",
    "labels": "the threat must grant labels",
    "statistics": "the threat must grant statistics",
    "party": "the threat must grant that of a party",
}

#: Fields that attacks read in their steps; CAFE's variants below read the model only later, `patch_embedding` never.
READ_IN_STEPS = ("params", "payload", "index", "labels", "statistics", "party")
WITHOUT_PARAMS = ("cafe_exact", "cafe_censored", "cafe_ordinal", "patch_embedding")


def assert_misses_are_named(name, attack, state, granted):
    """Assert that each granted field that an attack reads is named by an error if it is missing."""
    taken = {field for field in READ_IN_STEPS if getattr(granted, field) is not None}
    for field in taken - ({"params"} if name in WITHOUT_PARAMS else set()):
        with pytest.raises(ValueError, match=MISSED[field]):
            jax.eval_shape(attack.step, jax.random.key(0), state, granted._replace(**{field: None}))
    if name in WITHOUT_PARAMS[:3]:
        with pytest.raises(ValueError, match=MISSED["params"]):
            attack.reconstruct(state, granted._replace(params=None))


def test_a_grant_that_an_attack_misses_is_named(run):
    """The grants are those of the attack's narrowest threat; `test_grants` checks attacks that are slow here."""
    assert_misses_are_named(run.name, run.attack, run.states[0], view(run.case.threat, run.transcripts[0]))


def test_reconstructions_have_the_private_sets_shape(run):
    reconstruct = run.attack.reconstruct if run.case.on_host else jax.jit(run.attack.reconstruct)
    reconstruction = reconstruct(run.states[-1], view(run.case.threat, run.transcripts[-1]))
    x, y = run.problem.template.x, run.problem.template.y
    assert (reconstruction.x.shape, reconstruction.x.dtype) == (x.shape, x.dtype)
    assert (reconstruction.y.shape, reconstruction.y.dtype) == (y.shape, jnp.int32)
    assert -1 <= reconstruction.y.min() <= reconstruction.y.max() < run.problem.model.num_classes
    assert reconstruction.score.shape == y.shape
    assert (reconstruction.answered.shape, reconstruction.answered.dtype) == (y.shape, bool)
    if reconstruction.gradient_matched is not None:
        assert (reconstruction.gradient_matched.shape, reconstruction.gradient_matched.dtype) == (y.shape, bool)
    assert not np.isnan(reconstruction.score).any()
    best = best_restart(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), reconstruction))
    chex.assert_trees_all_equal(best._replace(diagnosis=None), reconstruction._replace(diagnosis=None))


def test_restarts_can_be_vmapped(run):
    init = functools.partial(run.attack.init, template=run.problem.template)
    shapes = jax.eval_shape(jax.vmap(init), jax.random.split(jax.random.key(0), 2))
    one = jax.eval_shape(init, jax.random.key(0))
    chex.assert_trees_all_equal_shapes(jax.tree.map(lambda s: jnp.zeros((2, *s.shape)), one), shapes)


def test_given_labels_are_answered():
    problem, transcripts = three_rounds("aligned")
    attack = aggregated.aligned_idlg(problem.model, problem.protocol.share, num_samples=N)
    state, observation = attack.init(jax.random.key(0), problem.template), view(Threat(labels=True), transcripts[0])
    state, _ = jax.jit(attack.step)(jax.random.key(0), state, observation)
    answer: Batch = attack.reconstruct(state, observation)
    np.testing.assert_array_equal(answer.y[observation.index], observation.labels)
