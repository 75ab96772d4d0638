"""What FlashInfer's MoE and grouped backends have in common: where they run, and how a call is made safe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .. import cuda_stack
from ..backend import Availability, Config, ConfigValue, Space
from ..errors import UnsupportedError
from ..problem import Format, Op, OutDtype
from ..triton_gemm.compiler import parse_capability
from .seam import Seam, seam, why_not
from .versions import DISTRIBUTION, installed_version, unfit_version

if TYPE_CHECKING:
    from ..device import Device
    from ..operands import Operands
    from ..problem import Problem


class Sm12x:
    """A backend of FlashInfer for SM120 and SM121, without the dense call's tactics.

    Attributes:
        name: of the backend. op: what it computes.
        out_dtypes: of D.
        n_multiple, k_multiple: what N and K must be multiples of. FlashInfer checks only some of it.
        cuda: oldest CUDA.
        library: FlashInfer's native library, empty if it needs none.
    """

    name: ClassVar[str]
    op: ClassVar[Op]
    out_dtypes: ClassVar[tuple[OutDtype, ...]] = (OutDtype.BF16,)
    n_multiple: ClassVar[int] = 16
    k_multiple: ClassVar[int] = 16
    cuda: ClassVar[tuple[int, int]] = (12, 8)
    library: ClassVar[str] = ""

    def probe(self, device: Device) -> Availability:
        """Whether the card, CUDA, FlashInfer and its library are here. Makes no CUDA context."""
        reason = self._why_not_on(device) or unfit_version() or self.why_not_here(device) or why_not(device)
        if not reason:
            try:
                reason = self.why_not_ready(seam())
            except Exception as error:  # noqa: BLE001 - a broken installation may raise anything, and probe never does
                reason = f"FlashInfer cannot be used ({type(error).__name__}: {error})."
        return Availability(not reason, reason)

    def why_not_here(self, device: Device) -> str:
        """Why what it needs beside FlashInfer is not here, or nothing. SM121 needs CUDA 12.9."""
        minimum = max(self.cuda, (12, 9)) if device.compute_capability == "12.1" else self.cuda
        return cuda_stack.why_cuda_too_old(minimum, self.name)

    def why_not_ready(self, flashinfer: Seam) -> str:
        """Why FlashInfer cannot run it at once, or nothing: its native library would be built inside a trial."""
        from .native_build import is_built

        if not self.library or is_built(flashinfer, self.library):
            return ""
        return (
            f"Its library {self.library} is not built, which takes up to an hour: "
            f"install flashinfer-jit-cache=={flashinfer.version}."
        )

    def versions(self, device: Device) -> dict[str, str]:  # noqa: ARG002 - part of the protocol
        """FlashInfer's, and what built its library or compiles its kernels."""
        from .backends import built_by

        return {"flashinfer": installed_version(DISTRIBUTION), **(built_by() if self.library else {})}

    def space(self, problem: Problem, device: Device) -> Space:
        """What can be chosen. Raises UnsupportedError."""
        self._check(device)
        return self.space_of(problem)

    def default(self, problem: Problem, device: Device) -> dict[str, ConfigValue]:
        """What FlashInfer does when nobody says anything. Raises UnsupportedError."""
        self._check(device)
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

    def check_problem(self, problem: Problem) -> None:
        """Refuse what FlashInfer would not refuse before it is too late.

        Raises:
            UnsupportedError: with the field and its value.
        """
        if problem.op is not self.op or problem.format is not Format.NVFP4:
            raise UnsupportedError(f"{self.name} is for {self.op.value} problems in nvfp4, not for {problem.key}.")
        if problem.out_dtype not in self.out_dtypes:
            known = " or ".join(dtype.value for dtype in self.out_dtypes)
            raise UnsupportedError(f"{self.name} writes {known}, not {problem.out_dtype.value}.")
        for name, value, multiple in (("K", problem.k, self.k_multiple), ("N", problem.n, self.n_multiple)):
            if value % multiple:
                raise UnsupportedError(f"{self.name} needs {name} to be a multiple of {multiple}, and it is {value}.")

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
        self._check(detect_once(f"cuda:{operands.out.device.index or 0}"))

    def _why_not_on(self, device: Device) -> str:
        if device.kind != "cuda":
            return "It needs a CUDA device."
        if parse_capability(device.compute_capability) in {(12, 0), (12, 1)}:
            return ""
        return f"It is for compute capability 12.0 and 12.1, and {device.name} has {device.compute_capability}."

    def _check(self, device: Device) -> None:
        """Raise the sentence of `probe`."""
        availability = self.probe(device)
        if not availability.available:
            raise UnsupportedError(f"{self.name} cannot be used. {availability.reason}")
