"""Which published systems are of which card: the publisher's names beside those that a driver reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Match = Literal["exact", "variant", ""]
"""The very card, another variant of it (same GPU, other limits), or another card."""


@dataclass(frozen=True, slots=True)
class PublishedCard:
    """A card that somebody published measurements of.

    Attributes:
        devices: its names, as a driver reports them.
        variants: names of cards with the same GPU, as many SMs, nearly as fast memory and other limits of power and
            clocks: times of the one are a hint for the other, and no more. An H100 PCIe or NVL is none of an H100 SXM,
            nor an A100 of 40 GB one of 80 GB: their memory is slower or faster by a sixth and more.
    """

    devices: tuple[str, ...]
    variants: tuple[str, ...] = ()


_RTX_PRO_6000 = "NVIDIA RTX PRO 6000 Blackwell"

CARDS: dict[str, PublishedCard] = {
    "a100_sxm": PublishedCard(("NVIDIA A100-SXM4-80GB",), ("NVIDIA A100 80GB PCIe",)),
    "b200_sxm": PublishedCard(("NVIDIA B200",), ("NVIDIA GB200",)),
    "gb200": PublishedCard(("NVIDIA GB200",), ("NVIDIA B200",)),
    "h100_sxm": PublishedCard(("NVIDIA H100 80GB HBM3",)),
    "h200_sxm": PublishedCard(("NVIDIA H200",), ("NVIDIA H200 NVL",)),
    "rtx_pro_6000_server": PublishedCard(
        (f"{_RTX_PRO_6000} Server Edition",),
        (f"{_RTX_PRO_6000} Workstation Edition", f"{_RTX_PRO_6000} Max-Q Workstation Edition"),
    ),
}
"""By the publisher's name of the system."""


def match(system: str, device_name: str) -> Match:
    """How a published system is related to a card of this name. Case does not count."""
    card = CARDS.get(system)
    if card is None:
        return ""
    name = device_name.casefold()
    if name in (known.casefold() for known in card.devices):
        return "exact"
    return "variant" if name in (known.casefold() for known in card.variants) else ""


def matching(systems: Iterable[str], device_name: str) -> list[str]:
    """Those of some published systems that are of a card of this name: the very card before another variant of it."""
    found = {system: match(system, device_name) for system in systems}
    return sorted(filter(found.get, found), key=lambda system: (found[system] != "exact", system))


def variant_note(system: str, device_name: str) -> str:
    """One clause if a system is another variant of the card that was asked for; empty if it is the card itself."""
    if match(system, device_name) != "variant":
        return ""
    return f"published for {CARDS[system].devices[0]}, another variant of {device_name}: power and clocks differ"
