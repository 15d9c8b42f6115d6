"""Whether a change of the code moved any number: `make bits BASE=COMMIT` compares the working tree with a commit.

The digests cover the problems of the common tests: every attack's states, infos and answer, every protocol's first
rounds, and every defense's output. Digests are compared before and after a change, on one machine with one version of
jax. Other processors round differently, so the repository stores no digests. The digests of a commit come from its own
`tests/bits.py`. If the state before the change was not committed, `--write FILE` stores its digests, and
`--compare FILE` compares with them later.
"""

import argparse
import functools
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import conftest  # noqa: F401  # the suite's settings, needed before jax is imported
import jax
import jax.numpy as jnp
import numpy as np
import test_common_attacks as of_attacks
import test_common_defenses as of_defenses

from jaxleak import audit
from jaxleak.threats import view


def digest(tree):
    """One digest of all leaves of a tree; it does not depend on their names or order."""
    leaves = []
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        leaves.append(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(leaf).digest() for leaf in leaves))).hexdigest()[:16]


def of_answer(name, answer):
    """Digests of the fields that an answer has always had, so that new fields do not change them."""
    matched = answer.answered if answer.gradient_matched is None else answer.gradient_matched
    found = {"x": answer.x, "y": answer.y, "score": answer.score, "found": matched}
    return {f"{name}.{field}": digest(value) for field, value in found.items()}


def attack_digests(name):
    """Digests of three single rounds of a case, and of two restarts by the loop that runs attacks of this kind."""
    case = of_attacks.CASES[name]
    problem, transcripts = of_attacks.three_rounds(case.setting)
    attack = case.build(problem.model, problem.protocol.share, num_samples=of_attacks.N, **case.options)
    step = jax.jit(attack.step)
    state = attack.init(jax.random.key(3), problem.template)
    digests = {f"{name}.init": digest(state)}
    for t, transcript in enumerate(transcripts):
        state, info = step(jax.random.fold_in(jax.random.key(4), t), state, view(case.threat, transcript))
        digests[f"{name}.step_{t}"] = digest(state)
        digests |= {f"{name}.step_{t}.{key}": digest(value) for key, value in info.items()}
    seen = view(case.threat, transcripts[-1])
    reconstruct = attack.reconstruct if case.on_host else jax.jit(attack.reconstruct)
    digests |= of_answer(f"{name}.answer", reconstruct(state, seen))
    if case.build is of_attacks.inversion:
        iterations = attack.iterations if case.setting == "wide_client" else min(8, attack.iterations)
        answer, _, infos = audit.invert(
            attack, seen, problem.template, key=jax.random.key(5), iterations=iterations, restarts=2
        )
        digests |= {f"{name}.invert.{key}": digest(value) for key, value in infos.items()}
        digests |= of_answer(f"{name}.invert", answer)
    elif not case.on_host and case.setting == "aligned":
        run, infos = audit.run(
            attack, problem.protocol, case.threat, problem.private, key=jax.random.key(5), rounds=4, restarts=2
        )
        digests |= {f"{name}.run": digest(run), f"{name}.run.infos": digest(infos)}
    return digests


def defense_digests(name):
    """The digest of a defense's output for its payload in the common tests."""
    defense, _ = of_defenses.DEFENSES[name]
    payload = of_defenses.PAYLOADS[defense.place]
    update = jax.jit(lambda key, payload: defense.update(key, payload, defense.init(payload), **of_defenses.KNOWN))
    return {f"defense.{name}": digest(update(jax.random.key(0), payload))}


def protocol_digests(setting):
    """The digest of the transcripts of the first rounds of a problem in the common tests."""
    return {f"rounds.{setting}": digest(of_attacks.three_rounds(setting)[1])}


def digests_of(only):
    """The digests of every case with `only` in its name."""
    jobs = {f"rounds.{name}": functools.partial(protocol_digests, name) for name in of_attacks.PROBLEMS}
    jobs |= {f"defense.{name}": functools.partial(defense_digests, name) for name in of_defenses.DEFENSES}
    jobs |= {name: functools.partial(attack_digests, name) for name in of_attacks.CASES}
    found = {}
    for name, job in jobs.items():
        if only in name:
            found |= job()
            jax.clear_caches()
    return found


def digests_at(commit, only):
    """The digests of a commit's code, computed in a process of its own from a copy of the commit's files."""
    root = Path(__file__).parent.parent
    files = subprocess.run(["git", "archive", commit], cwd=root, check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            archive.extractall(folder, filter="data")
        written = Path(folder) / "digests.json"
        command = [sys.executable, "-m", "tests.bits", "--only", only, "--write", str(written)]
        subprocess.run(command, cwd=folder, check=True)
        return json.loads(written.read_text())


def report(before, found):
    """Print which digests are equal, moved, gone and new; returns whether none is moved or gone."""
    kept = before.keys() & found.keys()
    moved = sorted(key for key in kept if before[key] != found[key])
    gone, new = sorted(before.keys() - found.keys()), sorted(found.keys() - before.keys())
    print(f"{len(kept) - len(moved)} equal, {len(moved)} moved")
    for what, keys in (("moved", moved), ("gone", gone), ("new", new)):
        print(*(f"{what}: {key}" for key in keys), sep="\n", end="\n" if keys else "")
    return not moved and not gone


def main():
    """Write digests, or compare them with those of a file or of a commit; exits with status 1 if they differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="Write all digests to this file.")
    parser.add_argument("--compare", type=Path, help="Compare all digests with those in this file.")
    parser.add_argument("--base", help="Compare all digests with those of the code at this commit.")
    parser.add_argument("--only", default="", help="Take only cases whose name contains this.")
    options = parser.parse_args()
    before = [digests_at(options.base, options.only)] if options.base else []
    found = digests_of(options.only)
    if options.write:
        options.write.write_text(json.dumps(found, indent=1))
        print(f"{len(found)} digests written to {options.write}")
    if options.compare:
        stored = json.loads(options.compare.read_text())
        before.append({key: value for key, value in stored.items() if options.only in key})
    reports = [report(digests, found) for digests in before]  # a list, so that all are printed
    if not all(reports):
        sys.exit(1)


if __name__ == "__main__":
    main()
