"""LPIPS through its authors' package: a distance between the features of a network that was trained on ImageNet."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from jaxleak.metrics._pairs import pair

#: AlexNet's three poolings leave nothing of smaller images.
_SMALLEST = 32


def lpips(truth: ArrayLike, estimate: ArrayLike) -> np.ndarray:
    """Learned perceptual distance of every image (Zhang et al., CVPR 2018): AlexNet, version 0.1, by their package.

    Nothing is downloaded: the ImageNet weights of torchvision's AlexNet must be in PyTorch's cache already. They are
    read as tensors only, so a file with anything else in it is refused, not run.

    Args:
        truth: (N, H, W, C) images in [0, 1], H and W at least 32, C 1 or 3; its calibration is for 64 and more.
        estimate: the same shape, in the same unit.

    Returns:
        (N,) float64, >= 0, lower is more alike; 0 for identical images.

    Raises:
        ImportError: without the packages lpips and torchvision.
        FileNotFoundError: if the weights are missing; the message names the file and its folder.
        pickle.UnpicklingError: if that file holds more than tensors.
        ValueError: if the shapes differ or are not as above.
    """
    truth, estimate = pair(truth, estimate, axes=4)
    if min(truth.shape[1:3]) < _SMALLEST or truth.shape[3] not in (1, 3):
        raise ValueError(f"lpips needs images of at least 32x32 pixels with 1 or 3 channels, got {truth.shape[1:]}")
    try:
        import lpips as package
        import torch
        import torchvision
    except ImportError as error:
        raise ImportError("LPIPS needs its package and torchvision: pip install lpips torchvision") from error
    url = torchvision.models.AlexNet_Weights.IMAGENET1K_V1.url
    weights = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not weights.is_file():
        raise FileNotFoundError(f"LPIPS needs AlexNet's ImageNet weights: put {weights.name} into {weights.parent}")
    tensors = torch.load(weights, map_location="cpu", weights_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package calls torchvision by a deprecated name
        network = package.LPIPS(net="alex", pnet_rand=True, verbose=False)  # it would unpickle the backbone by itself
    own = network.net.state_dict()  # slice2.3.bias: torchvision's features.3.bias
    network.net.load_state_dict({name: tensors["features." + name.partition(".")[2]] for name in own})
    color = (np.repeat(x, 3 // x.shape[3], axis=3).transpose(0, 3, 1, 2) for x in (truth, estimate))
    with torch.no_grad():
        distance = network(*(torch.tensor(x, dtype=torch.float32) for x in color), normalize=True)
    return distance.numpy().reshape(-1).astype(np.float64)
