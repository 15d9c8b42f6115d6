"""The report.md of CAFE at scale: the answer, its numbers, the captions of the pictures, and how it was done."""

import math
from collections.abc import Mapping

from jaxleak._command.cafe_scale.options import Args, Config
from jaxleak.study import RunFolder
from jaxleak.study._data_names import data_in_short
from jaxleak.study.reports import Measure, Section, command_line, measured, write_markdown

_CAPTIONS = {
    "contact_sheet.png": "Private samples above what the attack recovered of them, with the PSNR of each below. A grey "
    "tile in an orange frame is a sample for which the attack says that it has no answer.",
    "residual_psnr.png": "One point per sample: the certificate that the attacker computes without the truth (further "
    "left is surer; the dotted line is where trust begins) against the PSNR, which needs the truth (higher is "
    "closer to it).",
    "scaling.png": "Seconds of Steps I and II, peak memory and mean PSNR against the number N of private samples. "
    "Dotted lines grow in proportion to N.",
}
#: Measures that the report and the terminal show; results.json has all numbers.
MEASURES = (
    Measure("samples with an answer, of all", "answered_fraction", "%"),
    Measure("samples with a certificate, of those to be inverted", "certified_fraction", "%"),
    Measure("labels right, of all", "label_accuracy", "%"),
    Measure("PSNR, mean over the samples", "psnr_mean", "dB"),
    Measure("PSNR of the worst sample", "psnr_min", "dB"),
    Measure("PSNR of a grey image, mean over the samples", "psnr_grey", "dB"),
    Measure("SSIM, mean over the images", "ssim_mean", form=".4f"),
    Measure("R2, share of the table's variance that is explained", "feature_r2", form=".4f"),
    Measure("relative error of the output gradients (Step I), median", "output_gradient_relative_error", form=".1e"),
    Measure("relative error of the features (Step II), median", "feature_relative_error", form=".1e"),
)


def write(folder: RunFolder, options: Args, config: Config, metrics: Mapping[str, float]) -> None:
    """Write the report of one run.

    Args:
        folder: the run's folder, with its figures drawn.
        options: the command's options, as they were given.
        config: the options with every value filled in.
        metrics: the metrics of results.json.
    """
    write_markdown(
        folder,
        f"CAFE on {data_in_short(config.data)}",
        answer=_answer(config, metrics),
        command=command_line("jaxleak demo", options),
        seeds=(config.seed,),
        sections=[Section("Found", (), ("measure", "value"), measured(MEASURES, metrics))],
        method=(_method(config, metrics),),
        captions=_CAPTIONS,
    )


def _answer(config: Config, metrics: Mapping[str, float]) -> str:
    inverted = round(metrics.get("images_inverted", config.images))
    if not math.isnan(metrics.get("feature_r2", math.nan)):
        meaning = "an R2 of 1 is an exact answer, and one of 0 the mean of every column"
        score = f"with an R2 of {metrics['feature_r2']:.4f}"
    else:
        meaning = "30 dB shows an image's detail; above 100 dB the numbers are exact in float32"
        score = f"at a mean PSNR of {metrics['psnr_mean']:.1f} dB"
    answer = (
        f"Gradients summed over batches of {config.batch_size} samples let the attacker answer for {inverted} of "
        f"{config.images} private samples, {score} ({meaning})"
    )
    if "label_accuracy" in metrics:
        answer += f", and name {metrics['label_accuracy']:.1%} of all labels"
    return answer + "."


def _method(config: Config, metrics: Mapping[str, float]) -> str:
    # A table has no convolutions: `vertical_problem` gives it the dense network.
    network = "dense" if "feature_r2" in metrics and config.network == "cafe" else config.network
    federation = (
        f"{config.parties} parties hold slices of the same {config.num_samples} samples of {config.data} (network "
        f"{network}), and a server sees the sum of their gradients in every round, and which samples were in it."
    )
    if config.solver != "exact":
        return (
            f"{federation} CAFE's gradient descent ({config.solver} loops, as in the paper) searches for the samples."
        )
    rounds = f"{round(metrics['rounds_observed'])} rounds"
    return (
        f"{federation} From {rounds}, least squares give the gradients at the first dense layer's outputs (Step I) and "
        "that layer's inputs, the features (Step II); a Gauss-Newton search then finds each slice of a sample from its "
        "features (Step III). The certificate is the relative residual of that search, on the worst slice. The truth "
        "is read only to score the result."
    )


def write_sizes(folder: RunFolder, options: Args, config: Config, by_size: Mapping[int, Mapping[str, float]]) -> None:
    """Write the report of a sweep over the number of private samples.

    Args:
        folder: the sweep's folder, with its figure drawn.
        options: the command's options, as they were given.
        config: the options with every value filled in.
        by_size: maps the number of private samples to the metrics of that run.
    """
    largest = max(by_size)
    header = (
        "private samples N",
        "Steps I and II, s",
        "peak memory, GB",
        "mean PSNR, dB",
        "answered",
        "error of Step II",
    )
    rows = [
        [
            str(size),
            f"{found['seconds_steps_1_2']:.1f}",
            f"{found['peak_memory_gb']:.2f}",
            f"{found['psnr_mean']:.1f}",
            f"{found['answered_fraction']:.1%}",
            f"{found['feature_relative_error']:.1e}",
        ]
        for size, found in by_size.items()
    ]
    write_markdown(
        folder,
        f"CAFE on {data_in_short(config.data)} at {len(by_size)} sizes",
        answer=f"At N = {largest} the attacker has an answer for {by_size[largest]['answered_fraction']:.1%} of the "
        f"private samples; those that it inverted have a mean PSNR of {by_size[largest]['psnr_mean']:.1f} dB.",
        command=command_line("jaxleak demo", options),
        seeds=(config.seed,),
        sections=[
            Section(
                "Found",
                (
                    f"Step III inverts the first {config.images} samples of each size. Memory is the largest that the "
                    "process of a size has held, the simulated federation included.",
                ),
                header,
                rows,
            )
        ],
        method=(f"Every size is a run of its own below this folder (`n{largest}` and so on), with its own report.",),
        captions=_CAPTIONS,
    )
