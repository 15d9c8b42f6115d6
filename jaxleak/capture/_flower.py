"""Record what clients of Flower receive and send: a mod for a client's app, a recorder around a server's strategy."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np

from jaxleak.capture._facts import FactOptions, Facts
from jaxleak.capture._update import save

#: Names under which Flower's own strategies put the weights: of clients that are functions, and of `NumPyClient`.
_RECEIVED, _SENT = ("arrays", "fitins.parameters"), ("arrays", "fitres.parameters")
#: Where Flower's strategies tell a client the number of the round.
_ROUND = "server-round"
#: What Flower sends, where nothing else is stated.
_SENT_BY_FLOWER = FactOptions(kind="weights", framework="flower")

Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
Strategy = TypeVar("Strategy")


def flower_mod(folder: str | Path, **facts: Unpack[FactOptions]) -> Mod:
    """A mod that writes the weights which a client received and sent, and changes neither.

    Use it as `ClientApp(mods=[capture.flower_mod("recorded", local_steps=1, learning_rate=0.1, batch_size=4)])`. For
    every message with weights it writes `ROUND-NODE-received.safetensors` and `ROUND-NODE-sent.safetensors`. The first
    is for `--weights` of `jaxleak audit`, the second, whose kind is "weights", for `--update`.

    Args:
        folder: the folder for the files; it is made.
        facts: what is known of the client, the fields of `Facts`; an update needs learning_rate and local_steps.

    Raises:
        TypeError: on a fact that `Facts` does not have, which it names.
        ValueError: as `save` on a fact out of its range.
    """
    Facts.of(**facts)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        # Read before the client runs, which may train in place.
        received = _weights(message, _RECEIVED)
        reply = call_next(message, context)
        sent = _weights(reply, _SENT)
        if received and sent:
            name = f"{_round(message)}-{context.node_id}"
            _write(folder, f"{name}-received", received)
            _write(folder, f"{name}-sent", sent, **facts)
        return reply

    return mod


def flower_strategy(strategy: Strategy, folder: str | Path, **facts: Unpack[FactOptions]) -> Strategy:
    """Make a server's strategy write the weights that it sends and receives, and change neither.

    Use it as `capture.flower_strategy(FedAvg(), "recorded", local_steps=1, learning_rate=0.1, batch_size=4)`. It writes
    `ROUND-received.safetensors` once a round, which all clients receive, and `ROUND-NODE-sent.safetensors` for every
    client, as `flower_mod` does in the client.

    Args:
        strategy: a strategy of `flwr.serverapp.strategy`, or one with its `configure_train` and `aggregate_train`.
        folder: the folder for the files; it is made.
        facts: what is known of every client, the fields of `Facts`.

    Returns:
        The same strategy.

    Raises:
        TypeError: if it has no such methods, as strategies of the older flwr.server.strategy; and on a fact that
            `Facts` does not have.
        ValueError: as `save` on a fact out of its range.
    """
    Facts.of(**facts)
    recorded: Any = strategy
    try:
        configure, aggregate = recorded.configure_train, recorded.aggregate_train
    except AttributeError as error:
        name = type(strategy).__name__
        if hasattr(recorded, "configure_fit"):
            raise TypeError(
                f"{name} is a strategy of the older flwr.server.strategy, which is not recorded: take the one of that "
                "name in flwr.serverapp.strategy, or record in the client, by ClientApp(mods=[capture.flower_mod(...)])"
            ) from error
        raise TypeError(f"strategy must be one of flwr.serverapp.strategy, got {name}") from error

    def configure_train(server_round: int, arrays: Any, *arguments: Any, **named: Any) -> Any:
        _write(folder, f"{server_round}-received", _arrays(arrays))
        return configure(server_round, arrays, *arguments, **named)

    def aggregate_train(server_round: int, replies: Iterable[Any]) -> Any:
        replies = list(replies)
        for reply in replies:
            sent = _weights(reply, _SENT)
            if sent:
                _write(folder, f"{server_round}-{reply.metadata.src_node_id}-sent", sent, **facts)
        return aggregate(server_round, replies)

    recorded.configure_train, recorded.aggregate_train = configure_train, aggregate_train
    return strategy


def _write(folder: str | Path, name: str, arrays: dict[str, np.ndarray], **facts: Unpack[FactOptions]) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    save(Path(folder) / f"{name}.safetensors", arrays, **(_SENT_BY_FLOWER | facts))


def _round(message: Any) -> str:
    """The number of the round, which strategies send as a setting, and older ones as the group of the message."""
    for settings in message.content.config_records.values():
        if _ROUND in settings:
            return str(settings[_ROUND])
    return message.metadata.group_id or "round"


def _weights(message: Any, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Arrays by name, or by position where Flower sends a list; none where the message holds no weights."""
    if not message.has_content():
        return {}
    records = message.content.array_records
    record = next((records[name] for name in names if name in records), None)
    return {} if record is None else _arrays(record)


def _arrays(record: Any) -> dict[str, np.ndarray]:
    return {str(name): np.array(array.numpy()) for name, array in record.items()}
