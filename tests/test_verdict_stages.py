"""The order of the attacks of an audit, and the rules that certify and choose an answer."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_updates import answer_of, case_of, pictures

from jaxleak import Observation, defenses, protocols
from jaxleak.audit._independent import independent_numbers
from jaxleak.audit._verdict import one_sample, stages
from jaxleak.audit._verdict import search as searches
from jaxleak.audit._verdict.case import graded
from jaxleak.audit._verdict.questions import distance_of_truth
from jaxleak.audit._verdict.verdict import Answer, best_of

SURE, UNSURE = {"agreement": np.array([0.95, 0.99])}, {"agreement": np.array([0.949, 0.99])}

#: Comparison of answers with an update that is a plain gradient.
UNDEFENDED = SimpleNamespace(undone=None)


class Stated(SimpleNamespace):
    """A case with only some fields set."""

    def _replace(self, **fields):
        return Stated(**vars(self) | fields)


FEDLEAK = ("fedleak",)


def test_what_certifies_an_image():
    assert answer_of(solved=True).shown.all()
    assert answer_of(**SURE).shown.all()
    assert answer_of(**UNSURE).shown.tolist() == [False, True]
    assert not answer_of().shown.any()
    for fields in ({"solved": True}, SURE):
        assert not answer_of(distance=2e-2, **fields).shown.any()  # the gradient differs
    assert answer_of(distance=2e-2, **SURE).counted_agreement is None
    assert not answer_of(finished=False, **SURE).shown.any()  # with more time the starts might diverge again
    assert answer_of(finished=False, solved=True).shown.all()


def test_the_best_answer_has_the_most_certified_images_and_then_the_least_misfit():
    certified, closer, closest = answer_of(**SURE), answer_of(misfit=0.05, **UNSURE), answer_of(misfit=0.01)
    assert best_of([closest, closer, certified]) is certified
    assert best_of([closest, closer]) is closer
    assert best_of([answer_of(misfit=0.02), closest]) is closest
    assert best_of([answer_of(misfit=np.nan), closest]) is closest
    assert best_of([answer_of(misfit=np.inf)]) is None


def test_fewer_equations_than_unknowns_certify_nothing(perceptron):
    model, variables, batch, gradient = perceptron
    few = defenses.sparsify(0.5).apply(jax.random.key(3), gradient)
    seen = Observation(jnp.zeros((), jnp.int32), variables, few)
    case = case_of(protocols.ClientShare(model), seen)._replace(defended=True, defense=defenses.sparsify(0.5))
    found = graded(case, "fedleak_400", np.asarray(batch.x[:, 0]), np.asarray(batch.y), agreement=np.ones(1))
    assert found.matched
    assert not found.determined
    assert not found.shown.any()


def test_entries_that_a_defense_left_out_are_not_known_to_be_zero(perceptron):
    model, variables, _, gradient = perceptron
    few = defenses.sparsify(10.0).apply(jax.random.key(3), gradient)
    case = case_of(protocols.ClientShare(model), Observation(jnp.zeros((), jnp.int32), variables, few))
    case = case._replace(defense=defenses.sparsify(10.0))
    assert case.held == independent_numbers(case.share, few, 1, zeros_tell=False)
    assert case.held.entries < independent_numbers(case.share, few, 1).entries


def test_an_answer_is_an_image_and_judged_as_one(perceptron):
    """Pixels outside of [0, 1] are clipped before the gradient is compared."""
    model, variables, _, gradient = perceptron
    case = case_of(protocols.ClientShare(model), Observation(0, variables, gradient))
    wild = np.random.default_rng(0).uniform(-1, 2, (1, *model.image_shape))
    answer = graded(case, "wild", wild, np.zeros(1, np.int32))
    np.testing.assert_array_equal(answer.x, np.clip(wild, 0, 1).astype(np.float32))
    assert (wild < 0).any()
    assert (wild > 1).any()
    same = graded(case, "cut", answer.x, answer.y)
    assert (answer.misfit, answer.cosine_distance) == (same.misfit, same.cosine_distance)


def test_answers_are_compared_through_the_defense_that_is_stated(perceptron):
    model, variables, batch, gradient = perceptron
    x, y, share = np.asarray(batch.x[:, 0]), np.asarray(batch.y), protocols.ClientShare(model)
    sent = {
        defenses.sparsify(10.0): (0.01, 1e-6),
        defenses.quantize(4): (1e-3, 1e-6),
        defenses.gaussian_noise(1e-3): (1e-4, 1.0),
    }
    for defense, (without, through) in sent.items():
        payload = defense.apply(jax.random.key(3), gradient, round=0)
        seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
        case = case_of(share, seen)._replace(defended=True)
        assert graded(case, "fedleak_400", x, y).cosine_distance > without
        known = graded(case._replace(defense=defense), "fedleak_400", x, y)
        assert known.cosine_distance < through
        expected = distance_of_truth(case._replace(defense=defense), known)
        noisy = defense.mechanism.noise is not None
        assert (expected is not None) == noisy
        assert not noisy or 0.5 < expected / known.cosine_distance < 2


def test_audits_of_equal_clients_search_with_the_same_attack(monkeypatch, perceptron):
    """Then the second audit compiles nothing."""
    model, variables, _, gradient = perceptron
    seen, searched = Observation(jnp.zeros((), jnp.int32), variables, gradient), []

    def search(case, name, attack, observation, **_):
        searched.append(attack)
        return None, 0.0

    monkeypatch.setattr(stages, "search", search)
    store = SimpleNamespace(answer=lambda name: None)
    for mode in ("train", "train", "eval"):
        case = case_of(protocols.ClientShare(model, batch_norm=mode), seen)._replace(store=store)
        list(stages._gradient_matching(case, FEDLEAK))
    assert searched[0] == searched[1] != searched[2]


@pytest.mark.parametrize(("unknowns", "remainder"), [(0, 0.01), (3, 0.08)])
def test_every_question_alone_takes_a_certificate_back(monkeypatch, unknowns, remainder):
    """Each of the questions finds another image open, and images that are already open are not tested again."""
    places, masks, noises = np.arange(9), [], []
    drawn = SimpleNamespace(off={}, of=lambda names: 0.1)

    def asked(place):
        return lambda *given: masks.append(given[-1].tolist()) or places == place

    replaced = {
        "_chunk": lambda case: 1,
        "invert": lambda *_, **__: (None, None, None),
        "all_starts": lambda *_, **__: None,
        "best_restart": lambda starts: SimpleNamespace(x=np.zeros((9, 1)), y=np.zeros(9)),
        "agreement": lambda starts: SimpleNamespace(value=np.ones(9)),
        "graded": lambda case, name, x, y, **_: Answer(name, pictures(9), y, 0.1, 1e-9, agreement=np.ones(9)),
        "rival_of": lambda *_: SimpleNamespace(undetermined=places == 0, answer_misfit=remainder),
        "of_blends": lambda *_: places == 1,
        "drawn_out": asked(6),
        "of_open_part": asked(8),
        "of_open_pixels": asked(7),
        "indistinct_of": asked(2),
        "without_weight": lambda case, answer: places == 3,
        "turned_images": asked(4),
        "toned_images": asked(5),
        "left_by_noise": lambda case, answer: drawn,
        "left_below_head": lambda case, other, noise: noises.append(noise) or 0.0,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(searches, name, function)
    store = SimpleNamespace(left=1.0, checkpoints=lambda name: None)
    case = SimpleNamespace(store=store, show=lambda *_: None, template=None, key=None, unknowns=unknowns)
    found, _ = searches.search(case, "fedleak_400", SimpleNamespace(iterations=2), None)
    open_ones = [0, *([1] if unknowns else []), 2, 3, 4, 6, 7, 8]  # blends are tested if the loss is unknown
    assert np.flatnonzero(found.undetermined).tolist() == open_ones
    assert np.flatnonzero(found.shown).tolist() == [place for place in places if place not in open_ones]
    assert np.flatnonzero(found.toned).tolist() == [5]
    # The questions: second search, two images that may be one, changes of all images, pixels, turned copies, tones.
    # Each tests the images that are left.
    assert [mask.count(False) for mask in masks] == [1, *(len(open_ones) - lacking for lacking in (5, 3, 2, 1, 0))]
    assert (found.remainder, found.noise) == (remainder, 0.1)
    assert noises == [None if remainder < 0.05 else drawn]  # noise that does not fit its statement explains nothing


class TestStages:
    """The choice of an audit's searches; all searches are stubs."""

    def case(self, monkeypatch, answers, left=np.inf, **fields):
        """A case with stubs of searches that take a second per iteration and find these answers in turn."""
        self.searched, found = [], iter(answers)

        def search(case, name, attack, observation, **_):
            self.searched.append(attack)
            return next(found), 1.0

        monkeypatch.setattr(stages, "search", search)
        monkeypatch.setattr(stages, "_known", lambda case, name, iterations: (None, (iterations, name)))
        monkeypatch.setattr(stages.attacks, "inversion", lambda model, share, settings, batch_size: settings)
        store = SimpleNamespace(answer=lambda name: None, keep=lambda name, answer: None, left=left)
        share = SimpleNamespace(model=None)
        case = {"defense": None, "defended": False, "samples": 2, "share": share, "observation": None, "store": store}
        return SimpleNamespace(**case | {"received": UNDEFENDED} | fields)

    @pytest.mark.parametrize(
        ("left", "searched"),
        [
            (800, [400]),  # a second search would end only with the budget
            (801, [400, 800]),
            (1501, [400, 1500]),
            (3001, [400, 3000]),
            (6001, [400, 3000, 6000]),
            (1e9, [400, 3000, 12000]),
        ],
    )
    def test_longer_searches_are_those_that_the_budget_lets_end(self, monkeypatch, left, searched):
        found = list(stages._gradient_matching(self.case(monkeypatch, [answer_of(**UNSURE)] * 3, left), FEDLEAK))
        assert self.searched == [(iterations, "fedleak") for iterations in searched]
        assert sum(isinstance(one, Answer) for one in found) == len(searched)
        if len(searched) == 1:
            assert found[-1] == "A longer search was not tried: 800 iterations take 800 s more."

    def test_a_search_that_has_shown_all_or_did_not_end_is_the_last(self, monkeypatch):
        unsure = answer_of(**UNSURE)
        for answers, count in (
            ([answer_of(**SURE)], 1),
            ([unsure._replace(finished=False)], 1),
            ([unsure, answer_of(**SURE)], 2),
            ([unsure, unsure._replace(finished=False)], 2),
            ([unsure, answer_of(distance=1.0, **SURE)], 2),  # starts that agree on another gradient will not change
            ([unsure, None], 2),
            ([unsure, unsure, unsure], 3),
        ):
            list(stages._gradient_matching(self.case(monkeypatch, answers), FEDLEAK))
            assert len(self.searched) == count
        list(stages._gradient_matching(self.case(monkeypatch, [unsure]), FEDLEAK, briefly=True))
        assert self.searched == [(400, "fedleak")]
        nothing = list(stages._gradient_matching(self.case(monkeypatch, [None]), FEDLEAK))
        assert nothing == ["No time was left for FedLeak."]

    @pytest.mark.parametrize(("fitted", "after"), [(0.1, []), (0.01, [(400, "any_loss"), (3000, "any_loss")])])
    def test_where_another_loss_explains_more_who_knows_none_searches_too(self, monkeypatch, fitted, after):
        short = answer_of(misfit=0.1, **SURE)._replace(remainder=0.1, fitted_remainder=fitted)
        other = answer_of(misfit=0.01, **UNSURE)._replace(attack="any_loss_400")
        monkeypatch.setattr(stages, "as_stated", lambda case, answer: answer)
        monkeypatch.setattr(stages, "under_any_loss", lambda case: case)
        case = self.case(monkeypatch, [short, other, other._replace(agreement=np.ones(2))])
        assert len(list(stages._gradient_matching(case, FEDLEAK))) == 1 + len(after)
        assert self.searched == [(400, "fedleak"), *after]

    @pytest.mark.parametrize(
        ("changed", "distance", "goes_on"),
        [
            ({}, 0.02, True),
            ({}, 0.001, False),  # the update is explained
            ({"defended": True}, 0.02, False),  # it was then tried together with the others
            ({"defended": True, "defense": defenses.quantize(4)}, 0.02, False),
            ({"store": SimpleNamespace(left=0)}, 0.02, False),
        ],
    )
    def test_where_nothing_has_the_update_the_loss_or_labels_may_be_other_ones(
        self, monkeypatch, changed, distance, goes_on
    ):
        tried = []
        monkeypatch.setattr(stages, "_gradient_matching", lambda case, names, **_: tried.append(names) or iter(answers))
        monkeypatch.setattr(stages, "_row_space", lambda case: iter(["row spaces"]))
        monkeypatch.setattr(stages, "not_of_one_sample", lambda case: "")
        monkeypatch.setattr(stages, "equations", lambda case: iter(()))
        monkeypatch.setattr(stages, "with_read_label", lambda case: (case, []))
        for name in ("_label_rule", "why_not", "distance_of_truth"):
            monkeypatch.setattr(stages, name, lambda *_: None)
        answers = [answer_of(distance=distance, **UNSURE)]
        case = {"loss_known": True, "defended": False, "defense": None, "received": UNDEFENDED, "observation": None}
        list(stages.run_stages(Stated(**case | {"store": SimpleNamespace(left=9)} | changed)))
        assert ((stages.ANY_LOSS,) in tried) == goes_on
        assert len(tried) == 1 + goes_on

    @pytest.mark.parametrize(("distance", "sure", "why", "goes_on"), [
        (0.02, SURE, "", True), (0.001, UNSURE, "", False), (0.02, UNSURE, "", False), (0.02, SURE, "two steps", False),
    ])  # fmt: skip
    def test_starts_that_agree_on_images_without_the_update_speak_for_another_loss(
        self, monkeypatch, distance, sure, why, goes_on
    ):
        monkeypatch.setattr(stages, "why_not", lambda case: why)
        monkeypatch.setattr(stages, "under_any_loss", lambda case: case)
        other = answer_of(misfit=0.01, **SURE)._replace(attack="any_loss_400")
        case = self.case(monkeypatch, [answer_of(distance=distance, **sure), other])
        list(stages._gradient_matching(case, FEDLEAK))
        assert ((400, "any_loss") in self.searched) == goes_on

    def test_a_defense_that_is_not_stated_is_said_to_be_unknown(self, monkeypatch):
        first = next(stages._gradient_matching(self.case(monkeypatch, [answer_of()], defended=True), FEDLEAK))
        assert first.startswith("No attack that knows the defense was tried")

    @pytest.mark.parametrize(("informed", "unaware"), [(0.1, 0.2), (0.2, 0.1)])
    def test_who_knows_a_defense_may_ignore_it_and_searches_on_as_goes_better(self, monkeypatch, informed, unaware):
        answers = [answer_of(misfit=informed), answer_of(misfit=unaware), answer_of(**SURE)]
        case = self.case(monkeypatch, answers, defended=True, defense=defenses.quantize(4))
        both = stages._by_their_knowledge(case)
        assert both == ("fedleak_informed", "fedleak")
        assert [found for found in stages._gradient_matching(case, both) if isinstance(found, Answer)] == answers
        assert self.searched == [(400, both[0]), (400, both[1]), (3000, both[informed > unaware])]
        sure = self.case(monkeypatch, [answer_of(**SURE)], defense=defenses.quantize(4))
        list(stages._gradient_matching(sure, both))
        assert self.searched == [(400, both[0])]  # nothing is left to find
        case = self.case(monkeypatch, [answer_of(), None, answer_of(**SURE)], defense=defenses.quantize(4))
        assert "No time was left for FedLeak." in list(stages._gradient_matching(case, both))

    @pytest.mark.parametrize(("distance", "short"), [(1.9e-3, False), (2.1e-3, True)])
    def test_answers_further_away_than_the_stated_noise_are_said_to_fall_short(self, monkeypatch, distance, short):
        monkeypatch.setattr(stages, "distance_of_truth", lambda case, answer: 1e-3)
        said = list(stages._short_of_noise(None, [answer_of(distance=1.0, misfit=1.0), answer_of(distance=distance)]))
        assert ["fell short" in one for one in said] == [True] * short
        monkeypatch.setattr(stages, "distance_of_truth", lambda case, answer: None)  # no noise is stated
        assert not list(stages._short_of_noise(None, [answer_of(distance=1.0)]))
        assert not list(stages._short_of_noise(None, []))

    @pytest.mark.parametrize(
        ("closed", "matched", "ran"),
        [
            ([answer_of(solved=True)], [], []),  # the equations were solved, so no search is needed
            ([answer_of(distance=0.9e-5, **SURE)], [], []),
            ([answer_of(distance=1.1e-5, **SURE)], [answer_of()], ["briefly"]),
            ([answer_of()], [answer_of(**SURE)], ["at length"]),
            ([answer_of(**UNSURE), "said"], [answer_of(**UNSURE)], ["at length", "row space"]),
            (["said"], [answer_of(), "said"], ["at length", "row space"]),
        ],
    )
    def test_what_is_certain_is_searched_for_briefly_and_row_spaces_come_last(self, monkeypatch, closed, matched, ran):
        seen = []

        def matching(case, names, *, briefly):
            assert case.contradicted == "shown"
            seen.append("briefly" if briefly else "at length")
            yield from matched

        def row_space(case):
            assert case.contradicted == "shown"
            seen.append("row space")
            yield "row space"

        monkeypatch.setattr(one_sample, "_closed_forms", lambda case: iter(closed))
        monkeypatch.setattr(stages, "_gradient_matching", matching)
        monkeypatch.setattr(stages, "_row_space", row_space)
        monkeypatch.setattr(stages, "not_of_one_sample", lambda case: "shown")
        monkeypatch.setattr(stages, "with_read_label", lambda case: (case, []))
        monkeypatch.setattr(stages, "_label_rule", lambda case: "calibrated")
        share, known = SimpleNamespace(total_steps=1), {"loss_known": True}
        case = {"samples": 1, "defended": False, "defense": None, "share": share, "observation": None}
        case["received"] = UNDEFENDED
        found = list(stages.run_stages(Stated(**case | known)))
        assert seen == ran
        assert len(found) == len(closed) + (len(matched) if ran else 0) + ("row space" in ran)
        monkeypatch.setattr(stages, "_label_rule", lambda case: "joint")
        found = list(stages.run_stages(Stated(**case | known)))
        assert any("labels together with the images" in one for one in found if isinstance(one, str)) == bool(ran)
        for fields, why in (
            ({"samples": 2, "defended": False, "share": SimpleNamespace(total_steps=5)}, "2 samples"),
            ({"samples": 2, "defended": True, "defense": "one"}, "2 samples"),
            ({"samples": 1, "defended": True, "defense": "one"}, "defends"),
            ({"samples": 1, "defended": False, "share": SimpleNamespace(total_steps=5)}, "several steps"),
        ):
            first = next(stages.run_stages(Stated(**{"share": share} | known | fields)))
            assert first.startswith("Closed forms of one exact gradient were not tried: ")
            assert why in first
        monkeypatch.setattr(one_sample, "of_several", lambda case: iter([case.samples]))
        assert next(stages.run_stages(Stated(share=share, samples=2, defended=False, defense=None, **known))) == 2

    @pytest.mark.parametrize(
        ("batch_norm", "head", "left", "said"),
        [
            (False, "head", 9, None),
            (True, "head", 0, "the time was spent"),
            (True, "", 9, "they say nothing of labels"),
        ],
    )
    def test_row_spaces_are_for_normalised_networks_with_time_and_a_head(self, batch_norm, head, left, said):
        model = SimpleNamespace(has_batch_norm=batch_norm, head=head)
        fields = {"share": SimpleNamespace(model=model), "store": SimpleNamespace(left=left)}
        fields["observation"] = SimpleNamespace(labels=None)
        found = list(stages._row_space(SimpleNamespace(**fields, received=UNDEFENDED, contradicted="")))
        assert len(found) == (said is not None)
        assert not found or said in found[0]
        adam = list(stages._row_space(SimpleNamespace(**fields, received=SimpleNamespace(undone="a step"))))
        assert [text for text in adam if "a step of Adam was sent" in text] == adam
        assert len(adam) == batch_norm

    def test_what_a_certificate_lacks_behind_a_step_of_adam_is_said(self):
        received = SimpleNamespace(undone="a step", told=lambda seen: {"a": jnp.ones(17), "b": jnp.zeros(9)})
        case = SimpleNamespace(received=received, observation=None, defense=None)
        near, agreed = {"distance": 0.005}, np.full(2, 0.99)
        (said,) = stages._short_of_bounds(case, [answer_of(determined=False, agreement=agreed, **near)])
        assert "17 entries of the gradient are known up to a quarter" in said
        assert "a cosine distance of 0.005. A certificate takes 32 entries and 0.001. The starts" in said
        for answers in ([], [answer_of(determined=True, **near)], [answer_of(distance=0.5, determined=False)]):
            assert not list(stages._short_of_bounds(case, answers))
        case.received = UNDEFENDED
        assert not list(stages._short_of_bounds(case, [answer_of(determined=False, **near)]))


def test_a_contradicted_statement_reaches_the_search_without_the_loss(monkeypatch):
    seen = []
    monkeypatch.setattr(stages, "why_not", lambda case: "")
    monkeypatch.setattr(stages, "not_of_one_sample", lambda case: "shown")
    monkeypatch.setattr(stages, "_gradient_matching", lambda case, names: seen.append(case.contradicted) or iter(()))
    assert not list(stages._any_loss(Stated(defense=None)))
    assert seen == ["shown"]
