"""What to choose from above a page: the environment and policy that it shows, which most pages need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...db.dashboard.gains import NewestRuns
from ...db.dashboard.scopes import Scope, ScopesOf
from ...kernels.device import Environment
from ...kernels.errors import NotFoundError
from .model import Filter, NextStep, Option
from .page import ENVIRONMENT, POLICY, Asked, Context, UnfittingError, address

MAX_OPTIONS = 200
"""Most options of a filter."""

TUNE_FIRST = NextStep(
    "Nothing is tuned in this database yet. Tune a model, or a single shape, and it appears here while it runs.",
    command="fp4tune tune qwen3.5-397b-a17b-nvfp4 --tp 8 --tokens 1,16,64",
)
"""What to do where there are no winners at all."""


def first_steps(context: Context) -> tuple[NextStep, ...]:
    """What to do where nothing is served: there may be runs all the same, none of which has found anything yet."""
    if not context.store.ask(NewestRuns(limit=1)):
        return (TUNE_FIRST,)
    return (
        NextStep(
            "Runs are stored, and none of them has selected anything to serve yet. See how far they are:",
            link=address("runs"),
        ),
        NextStep("See what failed:", link=address("failures")),
        NextStep("Tune a model, or a single shape:", command=TUNE_FIRST.command),
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """The scope that a page shows.

    Attributes:
        scope: the one that was asked for, or else the newest; None if there are none.
        scopes: all, newest first.
        filters: to choose another one.
    """

    scope: Scope | None
    scopes: Sequence[Scope]
    filters: tuple[Filter, ...]


def choose_scope(context: Context, asked: Asked) -> Chosen:
    """The environment and policy that the address names, or else the newest of those that fit what it names.

    Raises:
        UnfittingError: it names an environment that has winners, and none by the policy that it names.
        NotFoundError: it names an environment or a policy in which nothing is served.
    """
    scopes = context.store.ask(ScopesOf())
    environment, policy = asked.get(ENVIRONMENT), asked.get(POLICY)
    fitting = [
        one
        for one in scopes
        if environment in ("", one.environment.fingerprint) and policy in ("", one.policy)
    ]  # fmt: skip
    if scopes and not fitting:
        said = " and ".join(
            [f"environment {environment}"] * bool(environment) + [f"policy {policy}"] * bool(policy)
        )  # fmt: skip
        if policy and any(one.environment.fingerprint == environment for one in scopes):
            raise UnfittingError(f"Nothing is served for {said}.", (POLICY.name,))
        raise NotFoundError(f"Nothing is served for {said}.")
    scope = fitting[0] if fitting else None
    return Chosen(scope, scopes, _filters(scopes, scope))


def environment_label(environment: Environment) -> str:
    """An environment for people, told apart from others by its fingerprint: `NVIDIA H200 · driver 580.159 · 0d43…`."""
    driver = environment.versions.get("driver")
    parts = [environment.device.name, *([f"driver {driver}"] if driver else []), environment.fingerprint]
    return " · ".join(parts)


def _filters(scopes: Sequence[Scope], scope: Scope | None) -> tuple[Filter, ...]:
    if scope is None:
        return ()
    environments = {one.environment.fingerprint: one.environment for one in [scope, *scopes]}
    options = [Option(key, environment_label(one)) for key, one in environments.items()][:MAX_OPTIONS]
    chosen = scope.environment.fingerprint
    policies = sorted({one.policy for one in scopes if one.environment.fingerprint == chosen})
    return (
        Filter(ENVIRONMENT.name, "Environment", chosen, tuple(options)),
        Filter(POLICY.name, "Measured by", scope.policy, tuple(Option(one, one) for one in policies)),
    )
