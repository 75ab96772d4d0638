"""Conditions and static facts as canonical JSON, and back: what a column of a trial holds, and a line of an export."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..kernels.backend import ConfigValue, StaticFacts
from ..kernels.errors import InvalidInputError
from . import values
from .records import Conditions


def conditions_document(conditions: Conditions, n_samples: int) -> dict[str, Any]:
    """Conditions as plain JSON values.

    Args:
        conditions: what to store.
        n_samples: how many samples stand beside them; `throttled_samples` are indices into these.

    Raises:
        InvalidInputError: a figure cannot be stored, or an index leads to no sample.
    """
    throttled = [values.int64(i, "The index of a throttled sample", least=0) for i in conditions.throttled_samples]
    if throttled != sorted(set(throttled)) or (throttled and throttled[-1] >= n_samples):
        raise InvalidInputError(
            f"Throttled samples must be named by growing indices below {n_samples}, the number of samples."
        )
    temperature, power = conditions.temperature_c, conditions.power_w
    return {
        "sm_clock_mhz": _span(conditions.sm_clock_mhz, "The SM clock"),
        "memory_clock_mhz": _span(conditions.memory_clock_mhz, "The memory clock"),
        "temperature_c": None if temperature is None else values.int64(temperature, "The temperature"),
        "power_w": None if power is None else values.number(power, "The power"),
        "throttle_reasons": [values.name(one, "A throttle reason") for one in conditions.throttle_reasons],
        "throttled_samples": throttled,
    }


def _span(span: Sequence[int] | None, what: str) -> list[int] | None:
    """Lowest and highest of a clock."""
    if span is None:
        return None
    if len(span) != 2 or span[0] > span[1]:
        raise InvalidInputError(f"{what} must be its lowest and its highest figure.")
    return [values.int64(one, what, least=0) for one in span]


def config_from(text: str) -> dict[str, ConfigValue]:
    """A stored config. Raises ValueError or TypeError if it is none."""
    config = json.loads(text)
    if not isinstance(config, dict):
        raise TypeError("a config is no object")
    return config


def conditions_from(document: Mapping[str, Any]) -> Conditions:
    """The conditions that `conditions_document` made a document of; a fault in it raises what it happens to raise."""
    sm, memory = document["sm_clock_mhz"], document["memory_clock_mhz"]
    return Conditions(
        None if sm is None else tuple(sm),
        None if memory is None else tuple(memory),
        document["temperature_c"],
        document["power_w"],
        tuple(document["throttle_reasons"]),
        tuple(document["throttled_samples"]),
    )


def facts_document(facts: StaticFacts) -> dict[str, Any]:
    """Static facts as plain JSON values.

    Raises:
        InvalidInputError: a figure cannot be stored.
    """
    return {
        "target": values.name(facts.target, "The target"),
        "registers": values.int64(facts.registers, "The number of registers", least=0),
        "stack_bytes": values.int64(facts.stack_bytes, "The stack frame", least=0),
        "shared_bytes": values.int64(facts.shared_bytes, "The shared memory", least=0),
        "instructions": {
            values.name(opcode, "An opcode"): values.int64(count, "The number of instructions", least=0)
            for opcode, count in facts.instructions.items()
        },
    }


def facts_from(document: Mapping[str, Any]) -> StaticFacts:
    """The static facts that `facts_document` made a document of."""
    return StaticFacts(
        document["target"],
        document["registers"],
        document["stack_bytes"],
        document["shared_bytes"],
        dict(document["instructions"]),
    )
