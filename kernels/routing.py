"""Which experts the tokens of a grouped or moe problem go to.

Only the counts matter to a grouped GEMM, whose rows are sorted by expert; a fused layer is given the experts of every
token. All draws are seeded and made on the CPU, so that a seed means the same rows on every device.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from .errors import InvalidInputError
from .problem import Op, Problem, Routing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

POWER_LAW_EXPONENT = 1.2
"""Exponent of the density of an expert's popularity. AIConfigurator (`collector/`, power_law_1.2) estimates 1.2 for
Qwen3-235B and 1.01 for DeepSeek-R1 by matching measured latencies, and publishes its RTX PRO 6000 MoE times for it."""

POWER_LAW_RANGE = 100.0
"""Most popular over least popular expert, at most. Bounded so, the busiest fifth of the experts has two thirds of the
load ((100^0.8 - 26.8^0.8)/(100^0.8 - 1) = 0.67), near the 65% that AIConfigurator's notes give for Qwen3-235B."""

_CHUNK = 1 << 24
"""Token-expert pairs that are drawn at a time: 64 MiB of float32."""


def max_rows(problem: Problem) -> int:
    """Rows that `draw_offsets` may give at most, whatever the seed: M for dense.

    A token sends at most min(top_k, experts) rows to this rank. For uniform routing over several ranks the mean
    plus eight standard deviations is taken instead, where that is less (one draw in 10^15 is above).
    """
    if problem.op is Op.DENSE:
        return problem.m
    most = problem.m * min(problem.top_k, problem.experts)
    if problem.routing is not Routing.UNIFORM or problem.experts == problem.experts_total:
        return most
    mean = problem.m * problem.top_k * problem.experts / problem.experts_total
    return min(most, math.ceil(mean + 8 * math.sqrt(mean) + 8))


def draw_offsets(problem: Problem, seed: int) -> torch.Tensor:
    """Row offsets of the experts on this rank, which are the experts 0 to `problem.experts` - 1 of the layer.

    Every token goes to `top_k` distinct experts of `experts_total`:

    - uniform: all subsets are equally likely.
    - power_law: each expert has a popularity with density x^-1.2 on [1, 100], dealt to the experts at random; a
      token picks without replacement with odds proportional to it.
    - one_hot: every token goes to experts 0 to top_k - 1, the most uneven routing that there is.

    Args:
        problem: a grouped or moe problem.
        seed: decides the draw together with the problem.

    Returns:
        int64 [experts + 1] on the CPU; expert e owns rows offsets[e]:offsets[e+1]. The last one is the number of
        rows on this rank: experts_total == experts gives exactly M·top_k, else it varies around `Problem.rows`
        and may be 0.

    Raises:
        InvalidInputError: the problem is dense.
    """
    import torch

    counts = torch.zeros(problem.experts_total, dtype=torch.int64)
    for chosen in _draws(problem, seed):
        counts += torch.bincount(chosen.flatten(), minlength=problem.experts_total)
    offsets = torch.zeros(problem.experts + 1, dtype=torch.int64)
    torch.cumsum(counts[: problem.experts], dim=0, out=offsets[1:])
    return offsets


def draw_experts(problem: Problem, seed: int) -> torch.Tensor:
    """The experts of every token, by the same draw as `draw_offsets`: int64 [M, top_k] on the CPU.

    They are numbered over the whole layer, 0 to experts_total - 1, and different within a row; those below
    `problem.experts` are on this rank.

    Raises:
        InvalidInputError: the problem is dense.
    """
    import torch

    return torch.cat(list(_draws(problem, seed)))


@lru_cache(maxsize=1024)
def drawn_load(problem: Problem, seed: int) -> tuple[int, int]:
    """(rows on this rank, experts that have any) of what `draw_offsets` gives; (M, 1) for dense."""
    if problem.op is Op.DENSE:
        return problem.m, 1
    offsets = draw_offsets(problem, seed)
    return int(offsets[-1]), int((offsets.diff() > 0).sum())


@lru_cache(maxsize=1024)
def drawn_tokens(problem: Problem, seed: int) -> int:
    """Tokens that go to any expert on this rank; M for dense."""
    if problem.op is Op.DENSE or problem.experts == problem.experts_total:
        return problem.m
    return sum(int((chosen < problem.experts).any(dim=1).sum()) for chosen in _draws(problem, seed))


def _draws(problem: Problem, seed: int) -> Iterator[torch.Tensor]:
    """The experts of every token, some tokens at a time: int64 [tokens, top_k].

    Raises:
        InvalidInputError: the problem is dense.
    """
    import torch

    if problem.op is Op.DENSE:
        raise InvalidInputError(f"{problem.shape} is a dense problem, which has no routing.")
    step = max(1, _CHUNK // problem.experts_total)
    generator = torch.Generator().manual_seed(seed)
    log_odds = torch.zeros(problem.experts_total)
    if problem.routing is Routing.POWER_LAW:
        log_odds = _popularity(problem.experts_total, generator).log()
    for start in range(0, problem.m, step):
        tokens = min(step, problem.m - start)
        if problem.routing is Routing.ONE_HOT:
            yield torch.arange(problem.top_k).expand(tokens, -1)
        else:
            yield _draw_experts(tokens, problem.top_k, log_odds, generator)


def _popularity(experts: int, generator: torch.Generator) -> torch.Tensor:
    """Draws from the bounded power law by inverting its distribution function; float32 [experts]."""
    import torch

    power = 1 - POWER_LAW_EXPONENT
    u = torch.rand(experts, generator=generator)
    popularity: torch.Tensor = (1 + u * (POWER_LAW_RANGE**power - 1)) ** (1 / power)
    return popularity


def _draw_experts(tokens: int, top_k: int, log_odds: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The experts of `tokens` tokens; int64 [tokens, top_k].

    Adding Gumbel noise to log odds and taking the largest k samples without replacement with these odds
    (Gumbel-top-k: Vieira 2014; Kool, van Hoof and Welling 2019).
    """
    import torch

    experts = log_odds.numel()
    if top_k == experts:
        return torch.arange(experts).expand(tokens, -1)
    noise = torch.empty(tokens, experts).exponential_(generator=generator).log_()
    return (log_odds - noise).topk(top_k, dim=1, sorted=False).indices
