"""Attacks: what an honest-but-curious server or party computes from what it sees.

| Name                   | What it is for                                                                      |
|------------------------|-------------------------------------------------------------------------------------|
| `inversion`            | reconstruct a client's images from one gradient or update, by iterations            |
| `epoch_copies`         | the same where a client's epochs have orders that nobody knows                      |
| `presets`              | published gradient inversions as `Settings`: `dlg`, `fedleak`, `row_space`, ...     |
| `Settings`             | all that distinguishes one gradient inversion from another                          |
| `patch_embedding`      | reconstruct one image exactly from a vision transformer's gradient                  |
| `spear`                | reconstruct a batch exactly where the first layer is dense, as on rows of a table   |
| `cafe`                 | reconstruct a private set from aggregated gradients and batch indices, by descent   |
| `cafe_exact`           | the same from frozen parameters, by least squares                                   |
| `plan_cafe_exact`      | how many rounds `cafe_exact` has to watch                                           |
| `cafe_censored`        | `cafe_exact` behind fake gradients that cut large entries off                       |
| `cafe_ordinal`         | `cafe_exact` behind fake gradients that keep little but the order of the entries    |
| `vflrecon`             | other parties' features and labels from one party's record of split learning        |
| `train_vflrecon`       | train the network that `vflrecon` applies, on shadow runs                           |
| `vflrecon_free`        | labels from one party's record without a shadow run                                 |
| `infer_labels`         | the labels of a batch from the gradient of the last dense layer                     |
| `LABEL_RULES`          | the rules of `infer_labels` by name                                                 |
| `check_payload`        | whether an observed update belongs to a model, before a long run                    |
| `client_updates`       | submodule: parts of `inversion`, such as candidates and smoothing                   |
| `adaptive`             | submodule: attackers who know a client's defense and its strength                   |
| `aggregated`           | submodule: parts of CAFE and the attacks that it is compared with                   |
| `party_records`        | submodule: parts of `vflrecon`, such as baselines and shadow runs                   |
"""

from jaxleak.attacks import adaptive, aggregated, client_updates, party_records, presets
from jaxleak.attacks._cafe.censored import cafe_censored
from jaxleak.attacks._cafe.exact import cafe_exact, plan_cafe_exact
from jaxleak.attacks._cafe.ordinal import cafe_ordinal
from jaxleak.attacks._cafe.three_steps import cafe
from jaxleak.attacks._inversion.engine import inversion
from jaxleak.attacks._inversion.epoch_copies import epoch_copies
from jaxleak.attacks._inversion.label_rules import LABEL_RULES, infer_labels
from jaxleak.attacks._inversion.patch_embedding import patch_embedding
from jaxleak.attacks._inversion.settings import Settings
from jaxleak.attacks._inversion.spear import spear
from jaxleak.attacks._observed import check_payload
from jaxleak.attacks._vertical.vflrecon import train_vflrecon, vflrecon
from jaxleak.attacks._vertical.vflrecon_free import vflrecon_free

__all__ = [
    "LABEL_RULES",
    "Settings",
    "adaptive",
    "aggregated",
    "cafe",
    "cafe_censored",
    "cafe_exact",
    "cafe_ordinal",
    "check_payload",
    "client_updates",
    "epoch_copies",
    "infer_labels",
    "inversion",
    "party_records",
    "patch_embedding",
    "plan_cafe_exact",
    "presets",
    "spear",
    "train_vflrecon",
    "vflrecon",
    "vflrecon_free",
]
