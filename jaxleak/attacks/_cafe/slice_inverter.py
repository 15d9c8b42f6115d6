"""Step III for whole samples: every party's slices inverted in chunks, from a decoder's first guess."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxleak import _mesh, _validate
from jaxleak._base import PyTree
from jaxleak.attacks._cafe.decoder import decode, ridge_decoder, synthetic_slices
from jaxleak.attacks._cafe.feature_inversion import (
    FeatureInversionOptions,
    FeatureInversionResult,
    bounds_of,
    check_step_three,
    invert_features,
)
from jaxleak.models import SplitModel

#: Number of synthetic slices on which the decoders of first guesses are fitted.
DECODER_SLICES = 5000


class SliceInverter:
    """Step III for chunks of samples: decoders fitted once per party, then one compiled solver for all of them.

    A sample's result depends on its features, its number in the private set and the seed, not on the chunk it is in.
    """

    def __init__(
        self,
        model: SplitModel,
        params: PyTree,
        *,
        options: FeatureInversionOptions | None = None,
        seed: int = 0,
        mesh: Mesh | None = None,
    ):
        """Fit the decoders.

        Args:
            model: the model under attack.
            params: the model's frozen parameters.
            options: see `FeatureInversionOptions`.
            seed: random seed of the synthetic slices that the decoders are fitted to, and of restarts.
            mesh: devices among which every chunk is divided, and which exchange nothing; None means one device.

        Raises:
            ValueError: on options or a seed out of range.
        """
        check_step_three(options, seed)
        options = options or FeatureInversionOptions()
        self._mesh = mesh
        self._model, self._extractor, self._options = model, params["extractor"], options
        self._key = jax.random.key(seed)
        self._bounds = bounds_of(options, features_are_data=model.features_are_data)
        if model.features_are_data:
            return
        slices = jnp.asarray(self._in_bounds(synthetic_slices(seed, DECODER_SLICES, model.slice_shape)))
        fit = jax.jit(lambda extractor, slices: ridge_decoder(model.party_features, extractor, slices))
        self._decoders = [fit(self._party(p), slices) for p in range(model.parties)]
        self._invert = jax.jit(self._invert_party if mesh is None else self._shared_out(mesh))

    def _in_bounds(self, images: np.ndarray) -> np.ndarray:
        """Images in [0, 1] stretched to the bounds, if finite, so that first guesses have the contrast of samples."""
        low, high = self._bounds
        return low + (high - low) * images if math.isfinite(high - low) else images

    def _shared_out(self, mesh: Mesh) -> Any:
        whole, rows = PartitionSpec(), PartitionSpec(_mesh.AXIS)
        return jax.shard_map(
            self._invert_party, mesh=mesh, in_specs=(whole, whole, rows, rows, whole), out_specs=rows, check_vma=False
        )

    def __call__(self, h: np.ndarray, index: np.ndarray) -> FeatureInversionResult:
        """Invert features h (B, P, d1) of samples `index` (B,); fields of the result have shape (B, P, ...).

        With a mesh, B has to be a multiple of its size.
        """
        if self._model.features_are_data:
            return self._copy(h)
        parties = [
            self._invert(*self._placed(self._party(p), decoder, h[:, p], index, p))
            for p, decoder in enumerate(self._decoders)
        ]
        return jax.tree.map(lambda *leaves: np.stack([_mesh.gather(leaf) for leaf in leaves], axis=1), *parties)

    def _placed(self, extractor: PyTree, decoder: Any, h: np.ndarray, index: np.ndarray, party: int) -> tuple:
        if self._mesh is None:
            return extractor, decoder, jnp.asarray(h), jnp.asarray(index), party
        whole, rows = _mesh.replicated(self._mesh), _mesh.divided(self._mesh, 1, axis=0)
        extractor, decoder, number = _mesh.place((extractor, decoder, np.int32(party)), whole)
        return extractor, decoder, *_mesh.place((h, index), rows), number

    def _party(self, party: int) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[party], self._extractor)

    def _invert_party(
        self, extractor: PyTree, decoder: Any, h: jax.Array, index: jax.Array, party: jax.Array
    ) -> FeatureInversionResult:
        start = decode(decoder, h, self._model.slice_shape, bounds=self._bounds)
        keys = jax.vmap(lambda n: jax.random.fold_in(jax.random.fold_in(self._key, n), party))(index)
        return invert_features(self._model.party_features, extractor, h, start, keys=keys, options=self._options)

    def _copy(self, h: np.ndarray) -> FeatureInversionResult:
        x = np.clip(h.reshape(*h.shape[:2], *self._model.slice_shape), *self._bounds)
        zeros = np.zeros(h.shape[:2], np.int32)
        outside = np.linalg.norm(x.reshape(h.shape) - h, axis=-1) / (np.linalg.norm(h, axis=-1) + 1e-30)
        return FeatureInversionResult(x, outside.astype(np.float32), zeros, zeros)


def invert_slices(
    model: SplitModel,
    params: PyTree,
    h: np.ndarray,
    index: np.ndarray,
    *,
    options: FeatureInversionOptions | None = None,
    seed: int = 0,
    chunk: int = 64,
) -> FeatureInversionResult:
    """Step III for all samples, in chunks so that memory stays bounded.

    Args:
        model: the model under attack.
        params: the model's frozen parameters.
        h: (N, P, d1), recovered inputs of the first dense layer.
        index: (N,), the samples' numbers in the private set.
        options: see `FeatureInversionOptions`.
        seed: random seed of the synthetic slices that the decoders are fitted to, and of restarts.
        chunk: samples per compiled call, >= 1; the results do not depend on it.

    Raises:
        ValueError: on options or a chunk out of range.
    """
    _validate.count(chunk=chunk)
    if not len(h):
        shape = (0, model.parties)
        return FeatureInversionResult(
            np.zeros((*shape, *model.slice_shape), np.float32), *(np.zeros(shape) for _ in range(3))
        )
    inverter = SliceInverter(model, params, options=options, seed=seed)
    chunk = min(chunk, len(h))
    # The last chunk is padded with repeats, so that one compiled program serves all chunks.
    padded = np.resize(np.arange(len(h)), math.ceil(len(h) / chunk) * chunk)
    parts = [inverter(h[rows], index[rows]) for rows in padded.reshape(-1, chunk)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(h)], *parts)
