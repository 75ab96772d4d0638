"""What FlashInfer's dense NVFP4 backends have in common: the same public call, `mm_fp4`, with another `backend`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..backend import Config, ConfigValue, Space
from ..dequant_space import check_config
from ..errors import UnsupportedError
from ..padding import pad_values, padded
from ..problem import Op
from .arguments import Arguments, of_operands, stand_ins
from .offers import Offers, split, whole_problem
from .on_cards import OnCards
from .seam import Call, Seam, seam
from .tactics import Codec, plain
from .versions import DISTRIBUTION, installed_version

if TYPE_CHECKING:
    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem


class Dense(OnCards):
    """One backend of `mm_fp4`.

    Parameters of a config are the fields of its tactics (see tactics.py) and `pad_m`.

    Attributes:
        backend: what `mm_fp4` calls it.
        live_only: whether tactics can only be asked for on the card.
    """

    op = Op.DENSE
    backend: ClassVar[str]
    k_multiple: ClassVar[int] = 32
    n_multiple: ClassVar[int] = 8
    live_only: ClassVar[bool] = False

    def codec(self, flashinfer: Seam) -> Codec:
        """The codec of its runner in the installed release."""
        raise NotImplementedError

    def versions(self, device: Device) -> dict[str, str]:  # noqa: ARG002 - part of the protocol
        """FlashInfer's, and those that a backend adds."""
        return {"flashinfer": installed_version(DISTRIBUTION)}

    def space(self, problem: Problem, device: Device) -> Space:
        """FlashInfer's own tactics for this problem on this card, and paddings of M. Raises UnsupportedError."""
        self.check_problem(problem)
        self.check_usable(device)
        return offers(self, problem, device).space

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """FlashInfer's own choice, its tactic -1. Raises UnsupportedError."""
        self.check_problem(problem)
        self.check_usable(device)
        return dict(offers(self, problem, device).default)

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:  # noqa: ARG002 - part of the protocol
        """None: FlashInfer's own choice is the default already."""
        return ()

    def prepare(self, problem: Problem, operands: Operands, config: Config) -> Callable[[], None]:
        """The public call once, with the forced tactic, then the runner that it chose, again and again.

        Raises:
            UnsupportedError: the tactic is not offered here, FlashInfer refuses the call or cannot launch it, or it ran
                another tactic than the one it was told.
        """
        import torch

        from ..device import detect_once

        if not operands.out.is_cuda:
            raise UnsupportedError(f"{self.name} runs on CUDA devices, and the operands are elsewhere.")
        device = detect_once(f"cuda:{operands.out.device.index or 0}")
        check_config(self.name, config, self.space(problem, device))
        flashinfer = seam()
        pad_m, tactic = split(self.codec(flashinfer), config)
        wide = padded(operands, pad_m, linear_scale=False)
        with torch.cuda.device(operands.out.device):
            call = self._first_call(flashinfer, self.arguments(wide.operands), tactic)
        ran = plain(flashinfer.ran(call))
        if ran != tactic:
            raise UnsupportedError(
                f"{self.name} was told to run the tactic {tactic!r}, and FlashInfer {flashinfer.version} ran {ran!r}."
            )
        return wide.around(flashinfer.launcher(call))

    def arguments(self, operands: Operands) -> Arguments:
        """Our operands as this backend wants them."""
        return of_operands(operands)

    def tactics(self, problem: Problem, device: Device) -> Mapping[int, Sequence[Any]]:
        """Padding of M -> FlashInfer's tactics without -1, by stand-ins, or for a `live_only` backend by the card."""
        rows = {pad_m: whole_problem(problem, pad_m) for pad_m in pad_values(problem)}
        if self.live_only:
            from .live import live_tactics

            found = live_tactics(self.name, problem, device, tuple(rows.values()))
            return {pad_m: found[m] for pad_m, m in rows.items()}
        flashinfer = seam()
        with flashinfer.on(device.capability, device.sms):
            return {
                pad_m: flashinfer.tactics(stand_ins(problem, m).call(flashinfer, self.backend))
                for pad_m, m in rows.items()
            }

    def _first_call(self, flashinfer: Seam, given: Arguments, tactic: Any) -> Call:
        """The public call. What FlashInfer raises is the config's fault, unless the card is lost with it."""
        import torch

        from .seam import no_fallback

        try:
            with no_fallback():
                call: Call = given.call(flashinfer, self.backend, tactic)
            torch.cuda.synchronize()
        except (torch.OutOfMemoryError, UnsupportedError):
            raise
        except Exception as error:
            torch.cuda.synchronize()  # raises again if the context is lost, which is no refusal
            raise UnsupportedError(
                f"FlashInfer {flashinfer.version} refuses the tactic {tactic!r} of {self.name} ({_first_line(error)})."
            ) from error
        return call

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


@functools.lru_cache(maxsize=256)
def offers(backend: Dense, problem: Problem, device: Device) -> Offers:
    """What FlashInfer offers for a problem on a card, asked once in a process. Makes no CUDA context.

    Does not ask whether the backend can run here: a compile process has no card.

    Raises:
        UnsupportedError: FlashInfer refuses the problem, or a part of it cannot be used.
    """
    backend.check_problem(problem)
    flashinfer = seam()
    try:
        found = backend.tactics(problem, device)
    except UnsupportedError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"FlashInfer {flashinfer.version} refuses {problem.key} on {device.name} for {backend.name} "
            f"({_first_line(error)})."
        ) from error
    return Offers(backend.codec(flashinfer), flashinfer.version, found)


def _first_line(error: Exception) -> str:
    """An error as part of a sentence."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300].rstrip(". ")
