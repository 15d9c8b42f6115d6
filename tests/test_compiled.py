"""The cache of compiled programs: where it is, and that it does not change any bit of a result."""

import os
import stat
import subprocess
import sys

import jax
import platformdirs
import pytest

from jaxleak import _compiled

NAMES = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
)
PROGRAM = """
import hashlib, jax, jax.numpy as jnp
from jaxleak import _compiled
_compiled.keep_compiled()
x = jax.jit(lambda key: jnp.linalg.svd(jnp.tanh(jax.random.normal(key, (40, 40)) @ jnp.ones((40, 40)) ** 2)))
print(hashlib.sha256(b"".join(leaf.tobytes() for leaf in x(jax.random.key(0)))).hexdigest())
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A separate cache folder; JAX's settings are restored afterwards."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    monkeypatch.setenv(_compiled.SWITCH, "1")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_folder_is_the_users_own_and_named_by_version_and_processor(cache, monkeypatch):
    folder = _compiled.keep_compiled()
    assert str(folder) == jax.config.jax_compilation_cache_dir
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 0
    assert folder.is_relative_to(cache / "jaxleak")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(_compiled.metadata, "version", lambda name: "99.0")
    assert _compiled.keep_compiled() != folder


def test_nothing_is_kept_where_the_user_says_so_or_has_a_folder(monkeypatch):
    monkeypatch.setenv(_compiled.SWITCH, "0")
    assert _compiled.keep_compiled() is None
    assert jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv(_compiled.SWITCH, "1")
    jax.config.update("jax_compilation_cache_dir", "chosen")
    assert _compiled.keep_compiled() is None
    assert jax.config.jax_compilation_cache_dir == "chosen"


def test_a_folder_that_cannot_be_made_changes_nothing(cache):
    (cache / "jaxleak").write_text("a file where the folder would be")
    assert _compiled.keep_compiled() is None
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize(("most", "left"), [({"MOST_BYTES": 20}, 2), ({"MOST_FILES": 3}, 3), ({}, 5)])
def test_what_was_longest_unread_is_given_up(monkeypatch, most, left):
    folder = _compiled.keep_compiled()
    files = [folder / f"program-{age}" for age in range(5)]
    for age, file in enumerate(files):
        file.write_bytes(b"0" * 10)
        os.utime(file, (1e9 - age, 1e9 + age))  # last read in this order, and written in reverse
    for name, value in most.items():
        monkeypatch.setattr(_compiled, name, value)
    jax.config.update("jax_compilation_cache_dir", None)
    _compiled.keep_compiled()
    assert sorted(folder.iterdir()) == files[:left]


@pytest.mark.slow
def test_a_kept_program_gives_the_same_bits(cache):
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # the cache of this test run
    printed, files = [], []
    for switch in ("1", "1", "0"):
        environment[_compiled.SWITCH] = switch
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        printed.append(ran.stdout)
        files.append({path.name for path in cache.rglob("*-cache")})
    assert files[0]
    assert files[1] == files[0]  # nothing was compiled again
    assert len(set(printed)) == 1
