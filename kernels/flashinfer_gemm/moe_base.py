"""What FlashInfer's MoE and grouped backends have in common: where they run, and how a call is made safe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .. import cuda_stack
from ..backend import Config, ConfigValue, Space
from ..errors import UnsupportedError
from ..problem import OutDtype
from .native_build import LIBRARIES, why_not_built
from .on_cards import OnCards
from .seam import Seam
from .versions import DISTRIBUTION, installed_version

if TYPE_CHECKING:
    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem


class Sm12x(OnCards):
    """A backend of FlashInfer for SM120 and SM121, without the dense call's tactics.

    Attributes:
        cuda: oldest CUDA.
    """

    out_dtypes: ClassVar[tuple[OutDtype, ...]] = (OutDtype.BF16,)
    cuda: ClassVar[tuple[int, int]] = (12, 8)

    def why_not_here(self, device: Device) -> str:
        """Why what it needs beside FlashInfer is not here, or nothing. SM121 needs CUDA 12.9."""
        minimum = max(self.cuda, (12, 9)) if device.compute_capability == "12.1" else self.cuda
        return cuda_stack.why_cuda_too_old(minimum, self.name)

    def why_not_ready(self, flashinfer: Seam) -> str:
        """Why FlashInfer cannot run it at once, or nothing: its native library would be built inside a trial."""
        return why_not_built(flashinfer, self.name) if self.name in LIBRARIES else ""

    def versions(self, device: Device) -> dict[str, str]:  # noqa: ARG002 - part of the protocol
        """FlashInfer's, and what built its library or compiles its kernels."""
        from .backends import built_by

        return {"flashinfer": installed_version(DISTRIBUTION), **(built_by() if self.name in LIBRARIES else {})}

    def space(self, problem: Problem, device: Device) -> Space:
        """What can be chosen. Raises UnsupportedError."""
        self.check_problem(problem)
        self.check_usable(device)
        return self.space_of(problem)

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """What FlashInfer does when nobody says anything. Raises UnsupportedError."""
        self.check_problem(problem)
        self.check_usable(device)
        return self.default_of(problem)

    def seeds(self, problem: Problem, device: Device) -> Sequence[Config]:  # noqa: ARG002 - part of the protocol
        """None."""
        return ()

    def space_of(self, problem: Problem) -> Space:
        """The space, whether or not the backend can run here. Raises UnsupportedError."""
        raise NotImplementedError

    def default_of(self, problem: Problem) -> dict[str, ConfigValue]:
        """The default, whether or not the backend can run here. Raises UnsupportedError."""
        raise NotImplementedError

    def first_call(self, operands: Operands, config: Config, run: Callable[[], Any]) -> None:
        """Call and wait. What FlashInfer raises is the config's fault, unless the card is lost with it.

        Raises:
            UnsupportedError: FlashInfer refuses the config, or cannot launch it.
        """
        import torch

        try:
            with torch.cuda.device(operands.out.device):
                run()
            torch.cuda.synchronize(operands.out.device)
        except (torch.OutOfMemoryError, UnsupportedError):
            raise
        except Exception as error:
            torch.cuda.synchronize(operands.out.device)  # raises again if the context is lost, which is no refusal
            first = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300].rstrip(". ")
            raise UnsupportedError(f"{self.name} cannot run {dict(config)} here ({first}).") from error

    def check_on_card(self, operands: Operands) -> None:
        """Refuse operands that are elsewhere, or on a card that the backend is not for."""
        from ..device import detect_once

        if not operands.out.is_cuda:
            raise UnsupportedError(f"{self.name} runs on CUDA devices, and the operands are elsewhere.")
        self.check_usable(detect_once(f"cuda:{operands.out.device.index or 0}"))
