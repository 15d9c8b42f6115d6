"""The sums of the comparison with another library, and its choice of audits."""

import pytest

from benchmarks import against_breaching

ROW = {
    "breaching_seconds_per_iteration": 0.02, "jaxleak_seconds_per_iteration": 0.01,
    "jaxleak_psnr": 30.0, "breaching_psnr": 20.0, "jaxleak_ssim": 0.9, "breaching_ssim": 0.95,
    "jaxleak_label_accuracy": 1.0, "breaching_label_accuracy": 0.5,
}  # fmt: skip


def test_a_case_counts_for_who_has_the_higher_score_and_times_are_those_of_one_iteration():
    slow = ROW | {"breaching_seconds_per_iteration": 0.08, "jaxleak_psnr": 10.0}
    found = against_breaching._summary([ROW, slow, slow])
    assert (found["times_as_long_least"], found["times_as_long_median"], found["times_as_long_most"]) == (2, 8, 8)
    assert (found["cases"], found["higher_psnr"], found["higher_ssim"]) == (3, 1, 0)
    assert found["jaxleak_psnr"] == pytest.approx(50 / 3)
    assert found["breaching_label_accuracy"] == 0.5


def test_a_folder_without_audits_and_a_case_of_another_framework_are_refused(tmp_path):
    with pytest.raises(ValueError, match="audits must be a run folder of python -m"):
        against_breaching.main(against_breaching.Args(audits=tmp_path))
    for name in ("cnn-nnx-b1", "cnn-steps4-b1"):
        with pytest.raises(ValueError, match="only must be one of"):
            against_breaching.main(against_breaching.Args(audits=tmp_path, only=(name,)))
