"""What each measuring policy does, in a sentence; docs/measuring.md says it in full."""

from __future__ import annotations

from ...db.records import Policy

POLICIES = {
    Policy.CUDA_GRAPH.value: (
        "calls are captured in one CUDA graph, each on another operand set, and replayed: no host between them, and "
        "weights that have left L2, as in a server that captured its forward pass"
    ),
    Policy.CUDA_EAGER.value: (
        "calls are launched one by one from the host, each on another operand set: launch gaps count, and weights have "
        "left L2, as in an engine that runs without graphs"
    ),
    Policy.CPU_WARM.value: "the monotonic clock around each call, with caches as the call before left them",
}
"""By policy."""


def policy_sentence(policy: str) -> str:
    """What a policy does; that it is not known, if it is another fp4tune's."""
    return f"{policy}: {POLICIES.get(policy, 'a policy that this fp4tune does not know')}"
