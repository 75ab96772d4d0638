"""What every backend of FlashInfer has: the cards that it is for, and in one sentence why it cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..backend import Availability
from ..errors import OtherKindError, UnsupportedError
from ..problem import Format, OutDtype
from .seam import Seam, seam, why_not
from .versions import unfit_version

if TYPE_CHECKING:
    from ..device import Device
    from ..problem import Op, Problem


class OnCards:
    """A backend for cards of some compute capabilities and NVFP4 problems of one kind.

    Attributes:
        name: of the backend. op: what it computes.
        capabilities: compute capabilities that it is for.
        out_dtypes: of D.
        n_multiple, k_multiple: what N and K must be multiples of. FlashInfer checks only some of it.
    """

    name: ClassVar[str]
    op: ClassVar[Op]
    capabilities: ClassVar[tuple[tuple[int, int], ...]] = ((12, 0), (12, 1))
    out_dtypes: ClassVar[tuple[OutDtype, ...]] = (OutDtype.BF16, OutDtype.FP16)
    n_multiple: ClassVar[int]
    k_multiple: ClassVar[int]

    def probe(self, device: Device) -> Availability:
        """Whether the card, FlashInfer and what the backend needs are here. Makes no CUDA context."""
        reason = self.why_not_on(device) or unfit_version() or self.why_not_here(device) or why_not(device)
        if not reason:
            try:
                flashinfer = seam()
                reason = flashinfer.why_lacking(self.name) or self.why_not_ready(flashinfer)
            except Exception as error:  # noqa: BLE001 - a broken installation may raise anything, and probe never does
                reason = f"FlashInfer cannot be used ({type(error).__name__}: {error})."
        return Availability(not reason, reason)

    def why_not_on(self, device: Device) -> str:
        """Why the card cannot run it, or nothing."""
        if device.kind != "cuda":
            return "It needs a CUDA device."
        if device.capability in self.capabilities:
            return ""
        known = " and ".join(f"{major}.{minor}" for major, minor in self.capabilities)
        return f"It is for compute capability {known}, and {device.name} has {device.compute_capability}."

    def why_not_here(self, device: Device) -> str:
        """Why what it needs beside FlashInfer is not here, or nothing. Imports nothing heavy."""
        raise NotImplementedError

    def why_not_ready(self, flashinfer: Seam) -> str:  # noqa: ARG002 - for backends that need a build
        """What FlashInfer itself must have done before, or nothing."""
        return ""

    def check_usable(self, device: Device) -> None:
        """Raise UnsupportedError with the sentence of `probe`, if there is one."""
        availability = self.probe(device)
        if not availability.available:
            raise UnsupportedError(f"{self.name} cannot be used. {availability.reason}")

    def check_problem(self, problem: Problem) -> None:
        """Refuse what FlashInfer would not refuse before it is too late.

        Raises:
            UnsupportedError: with the field and its value.
        """
        if problem.op is not self.op or problem.format is not Format.NVFP4:
            raise OtherKindError(f"{self.name} is for {self.op.value} problems in nvfp4, not for {problem.key}.")
        if problem.out_dtype not in self.out_dtypes:
            known = " or ".join(dtype.value for dtype in self.out_dtypes)
            raise UnsupportedError(f"{self.name} writes {known}, not {problem.out_dtype.value}.")
        for name, value, multiple in (("K", problem.k, self.k_multiple), ("N", problem.n, self.n_multiple)):
            if value % multiple:
                raise UnsupportedError(f"{self.name} needs {name} to be a multiple of {multiple}, and it is {value}.")
