"""What the study of defenses says of itself: an attack that reads nothing, units of noise, clients, and refusals."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_studies import args_of

from experiments import defenses
from jaxleak import data
from jaxleak import defenses as family
from jaxleak.defenses import client_defense
from jaxleak.study._help import short_help
from jaxleak.study.updates import (
    Case,
    Federation,
    Utilities,
    about_clients,
    leak_order,
    parse_strengths,
    reads_nothing,
    require_defenses,
    unhelped,
)

TINY = {"model": "mlp", "rounds": 2, "clients": 2, "samples": 16, "test_samples": 8, "batch_size": 2}


def row_of(defense, leak, *, steps=1, **known):
    scores = {"psnr": leak, "leak": leak, "psnr_grey": 7.0, "psnr_average": 8.0, "recognised": 0.0, "accuracy": 0.5}
    return {"defense": defense, "strength": 1.0, "clients": 1, "local_steps": steps} | scores | known


def test_the_order_holds_what_an_attacker_knew_and_nothing_where_the_attack_reads_nothing():
    gaussian, soteria = row_of("gaussian", 12.0, psnr_adaptive=12.0), row_of("soteria", 9.0, psnr_adaptive=9.0)
    defended = [gaussian, soteria, row_of("mine", 7.0)]
    assert leak_order([row_of(None, 20.0), *defended]) == [
        "Of 1 local step: soteria 1 (9.0 dB), gaussian 1 (12.0 dB).",
        "Of 1 local step, not ranked, since no attacker knew them: mine 1 (7.0 dB).",
    ]
    blinding = row_of("mine", 7.0, psnr_adaptive=7.0, blind=True)
    assert leak_order([row_of(None, 20.0), gaussian, blinding]) == [
        "Of 1 local step: gaussian 1 (12.0 dB).",
        "Of 1 local step, not ranked, since the attacker who knew them could make nothing of that: mine 1 (7.0 dB).",
    ]
    assert len(leak_order(defended)) == 2
    assert len(leak_order([row_of(None, 8.9, recognised=0.1), *defended])) == 2
    (nothing,) = leak_order([row_of(None, 8.9), *defended])
    assert nothing.startswith("Of 1 local step: no order. The attack reads nothing even without a defense")


def test_an_attack_that_finds_no_more_than_the_average_image_reads_nothing():
    said = reads_nothing([row_of(None, 8.9), row_of(None, 20.0, steps=12), {"defense": None, "local_steps": 2}])
    assert said.keys() == {1}
    assert "it has 8.9 dB, a grey image 7.0 dB and the average training image 8.0 dB" in said[1]
    assert "says anything about the defenses" in said[1]
    assert reads_nothing([row_of(None, float("nan"))]).keys() == {1}
    for reads in (row_of(None, 9.1), row_of(None, 8.9, recognised=0.25), row_of("gaussian", 7.0)):
        assert reads_nothing([reads]) == {}


def test_the_average_image_is_that_of_the_training_samples():
    federation = Federation(clients=2, samples=10, test_samples=5, batch_size=1)
    images = data.load("digits", 15, 3).x
    error = ((images[:4] - images[:10].mean(axis=0)) ** 2).mean(axis=(1, 2, 3))
    found = Utilities(federation, None).average_psnr(Case(data="digits"), 3, images[:4])
    assert found == pytest.approx((-10 * np.log10(error)).mean(), rel=1e-5)


def test_a_study_whose_attack_reads_nothing_says_so_first(tmp_path, monkeypatch, capsys):
    """One iteration reads nothing, so that the report's first lines, the figure and the terminal have to say so."""
    titles = []
    monkeypatch.setattr(
        "jaxleak.study.plots.trade_off", lambda path, *_, title, **__: (titles.append(title), path.touch())
    )
    defenses.main(args_of(defenses.Args, **TINY | {"iterations": 1, "only": ("none",), "strengths": ()}, out=tmp_path))
    nothing = "The attack reads nothing even without a defense (1 local step): it has "
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert lines[2].startswith(f"**demo: {nothing}")
    assert any(line.startswith(f"*{nothing}") for line in lines)
    assert nothing in capsys.readouterr().out
    (title,) = titles
    assert "reads nothing even without a defense" in title


def test_batch_normalisation_that_mixes_examples_is_refused_before_anything_runs(tmp_path):
    for options in ({"only": ("dp_sgd",)}, {}):
        args = args_of(defenses.Args, model="resnet10", width=8, **options, out=tmp_path / "out")
        with pytest.raises(ValueError, match=r"dp_sgd on resnet10: .*--batch-norm eval"):
            defenses.main(args)
    assert not (tmp_path / "out").exists()
    require_defenses(
        [Case(model="resnet10", width=8, data="digits", batch_norm="eval", defense="dp_sgd", strength=1.0)]
    )


def test_a_private_strength_is_an_epsilon_or_a_noise_multiplier():
    (epsilons,) = parse_strengths(("dp_sgd=10,z0.5",)).values()
    multipliers = [client_defense("dp_sgd", epsilon).mechanism.noise.deviation for epsilon in epsilons]
    assert multipliers == pytest.approx([(2 * np.log(1e5)) ** 0.5 / 10, 0.5])
    for text, message in (
        ("dp_sgd=sigma", r"got 'dp_sgd=sigma'; .* takes an epsilon .*delta 1e-05.*, as in dp_sgd=10, .*dp_sgd=z0\.5"),
        ("soteria=z0.5", r"strengths of soteria have no noise multiplier, got z0\.5; .*dp_sgd=z0\.5"),
        ("secure_aggregation=z2", "strengths of secure_aggregation have no noise multiplier"),
        ("dp_sgd=z0", "the noise multiplier of dp_sgd must be > 0"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_strengths((text,))


def test_the_report_says_what_clients_compute_and_how_much_noise_they_add():
    plain = Case(data="digits")
    noisy = replace(plain, defense="dp_sgd", strength=parse_strengths(("dp_sgd=z0.5",))["dp_sgd"][0], local_steps=12)
    steps, shorthand = about_clients([plain])
    assert "a client takes 1 step of plain gradient descent, without momentum; `jaxleak invert` attacks" in steps
    assert f"with delta {family.SHORTHAND_DELTA:g} and clip 1" in shorthand
    several, _, multipliers = about_clients([plain, noisy])
    assert "a client takes 1 or 12 steps of plain gradient descent" in several
    assert multipliers == "Noise multipliers: dp_sgd 9.59705 has 0.5."


def test_the_help_states_the_delta_and_what_the_study_does_not_simulate():
    short = short_help("study", defenses.Args, defenses.__doc__)
    for part in ("epsilon at delta 1e-5 or noise as z0.5", "without momentum", "--local-steps, --momentum"):
        assert part in short
    assert family.SHORTHAND_DELTA == 1e-5


def test_defenses_whose_attacker_finds_no_more_by_knowing_them_are_named():
    def row(defense, unaware, knowing):
        known = {} if knowing is None else {"psnr_adaptive": knowing}
        return {"defense": defense, "strength": 0.5, "psnr": unaware, "leak": max(unaware, knowing or 0.0)} | known

    helped, unknown = row("soteria", 9.0, 9.1), row("mine", 9.0, None)
    assert unhelped([row(None, 20.0, None), helped, unknown]) == []
    by_another = row("laplace", 8.0, 7.5) | {"psnr_adaptive_weak": 9.0, "leak": 9.0}  # knows it, with a weak prior
    (said,) = unhelped([helped, by_another, row("gaussian", 8.0, 7.5), row("outpost", 7.0, 7.0)])
    assert said.endswith("gaussian 0.5 (7.5 dB, unaware 8.0 dB), outpost 0.5 (7.0 dB, unaware 7.0 dB).")
