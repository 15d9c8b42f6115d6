"""Recording what Flower clients receive and send: a mod for a client's app, and a wrapper of a server's strategy."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np

from jaxleak.capture._facts import FactOptions, Facts
from jaxleak.capture._update import save

#: Names of the records in which Flower's strategies put the weights: for clients that are functions, and `NumPyClient`.
_RECEIVED, _SENT = ("arrays", "fitins.parameters"), ("arrays", "fitres.parameters")
#: Name of the setting in which Flower's strategies tell a client the number of the round.
_ROUND = "server-round"
#: Facts about what Flower sends, unless others are stated.
_SENT_BY_FLOWER = FactOptions(kind="weights", framework="flower")

Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
Strategy = TypeVar("Strategy")


def flower_mod(folder: str | Path, **facts: Unpack[FactOptions]) -> Mod:
    """Make a mod that writes to files the weights that a client received and sent, and changes neither.

    Use it as `ClientApp(mods=[capture.flower_mod("recorded", local_steps=1, learning_rate=0.1, batch_size=4)])`. For
    every message with weights it writes `ROUND-NODE-received.safetensors` and `ROUND-NODE-sent.safetensors`. The first
    file is for `--weights` of `jaxleak audit`; the second file has the kind "weights" and is for `--update`.

    Args:
        folder: folder for the files, which is made if it is missing.
        facts: known facts about the client, the fields of `Facts`; an update needs learning_rate and local_steps.

    Raises:
        TypeError: naming a fact that `Facts` does not have.
        ValueError: as in `save`, if a fact is out of range.
    """
    Facts.of(**facts)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        # The weights are read before the client runs, since it may train in place.
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
    `ROUND-received.safetensors` once a round, with the weights that all clients receive, and
    `ROUND-NODE-sent.safetensors` for every client, as `flower_mod` does in the client.

    Args:
        strategy: strategy of `flwr.serverapp.strategy`, or another with the methods `configure_train` and
            `aggregate_train`.
        folder: folder for the files, which is made if it is missing.
        facts: known facts about every client, the fields of `Facts`.

    Returns:
        The same strategy.

    Raises:
        TypeError: if the strategy lacks these methods, as strategies of the older flwr.server.strategy do; or if
            `Facts` does not have a fact.
        ValueError: as in `save`, if a fact is out of range.
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
    """Find the number of the round, which strategies send as a setting, and older ones as the message's group."""
    for settings in message.content.config_records.values():
        if _ROUND in settings:
            return str(settings[_ROUND])
    return message.metadata.group_id or "round"


def _weights(message: Any, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Read arrays by name, or by position if Flower sends a list; empty if the message holds no weights."""
    if not message.has_content():
        return {}
    records = message.content.array_records
    record = next((records[name] for name in names if name in records), None)
    return {} if record is None else _arrays(record)


def _arrays(record: Any) -> dict[str, np.ndarray]:
    return {str(name): np.array(array.numpy()) for name, array in record.items()}
