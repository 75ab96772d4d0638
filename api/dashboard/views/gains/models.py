"""Which model the page of gains is about: chosen by its address among those that ran here and the presets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .....db.dashboard.gains import ModelRun
from .....kernels.errors import NotFoundError
from .....tuner.presets import close_names
from ...choices import MAX_OPTIONS
from ...model import Filter, Option
from ...page import Asked, Parameter
from ...workloads import Model, preset_names

BY_HAND = "shapes given by hand"
"""What bare shapes are called, which belong to no model."""

MODEL = Parameter(
    "model", r"[^\x00-\x1f\x7f]{1,1000}", f"a checkpoint as runs name it, the name of a preset, or `{BY_HAND}`"
)
TP = Parameter("tp", "[1-9][0-9]{0,3}", "tensor parallelism, a whole number of ranks from 1")
EP = Parameter("ep", "[1-9][0-9]{0,3}", "expert parallelism, a whole number of ranks from 1")

USUAL_SIZES = (1, 2, 4, 8)
"""TP and EP that are offered of a preset whether or not anybody tuned for them."""

MAX_MODEL_RUNS = 50
"""Most runs of a model whose problems are put together: the newest."""

_SENT = re.compile(MODEL.pattern)


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The model that the page shows.

    Attributes:
        model: which. spelling: its checkpoint, as `fp4tune tune` takes it; empty for bare shapes.
        preset: name of its preset; empty if it is none.
        runs: its newest runs, newest first. n_runs: how many there are among the newest of all.
        filters: to choose another one. warnings: where something else than asked for is shown.
    """

    model: Model
    spelling: str
    preset: str
    runs: Sequence[ModelRun]
    n_runs: int
    filters: tuple[Filter, ...]
    warnings: tuple[str, ...] = ()


def choose_model(asked: Asked, runs: Sequence[ModelRun], environment_fingerprint: str) -> ChosenModel | None:
    """The model that the address names, or else that of the newest run in the environment.

    Runs of a checkpoint come before bare shapes, which have no roles and no totals.

    Args:
        asked: the address.
        runs: the newest runs of all, newest first.
        environment_fingerprint: where the page is about.

    Returns:
        None if nothing is named and nothing ran.

    Raises:
        NotFoundError: no run has the model, and no preset is called so.
    """
    presets = preset_names()
    names = {one.checkpoint: presets.get(one.checkpoint.strip().lower(), one.checkpoint) for one in runs}
    wanted = asked.get(MODEL)
    name = _named(wanted, names, presets) if wanted else _default(runs, names, environment_fingerprint)
    if name is None:
        return None
    preset = name if name in presets.values() else ""
    own = [one for one in runs if names[one.checkpoint] == name]
    tp, ep = (int(asked.get(one)) if asked.get(one) else None for one in (TP, EP))
    model, warnings = _sized(name, own, tp, ep, environment_fingerprint, is_preset=bool(preset))
    exact = [one for one in own if (one.tp, one.ep) == (model.tp, model.ep)]
    filters = (
        Filter(MODEL.name, "Model", _value(name), _models(name, names, runs, presets)),
        Filter(TP.name, "TP", str(model.tp), _sizes({one.tp for one in own}, model.tp, is_preset=bool(preset))),
        Filter(EP.name, "EP", str(model.ep), _sizes({one.ep for one in own}, model.ep, is_preset=bool(preset))),
    )
    spelling = exact[0].checkpoint if exact else own[0].checkpoint if own else preset
    return ChosenModel(
        model, spelling, preset, exact[:MAX_MODEL_RUNS], len(exact), filters[: 3 if name else 1], warnings
    )  # fmt: skip


def presets_filter() -> Filter:
    """A choice among the presets, where no run says of which model anything is."""
    names = sorted(set(preset_names().values()), key=str.lower)[: MAX_OPTIONS - 1]
    return Filter(MODEL.name, "Model", "", (Option("", "none"), *(Option(name, name) for name in names)))


def model_title(name: str) -> str:
    """What a model is called for people: of a path the last part."""
    return name.rstrip("/").rpartition("/")[2] or name or BY_HAND


def _value(name: str) -> str:
    """A model in an address. One that cannot stand there, or that means something else, is named by a hash."""
    if not name:
        return BY_HAND
    if _SENT.fullmatch(name) and name == name.strip() and name != BY_HAND:
        return name
    return f"~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _named(wanted: str, names: dict[str, str], presets: dict[str, str]) -> str:
    """The model that an address names."""
    if wanted == BY_HAND:
        return ""
    found = next((name for name in names.values() if _value(name) == wanted), None)
    found = presets.get(wanted.strip().lower()) if found is None else found
    if found is None:
        shown = wanted if len(wanted) <= 80 else f"{wanted[:77]}..."
        close = close_names(wanted)
        hint = f"; did you mean {' or '.join(close)}?" if close else "."
        raise NotFoundError(f"No run here has tuned {shown!r}, and no preset is called so{hint}")
    return found


def _default(runs: Sequence[ModelRun], names: dict[str, str], environment_fingerprint: str) -> str | None:
    """The model of the newest run in an environment, or else of the newest of all."""
    here = [one for one in runs if one.environment_fingerprint == environment_fingerprint] or runs
    first = next((one for one in here if one.checkpoint), next(iter(here), None))
    return names[first.checkpoint] if first else None


def _sized(
    name: str, own: Sequence[ModelRun], tp: int | None, ep: int | None, environment_fingerprint: str, *, is_preset: bool
) -> tuple[Model, tuple[str, ...]]:
    """The model at the sizes that are asked for, or else at those of its newest run that comes nearest."""
    if not name:
        return Model(""), ()
    fitting = [one for one in own if tp in (None, one.tp) and ep in (None, one.ep)]
    here = [one for one in fitting if one.environment_fingerprint == environment_fingerprint] or fitting
    if here:
        return Model(name, here[0].tp, here[0].ep), ()
    if is_preset:
        return Model(name, tp or 1, ep or 1), ()
    newest = own[0]
    said = f"No run has tuned this model at TP {tp or 'any'} and EP {ep or 'any'}; its newest run is shown."
    return Model(name, newest.tp, newest.ep), (said,)


def _models(
    chosen: str, names: dict[str, str], runs: Sequence[ModelRun], presets: dict[str, str]
) -> tuple[Option, ...]:
    """Models to choose from: the chosen one, those that ran here, newest first, then the presets."""
    tuned = dict.fromkeys(names[one.checkpoint] for one in runs)
    offered = dict.fromkeys([chosen, *tuned, *sorted(set(presets.values()), key=str.lower)])
    return tuple(
        Option(_value(name), name if name in tuned else f"{name} (preset, no run here)")
        if name
        else Option(BY_HAND, BY_HAND)
        for name in list(offered)[:MAX_OPTIONS]
    )


def _sizes(tuned: set[int], chosen: int, *, is_preset: bool) -> tuple[Option, ...]:
    """Sizes to choose from."""
    offered = sorted({chosen, *tuned, *(USUAL_SIZES if is_preset else ())})[:MAX_OPTIONS]
    return tuple(Option(str(one), str(one) if one in tuned else f"{one} (no run here)") for one in offered)
