"""Record what Flower's clients receive and send: a client mod, as `flwr.clientapp.ClientApp` takes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxleak.capture._update import save

#: Names under which Flower's own strategies put the weights: of clients that are functions, and of `NumPyClient`.
_RECEIVED, _SENT = ("arrays", "fitins.parameters"), ("arrays", "fitres.parameters")

Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]


def flower_mod(folder: str | Path, **facts: Any) -> Mod:
    """A mod that writes the weights which a client received and sent, and changes neither.

    Use it as `ClientApp(mods=[capture.flower_mod("recorded", local_steps=1, learning_rate=0.1, batch_size=4)])`. For
    every message with weights it writes `ROUND-NODE-received.safetensors` and `ROUND-NODE-sent.safetensors`. The first
    is for `--weights` of `jaxleak audit`, the second, whose kind is "weights", for `--update`.

    Args:
        folder: where; it is made.
        facts: what is known of the client, the fields of `Facts`; an update needs learning_rate and local_steps.

    Raises:
        TypeError: on a fact that `Facts` does not have, when the first message arrives.
    """

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        # Read before the client runs, which may train in place.
        received = _weights(message, _RECEIVED)
        reply = call_next(message, context)
        sent = _weights(reply, _SENT)
        if received and sent:
            target = Path(folder)
            target.mkdir(parents=True, exist_ok=True)
            name = f"{message.metadata.group_id or 'round'}-{context.node_id}"
            save(target / f"{name}-received.safetensors", received, kind="weights", framework="flower")
            save(target / f"{name}-sent.safetensors", sent, **{"kind": "weights", "framework": "flower", **facts})
        return reply

    return mod


def _weights(message: Any, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Arrays by name, or by position where Flower sends a list; none where the message holds no weights."""
    if not message.has_content():
        return {}
    records = message.content.array_records
    record = next((records[name] for name in names if name in records), None)
    return {} if record is None else {str(name): np.array(array.numpy()) for name, array in record.items()}
