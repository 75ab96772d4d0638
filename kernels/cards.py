"""Cards that can be compiled for without being there. Nothing that is measured ever comes from this table.

Figures are those of data sheets and of people who own the card, to size a search space and a launch by; where a card
is in the machine, `device.detect` asks it instead.
"""

from __future__ import annotations

from .device import Device
from .errors import NotFoundError

_GIB, _MIB = 1 << 30, 1 << 20

CARDS: dict[str, Device] = {
    # NVIDIA's data sheets of the RTX PRO 6000 Blackwell Workstation Edition and of the GeForce RTX 5090.
    "rtx-pro-6000": Device(
        "cuda", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0", 188, 96 * _GIB, 128 * _MIB, 600.0
    ),
    "rtx-5090": Device("cuda", "NVIDIA GeForce RTX 5090", "12.0", 170, 32 * _GIB, 96 * _MIB, 575.0),
    # 6144 cores at 128 an SM; memory shared with the CPU; the size of L2 is not in a data sheet.
    "gb10": Device("cuda", "NVIDIA GB10", "12.1", 48, 128 * _GIB, 24 * _MIB, 140.0),
    "b200": Device("cuda", "NVIDIA B200", "10.0", 148, 180 * _GIB, 126 * _MIB, 1000.0),
    "b300": Device("cuda", "NVIDIA B300", "10.3", 148, 270 * _GIB, 126 * _MIB, 1100.0),
    # Asked of a card.
    "h200": Device("cuda", "NVIDIA H200", "9.0", 132, 150109880320, 60 * _MIB, 700.0),
    # NVIDIA's architecture white papers of the A100 and of Ada.
    "a100": Device("cuda", "NVIDIA A100-SXM4-80GB", "8.0", 108, 80 * _GIB, 40 * _MIB, 400.0),
    "rtx-4090": Device("cuda", "NVIDIA GeForce RTX 4090", "8.9", 128, 24 * _GIB, 72 * _MIB, 450.0),
}
"""Name -> device. The first of an architecture stands for it."""


def card_for(arch: str) -> Device:
    """The card that stands for an architecture.

    Args:
        arch: a name of CARDS, or an architecture, `sm_120a`, `sm_120` or `120`.

    Raises:
        NotFoundError: there is none; the sentence lists what there is.
    """
    if arch in CARDS:
        return CARDS[arch]
    digits = arch.removeprefix("sm_").removesuffix("a")
    for card in CARDS.values():
        if card.compute_capability.replace(".", "") == digits:
            return card
    archs = dict.fromkeys(f"sm_{card.compute_capability.replace('.', '')}" for card in CARDS.values())
    raise NotFoundError(f"There is no architecture or card {arch!r}: write one of {', '.join([*archs, *CARDS])}.")
