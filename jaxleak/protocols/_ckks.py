"""Products of one party's secret matrix with another party's plain one, on CKKS ciphertexts of TenSEAL."""

from types import ModuleType

import numpy as np

# 8192 coefficients with 170 bits of modulus give 128 bits of security (the standard allows 218). They leave room for
# one multiplication, which is all that a product with plain numbers needs. The scale trades range for precision: errors
# must stay below Adam's epsilon, 1e-8. Otherwise gradients that should be zero would move parameters by a whole step.
_DEGREE = 8192
_MODULI = (60, 50, 60)
_SCALE = 2.0**50
_LARGEST = 500.0  # 2^(60 + 50 - 2 * 50) / 2, less some room; larger results wrap around

#: Numbers per ciphertext.
SLOTS = _DEGREE // 2


class SecretOwner:
    """A party with a key pair. Another party computes `multiply` for it, with the public key only."""

    def __init__(self) -> None:
        """Draw a key pair.

        Raises:
            ImportError: without TenSEAL.
        """
        self._library = tenseal()
        self._secret = self._library.context(self._library.SCHEME_TYPE.CKKS, _DEGREE, coeff_mod_bit_sizes=list(_MODULI))
        self._secret.global_scale = _SCALE
        self.public_key: bytes = self._secret.serialize(
            save_public_key=True, save_secret_key=False, save_galois_keys=False, save_relin_keys=False
        )

    def encrypt(self, matrix: np.ndarray, width: int) -> list[list[bytes]]:
        """Encrypt M (n, m) for a product with an (m, width) matrix.

        Slot (i, c) of ciphertext j holds M[i, j] for all c < width. The product then needs no rotations, and the other
        party needs no Galois keys.

        Returns:
            For each chunk of rows that fits into one ciphertext, a list of m serialised ciphertexts.

        Raises:
            ValueError: if width > `SLOTS`.
        """
        rows = _rows_per_chunk(width)
        return [
            [
                self._library.ckks_vector(self._secret, np.repeat(column, width)).serialize()
                for column in matrix[begin : begin + rows].T
            ]
            for begin in range(0, len(matrix), rows)
        ]

    def decrypt(self, chunks: list[bytes], width: int) -> np.ndarray:
        """(n, width) float64 from what `multiply` returned."""
        vectors = [self._library.ckks_vector_from(self._secret, chunk).decrypt() for chunk in chunks]
        return np.concatenate([np.reshape(vector, (-1, width)) for vector in vectors])

    def product(self, matrix: np.ndarray, plain: np.ndarray, offset: np.ndarray) -> np.ndarray:
        """M R + O as the parties compute it: this one encrypts M (n, m), the other multiplies, this one decrypts.

        Returns:
            (n, k) float64.

        Raises:
            OverflowError: if an entry of the result exceeds 500, where the cipher's range ends.
        """
        width = plain.shape[1]
        # Neither party could check this alone. The simulation can, and wrapping around silently would be worse.
        largest = np.abs(matrix @ plain + offset).max()
        if not largest <= _LARGEST:
            raise OverflowError(f"the cipher holds numbers up to {_LARGEST:g}, got {largest:g}")
        return self.decrypt(multiply(self.public_key, self.encrypt(matrix, width), plain, offset), width)


def multiply(public_key: bytes, chunks: list[list[bytes]], plain: np.ndarray, offset: np.ndarray) -> list[bytes]:
    """The other party's part: [M] R + O for plain R (m, k) and O (n, k), without the secret key.

    Args:
        public_key: the owner's public key.
        chunks: from `SecretOwner.encrypt(M, k)`.
        plain: R.
        offset: O, added before the owner may see the result.

    Returns:
        Serialised ciphertexts, one per chunk of rows.
    """
    library = tenseal()
    public = library.context_from(public_key)
    rows = _rows_per_chunk(plain.shape[1])
    results = []
    for number, columns in enumerate(chunks):
        added = offset[number * rows : (number + 1) * rows]
        total = None
        for column, row in zip(columns, plain, strict=True):
            term = library.ckks_vector_from(public, column)
            term.mul_(np.tile(row, len(added)))
            if total is None:
                total = term
            else:
                total.add_(term)
        assert total is not None
        total.add_(added.ravel())
        results.append(total.serialize())
    return results


def tenseal() -> ModuleType:
    """The library.

    Raises:
        ImportError: if it is not installed; the message names the package.
    """
    try:
        import tenseal
    except ImportError as error:
        raise ImportError("layers on ciphertexts need TenSEAL: pip install tenseal") from error
    return tenseal


def _rows_per_chunk(width: int) -> int:
    if not 1 <= width <= SLOTS:
        raise ValueError(f"a ciphertext holds {SLOTS} numbers, so width must be in [1, {SLOTS}], got {width}")
    return SLOTS // width
