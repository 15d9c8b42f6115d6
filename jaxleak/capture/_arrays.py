"""Reading arrays by name from untrusted files: safetensors, npz and PyTorch; nothing is unpickled."""

import math
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

#: Largest size in bytes of the arrays of one npz file, unless their shapes are known.
LARGEST = 2**34
#: End of the name of PyTorch's counter of batches, a whole number that some frameworks leave out of a state dict.
COUNTER = "num_batches_tracked"


def read_arrays(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the arrays of a file by name, and the texts of its header.

    Args:
        path: a safetensors file, an npz file, or a PyTorch file (`torch.save` of a state dict; reading it needs
            PyTorch, and only tensors are loaded). The contents of the file decide its type, not its name.

    Returns:
        Arrays, floating-point ones as float32, and the header, which only safetensors have.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: in one line, naming the file and what is wrong with it.
        ImportError: if the file is a PyTorch file and PyTorch is not installed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file")
    with path.open("rb") as file:
        begin = file.read(9)  # the length of a header, and its first character
    header: dict[str, str] = {}
    try:
        if _is_safetensors(begin, path.stat().st_size):
            arrays, header = _read_safetensors(path)
        elif begin[:1] == b"\x80" or (zipfile.is_zipfile(path) and _is_torch_archive(path)):
            arrays = _read_torch(path)
        elif begin[:2] == b"PK":
            arrays = _read_npz(path)
        else:
            arrays, header = _read_safetensors(path)
    except (MemoryError, ImportError):
        raise
    except Exception as error:  # zipfile, zlib, NumPy, PyTorch and safetensors raise many types for a damaged file
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"{path} cannot be read as safetensors, npz or PyTorch tensors: {reason}") from error
    if not arrays:
        raise ValueError(f"{path} holds no arrays")
    return arrays, header


def read_npz_array(archive: zipfile.ZipFile, name: str, expected: tuple[int, ...] | None = None) -> np.ndarray:
    """Read one floating-point array of an npz file without trusting its header.

    In contrast, `numpy.load` allocates the size that the header states before it looks at the contents.

    Args:
        archive: the npz file.
        name: name of the array in the archive, without ".npy".
        expected: shape of the array, or None if it is unknown.

    Returns:
        An array of the shape `expected` or else of the header's shape, of dtype float32, in the unit of the file.

    Raises:
        ValueError: if the array has another shape, a dtype that is not floating-point, or contents of another size.
    """
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(name + ".npy") as file:
        shape, fortran_order, dtype = readers[np.lib.format.read_magic(file)](file)
        if expected is not None and shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {shape}")
        if dtype.kind != "f" or dtype.itemsize > 8:
            raise ValueError(f"{name} must hold floats of at most 64 bits, got {dtype}")
        size = math.prod(shape) * dtype.itemsize
        if expected is None and size > LARGEST:
            raise ValueError(f"{name} claims {size} bytes, more than {LARGEST}")
        content = file.read(size + 1)
    if len(content) != size:
        raise ValueError(f"{name} must have {size} bytes of content, got {'more' if len(content) > size else 'fewer'}")
    return _single(np.frombuffer(content, dtype)).reshape(shape, order="F" if fortran_order else "C")


def _single(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what float32 cannot hold is reported later as not finite
        return array.astype(np.float32) if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16 else array


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
            raise ValueError(f"its arrays claim more than {LARGEST} bytes")
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        # PyTorch's layers of batch normalisation count batches in whole numbers, which no network reads.
        return {name: read_npz_array(archive, name) for name in names if not name.endswith(COUNTER)}


def _read_safetensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with safetensors.safe_open(path, framework="numpy") as file:
        names = list(file.keys())
        return {name: _single(file.get_tensor(name)) for name in names}, dict(file.metadata() or {})


def _is_safetensors(begin: bytes, size: int) -> bool:
    """Whether the first eight bytes are the length of a header that fits in the file; 0x80 also begins a pickle."""
    return 8 + int.from_bytes(begin[:8], "little") <= size and begin[8:9] == b"{"


def _is_torch_archive(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/data.pkl") for name in archive.namelist())


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"{path} is a PyTorch file, and PyTorch is not installed: pip install torch") from error
    try:
        stored: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        kind = "more than tensors, which are all that is loaded" if "eights only" in str(error) else "damaged data"
        raise ValueError(f"it holds {kind}") from error
    # A training checkpoint often keeps the state dict beside an optimiser's state.
    for name in ("state_dict", "model_state_dict", "model"):
        if isinstance(stored, dict) and isinstance(stored.get(name), dict):
            stored = stored[name]
    if isinstance(stored, list | tuple):
        stored = {str(i): value for i, value in enumerate(stored)}
    if not isinstance(stored, dict) or not all(isinstance(value, torch.Tensor) for value in stored.values()):
        there = f", it holds {', '.join(map(str, list(stored)[:5]))}" if isinstance(stored, dict) else ""
        raise ValueError(f"it must hold a state dict, names with tensors{there}")
    return {str(name): tensor_to_numpy(value) for name, value in stored.items()}


def tensor_to_numpy(tensor: Any) -> np.ndarray:
    """Convert a PyTorch tensor to an array; a floating-point tensor becomes float32."""
    tensor = tensor.detach().cpu()
    return np.array((tensor.float() if tensor.is_floating_point() else tensor).numpy())
