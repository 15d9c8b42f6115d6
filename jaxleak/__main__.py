"""The console command `jaxleak`; it imports nothing heavy before it has parsed the options."""

import argparse
import importlib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxleak._near_names import unknown_option
from jaxleak._stated import KINDS, LOSSES, MODES, REDUCTIONS
from jaxleak.study._streams import outlive_readers

#: Commands that read their own options: the package of each, and its text in the list of commands.
STUDIES = {
    "demo": ("jaxleak._command.cafe_scale", "recover 100 built-in photographs of faces from aggregated gradients"),
    "invert": ("jaxleak._command.invert", "invert the gradient of one client, simulated or captured"),
    "sweep": ("jaxleak._command.sweep", "run one line of a file of many runs, or merge what they found"),
}

#: Options that have different names in `invert` and `audit`; each command also takes the names of the other.
_OF_AUDIT = {"--image-shape": "--image", "--num-classes": "--classes", "--payload": "--update"}


class _Command(argparse.ArgumentParser):
    """The options of one subcommand, which names an unknown option itself, with its own usage."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def, override]
        """Parse as `argparse` does, but refuse an unknown option first, before options that are missing."""
        known = self._option_string_actions
        for word in itertools.takewhile(lambda word: word != "--", args or ()):
            name = word.partition("=")[0]
            # argparse takes the beginning of a name for the option, and a text with a space for no option.
            if name.startswith("--") and " " not in word and not any(option.startswith(name) for option in known):
                self.error(unknown_option(word, [option.lstrip("-") for option in known]))
        found, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left


def parser() -> argparse.ArgumentParser:
    """The options of every subcommand."""
    top = argparse.ArgumentParser(prog="jaxleak", description="Measure what leaks from federated learning.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Command)
    audit = commands.add_parser(
        "audit",
        usage="%(prog)s --model MODEL --weights WEIGHTS --update UPDATE --out OUT [OPTION ...]",
        help="attack one client's update and say whether it leaks",
        description="Attack one client's update with what applies and say whether it leaks. Exit status: 0 a verdict, "
        "1 unusable input, 2 unknown option, 3 inconsistent inputs, 4 not attacked, 5 a leak with --fail-on-leak.",
    )
    _model_options(audit)
    _client_options(audit)
    audit.add_argument(
        "--truth",
        type=Path,
        help="npz file with x (B, H, W, channels) in [0, 1] and y: checked against the update first, then for scores",
    )
    audit.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="minutes to spend in all: checks, compiling, further sittings (default 10)",
    )
    audit.add_argument("--seed", type=int, default=0, help="seed of the searches (default 0)")
    audit.add_argument("--out", type=Path, required=True, help="folder for results.json, report.html and the images")
    audit.add_argument("--fresh", action="store_true", help="start over in this folder")
    audit.add_argument("--fail-on-leak", action="store_true", help="exit status 5 if the update leaks")
    compared = commands.add_parser(
        "compare",
        help="put the verdicts of several audits side by side",
        description="Print what several audits found, one row for each, and in what else these audits differ.",
    )
    compared.add_argument("folders", metavar="FOLDER", nargs="+", type=Path, help="the --out folders of the audits")
    compared.add_argument("--csv", metavar="FILE", type=Path, help="also write the table, with every metric, here")
    shown = commands.add_parser(
        "models",
        help="print the names and shapes that a model expects",
        description="List the built-in models, or print the names and shapes of one model's parameters, as an update "
        "and weights must have them.",
    )
    _model_options(shown, weights=False)
    archive = commands.add_parser(
        "archive",
        help="write the data file that jaxleak reads from files as they are published",
        description="Write OUT/NAME.npz, which --data NAME then reads where JAXLEAK_DATA_DIR names OUT. docs/data.md "
        "says which files every data set needs.",
    )
    archive.add_argument("name", metavar="NAME", help="mnist, cifar10, cifar100, yale32, sensorless, criteo or avazu")
    archive.add_argument("files", metavar="FILE", nargs="+", help="the published files, in the order of docs/data.md")
    archive.add_argument("--out", type=Path, required=True, help="folder of the data file")
    archive.add_argument(
        "--samples",
        type=Path,
        metavar="LIST",
        help="take only the samples of this list, in its order, such as experiments/ledger/samples/mnist.txt",
    )
    for name, (_, text) in STUDIES.items():
        commands.add_parser(name, help=text, add_help=False)
    return top


def _model_options(options: argparse.ArgumentParser, *, weights: bool = True) -> None:
    options.add_argument(
        "--model",
        required=weights,
        help="a built-in model's name, or FILE.py:NAME of a model, a module or a function"
        + ("" if weights else "; without it, the built-in models are listed"),
    )
    options.add_argument(
        "--classes", type=int, default=10, metavar="C", help="number of classes (default 10); 2 for one logit"
    )
    options.add_argument(
        "--image",
        type=int,
        nargs=3,
        default=(32, 32, 3),
        metavar=("H", "W", "CHANNELS"),
        help="shape of an image (default 32 32 3)",
    )
    options.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of a built-in model, for example width=16; may be given several times",
    )
    options.add_argument(
        "--dropout",
        choices=("refuse", "off"),
        default="refuse",
        help="off: take a PyTorch module without its dropout, as of a client that trained without (default refuse)",
    )
    options.add_argument("--head", metavar="NAME", help="name of the module's last dense layer (default the last one)")
    options.add_argument(
        "--layout", choices=("NHWC", "NCHW"), help="layout of the images that a module reads (default its library's)"
    )
    if weights:
        options.add_argument("--weights", type=Path, required=True, help="safetensors, npz or .pt file of the weights")
        options.add_argument(
            "--mean", type=float, nargs="+", metavar="M", help="mean that is subtracted from each channel"
        )
        options.add_argument(
            "--std",
            type=float,
            nargs="+",
            metavar="D",
            help="standard deviation by which each channel is divided",
        )


def _client_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--update", type=Path, required=True, help="file of the update, see jaxleak.capture")
    facts = options.add_argument_group("what the client computed", "These override what the update's file says.")
    facts.add_argument("--kind", choices=KINDS, help="what the update's arrays are")
    facts.add_argument("--batch-size", type=int, metavar="B", help="samples of each local step")
    facts.add_argument(
        "--loss",
        choices=LOSSES,
        metavar="NAME",
        help=f"{LOSSES[0]} (default), {', '.join(LOSSES[1:])}",
    )
    facts.add_argument("--reduction", choices=REDUCTIONS, help="how the loss is reduced over the batch (default mean)")
    facts.add_argument("--local-steps", type=int, metavar="S", help="steps, each on its own samples (default 1)")
    facts.add_argument(
        "--local-epochs", type=int, metavar="K", help="passes over these samples, S steps each (default 1)"
    )
    facts.add_argument("--learning-rate", type=float, metavar="RATE", help="learning rate of the local steps")
    facts.add_argument("--momentum", type=float, help="momentum of the local steps (default 0)")
    facts.add_argument(
        "--frozen", nargs="+", metavar="LAYER", help="layers or parameters that the client did not train"
    )
    facts.add_argument("--batch-norm", choices=MODES, help="mode of normalisation layers (default train)")
    facts.add_argument(
        "--defense",
        metavar="KIND",
        help="defense that the client applied, which the attacker then knows: FILE.py:NAME of your own, or a name (a "
        "wrong one prints all); other means none of these",
    )
    facts.add_argument(
        "--strength",
        type=float,
        metavar="VALUE",
        help="strength of the defense in its own unit; of noise, its deviation on the mean loss's gradient",
    )
    facts.add_argument(
        "--clip",
        type=float,
        metavar="C",
        help="norm at which DP clips, for a gradient of the mean loss (default 1)",
    )
    facts.add_argument(
        "--noise-multiplier",
        type=float,
        metavar="Z",
        help="noise of DP in units of C, in the place of its strength; 0 only clips",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    words = _by_their_own_names(*(sys.argv[1:] if arguments is None else arguments))
    if words and words[0] in STUDIES:
        return _study(*words)
    outlive_readers()
    options = parser().parse_args(words)
    try:
        from jaxleak._compiled import keep_compiled

        command = importlib.import_module(f"jaxleak._command.{options.command}")
        keep_compiled()
        return getattr(command, options.command)(options)
    except (ValueError, OSError, FloatingPointError, MemoryError, ImportError, RuntimeError) as error:
        from jaxleak.checkpoint import ConfigMismatchError

        if isinstance(error, RuntimeError) and not isinstance(error, ConfigMismatchError):
            raise  # a fault of the program: its traceback says where
        print(f"error: {error}", file=sys.stderr)
        return 1


def _by_their_own_names(*words: str) -> list[str]:
    """The words of a command, with option names of another command replaced by the command's own names."""
    names = {"audit": _OF_AUDIT, "models": _OF_AUDIT, "invert": {b: a for a, b in _OF_AUDIT.items()}}
    own = names.get(words[0], {}) if words else {}
    parts = [word.partition("=") for word in words]
    return [own.get(name, name) + sign + value for name, sign, value in parts]


def _study(name: str, *words: str) -> int:
    package, _ = STUDIES[name]
    from jaxleak.study import run_command

    options = importlib.import_module(f"{package}.options")
    # What the command needs is imported after its options were parsed.
    run_command(
        lambda args: importlib.import_module(f"{package}.run").main(args),
        options.Args,
        options.HELP,
        name=f"jaxleak {name}",
        words=words,
        groups=getattr(options, "GROUPS", None),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
