"""A card's roofs: from the store, or measured once in a process of its own and then stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..db.records import Roofs
from ..kernels.device import Device, Environment
from .workers.process import WorkerError, WorkerProcess

if TYPE_CHECKING:
    from ..db.store import Store

DEADLINE_S = 120.0
"""For measuring: a second or two of work, and the start of torch and of a CUDA context before it."""


class RoofMeter:
    """What lives in the worker.

    Args:
        device: whose roofs.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def measure(self) -> Roofs:
        """Measure. Raises whatever torch raises."""
        from .roofs import measure_roofs

        return measure_roofs(self._device)


def known_roofs(
    store: Store, environment: Environment, *, tell: Callable[[str], None] = lambda _: None
) -> Roofs | None:
    """The roofs of an environment's card, which are measured if nobody has yet. This process makes no CUDA context.

    Args:
        store: where they are remembered; open for writing.
        environment: whose. Its device must be nobody else's while this runs.
        tell: told one sentence if they have to be measured, and one if they cannot be.

    Returns:
        None for a CPU, or if they cannot be measured: a run goes on without shares of the roof.
    """
    if environment.device.kind == "cpu":
        return None
    found = store.roofs(environment)
    if found is not None:
        return found
    tell("measuring the card's roofs (copy bandwidth, BF16 rate), once per environment")
    worker = WorkerProcess("The worker that measures the roofs")
    try:
        worker.start(f"{__name__}:RoofMeter", [environment.device], deadline_s=DEADLINE_S)
        measured: Roofs = worker.request("measure", deadline_s=DEADLINE_S)
    except WorkerError as error:
        tell(f"the roofs cannot be measured, so there are no shares of them: {error}")
        return None
    finally:
        worker.kill()
    store.set_roofs(environment, measured)
    return measured
