"""The cases that the studies of the smoothing homotopy attack, by the name of a row."""

from jaxleak.study.updates._case import Case

#: Sharpness for single images of networks without batch normalisation. By default such images are attacked with exact
#: kinks, so that a row without this option would compare exact kinks with themselves. The values are those recommended
#: for several images.
_SHARP = (4.0, 100.0)

#: The case of every row by name; `_16` is the width of a ResNet's first stage (64 in full).
HOMOTOPY_ROWS: dict[str, Case] = {
    "convnet-b1": Case(model="convnet", homotopy=_SHARP),
    "convnet-b4": Case(model="convnet", batch_size=4),
    "mlp-b1": Case(model="mlp", homotopy=_SHARP),
    "lenet_relu-b1": Case(model="lenet", activation="relu", homotopy=_SHARP),
    "mlp-b4": Case(model="mlp", batch_size=4),
    "lenet_relu-b4": Case(model="lenet", activation="relu", batch_size=4),
    "resnet10_16-b1": Case(model="resnet10", width=16),
    "resnet10_16-b4": Case(model="resnet10", width=16, batch_size=4),
    "resnet10_16_sigmoid-b4": Case(model="resnet10", width=16, activation="sigmoid", batch_size=4),
    "resnet10_16_eval-b1": Case(model="resnet10", width=16, batch_norm="eval"),
    "resnet10_16-b16": Case(model="resnet10", width=16, batch_size=16),
    "resnet10_16_eval-b4": Case(model="resnet10", width=16, batch_size=4, batch_norm="eval"),
    "resnet10_16_eval-b16": Case(model="resnet10", width=16, batch_size=16, batch_norm="eval"),
    "resnet10-b1": Case(model="resnet10"),
    "resnet10-b4": Case(model="resnet10", batch_size=4),
    "resnet10-b16": Case(model="resnet10", batch_size=16),
    "resnet18_16-b1": Case(model="resnet18", width=16),
    "resnet18_16-b4": Case(model="resnet18", width=16, batch_size=4),
    "resnet18_16-b16": Case(model="resnet18", width=16, batch_size=16),
    "resnet18_16_eval-b1": Case(model="resnet18", width=16, batch_norm="eval"),
    "resnet18_16_eval-b4": Case(model="resnet18", width=16, batch_size=4, batch_norm="eval"),
    "resnet18_16_eval-b16": Case(model="resnet18", width=16, batch_size=16, batch_norm="eval"),
    "resnet34_16-b1": Case(model="resnet34", width=16),
    "resnet34_16-b4": Case(model="resnet34", width=16, batch_size=4),
    "resnet18-b1": Case(model="resnet18"),
    "resnet34-b1": Case(model="resnet34"),
    "resnet34-b2": Case(model="resnet34", batch_size=2),
    "resnet34-b4": Case(model="resnet34", batch_size=4),
    "resnet10_x3-b1": Case(model="resnet10_x3"),
    "resnet10_x5-b1": Case(model="resnet10_x5"),
    "densenet121-b1": Case(model="densenet121"),
    "mobilenet_v2-b1": Case(model="mobilenet_v2"),
    "vit_tiny-b1": Case(model="vit_tiny", homotopy=_SHARP),
    "vit_small-b1": Case(model="vit_small", homotopy=_SHARP),
}
