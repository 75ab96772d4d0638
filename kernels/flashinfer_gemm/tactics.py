"""FlashInfer's tactics by name: what a tactic of each runner says, and back. Needs no FlashInfer.

FlashInfer writes a tactic as an index or a tuple, whose meaning belongs to a release. Here it is a config: every field
by name. `-1`, FlashInfer's own choice, is the config whose every parameter is `DEFAULT`. `decode` and `encode` are
inverses on everything that `decode` accepts; a tactic of another form is refused, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..backend import Config, ConfigValue, config_key
from ..errors import UnsupportedError
from .cutlass_tiles import ORDER

DEFAULT = "default"
"""Value of every parameter in the config that leaves the choice to FlashInfer."""

UNUSED = "none"
"""Value of a parameter that the config's kernel does not have."""

TILES = (
    (128, 32, 128), (128, 32, 256), (128, 64, 128), (128, 64, 256),
    (128, 128, 128), (128, 128, 256), (256, 128, 128), (128, 256, 128),
)  # fmt: skip
"""(M, N, K) of the CTA tiles of CutlassFp4GemmRunner on SM12x in 0.7.2 to 0.7.4, in the order of its tactics; a test
compares it with the installed header."""


class Codec:
    """What a runner's tactics say. What codecs share: `-1`, and a config that must have exactly the fields.

    Attributes:
        runner: class name of the runner in FlashInfer.
        parameters: names of the fields, in the order of a sensible sweep.
    """

    runner: ClassVar[str]
    parameters: ClassVar[tuple[str, ...]]

    def decode(self, tactic: Any) -> dict[str, ConfigValue]:
        """A tactic as a config. Raises UnsupportedError for one of an unknown form."""
        if tactic == -1 and not isinstance(tactic, (bool, tuple)):
            return dict.fromkeys(self.parameters, DEFAULT)
        config = self._decode(tactic)
        if config is None:
            raise UnsupportedError(f"{self.runner} has the tactic {tactic!r}, a form that fp4tune does not know.")
        return config

    def encode(self, config: Config) -> Any:
        """A config as FlashInfer's tactic. Raises UnsupportedError for one that says nothing to this runner."""
        if set(config) == set(self.parameters):
            if all(value == DEFAULT for value in config.values()):
                return -1
            tactic = self._encode(config)
            if tactic is not None and same(self._decode(tactic), config):
                return tactic
        raise UnsupportedError(f"{self.runner} has no tactic for the config {config_key(config)}.")

    def _decode(self, tactic: Any) -> dict[str, ConfigValue] | None:
        raise NotImplementedError

    def _encode(self, config: Config) -> Any:
        """A tactic, or None; whether it says what the config says is checked by decoding it again."""
        raise NotImplementedError


def same(one: Config | None, other: Config) -> bool:
    """Whether two configs are equal, their values' types included."""
    return one is not None and config_key(one) == config_key(other)


class CutlassCodec(Codec):
    """`4 · tile + variant`: CTA tile in elements, operands swapped or not, tile scheduler `static` or `stream_k`.

    Args:
        tiles: of the release; those of 0.7.2 to 0.7.4 if left out.
    """

    runner = "CutlassFp4GemmRunner"
    parameters = ("tile_m", "tile_n", "tile_k", "swap_ab", "scheduler")

    def __init__(self, tiles: Sequence[tuple[int, int, int]] = TILES) -> None:
        self._tiles = tuple(tiles)

    def _decode(self, tactic: Any) -> dict[str, ConfigValue] | None:
        if type(tactic) is not int or not 0 <= tactic < len(self._tiles) * len(ORDER):
            return None
        tile, variant = divmod(tactic, len(ORDER))
        swap_ab, stream_k = ORDER[variant]
        m, n, k = self._tiles[tile]
        scheduler = "stream_k" if stream_k else "static"
        return {"tile_m": m, "tile_n": n, "tile_k": k, "swap_ab": swap_ab, "scheduler": scheduler}

    def _encode(self, config: Config) -> Any:
        tile = (config["tile_m"], config["tile_n"], config["tile_k"])
        variant = (config["swap_ab"], config["scheduler"] == "stream_k")
        if tile not in self._tiles or variant not in ORDER:
            return None
        return self._tiles.index(tile) * len(ORDER) + ORDER.index(variant)


class B12xCodec(Codec):
    """`((tile_m, tile_n), (cluster_m, cluster_n), swap_ab, prefetch, "sm120", None)`; the cluster as text, `1x1`."""

    runner = "B12xFp4GemmRunner"
    parameters = ("tile_m", "tile_n", "cluster", "swap_ab", "prefetch")

    def _decode(self, tactic: Any) -> dict[str, ConfigValue] | None:
        match tactic:
            case ((int(m), int(n)), (int(x), int(y)), bool(swap_ab), bool(prefetch), "sm120", None):
                return {"tile_m": m, "tile_n": n, "cluster": f"{x}x{y}", "swap_ab": swap_ab, "prefetch": prefetch}
        return None

    def _encode(self, config: Config) -> Any:
        cluster = re.fullmatch(r"(\d+)x(\d+)", str(config["cluster"]), re.ASCII)
        if cluster is None:
            return None
        tile = (config["tile_m"], config["tile_n"])
        return (tile, (int(cluster[1]), int(cluster[2])), config["swap_ab"], config["prefetch"], "sm120", None)


class CudnnCodec(Codec):
    """`(engine, ((knob, value), ...))`: cuDNN's engine, and its knobs as text, `2=1,13=0`, ascending, or empty.

    Knobs are cuDNN's numbers (`cudnn.knob_type`), which is how FlashInfer writes them.
    """

    runner = "CudnnFp4GemmRunner"
    parameters = ("engine", "knobs")

    def _decode(self, tactic: Any) -> dict[str, ConfigValue] | None:
        match tactic:
            case (int(engine), tuple(knobs)) if type(engine) is int and all(_is_pair(knob) for knob in knobs):
                if list(knobs) == sorted(set(knobs)):
                    return {"engine": engine, "knobs": ",".join(f"{kind}={value}" for kind, value in knobs)}
        return None

    def _encode(self, config: Config) -> Any:
        text = str(config["knobs"])
        if not re.fullmatch(r"(\d+=-?\d+(,\d+=-?\d+)*)?", text, re.ASCII):
            return None
        pairs = [part.split("=") for part in text.split(",") if part]
        return (config["engine"], tuple((int(kind), int(value)) for kind, value in pairs))


def _is_pair(knob: Any) -> bool:
    return isinstance(knob, tuple) and len(knob) == 2 and all(type(part) is int for part in knob)


class CuteDslCodec(Codec):
    """`("independent",)`, `("independent_tma",)`, or `("raw", ...)` with ten fields that say everything of its kernel.

    The first two choose tile and stages by the shape themselves; fields that they do not have are UNUSED.
    """

    runner = "Sm12xCuTeFp4GemmRunner"
    _RAW: ClassVar[Mapping[str, type]] = {
        "epi_m": int,
        "epi_n": int,
        "swizzle": int,
        "elected_release": bool,
        "raster_along_m": bool,
        "tile_k": int,
        "internal_swap": bool,
        "extra_mainloop_stage": bool,
        "half_stage_wait": bool,
        "register_redistribution": bool,
    }
    """Fields of FlashInfer's RawConfig, in its order; a test compares them."""

    parameters = ("kernel", *_RAW)

    def _decode(self, tactic: Any) -> dict[str, ConfigValue] | None:
        match tactic:
            case ("independent" | "independent_tma" as kernel,):
                return {"kernel": kernel, **dict.fromkeys(self._RAW, UNUSED)}
            case ("raw", *fields) if [type(field) for field in fields] == list(self._RAW.values()):
                return {"kernel": "raw", **dict(zip(self._RAW, fields, strict=True))}
        return None

    def _encode(self, config: Config) -> Any:
        if config["kernel"] == "raw":
            return ("raw", *(config[field] for field in self._RAW))
        return (config["kernel"],)


class TrtllmCodec(Codec):
    """An index into the cubins of a TensorRT-LLM artifact, which FlashInfer does not describe.

    An index means nothing without its artifact, so the config names both.

    Args:
        artifact: what FlashInfer's `ArtifactPath.TRTLLM_GEN_GEMM` says.
    """

    runner = "TrtllmGemmRunner"
    parameters = ("artifact", "kernel")

    def __init__(self, artifact: str) -> None:
        self._artifact = artifact

    def _decode(self, tactic: Any) -> dict[str, ConfigValue] | None:
        if type(tactic) is not int or tactic < 0:
            return None
        return {"artifact": self._artifact, "kernel": tactic}

    def _encode(self, config: Config) -> Any:
        return config["kernel"] if type(config["kernel"]) is int else None


def plain(tactic: Any) -> Any:
    """A tactic as Python's own numbers and tuples: what comes from JSON has lists, what comes from C++ arrays and ints.

    Raises:
        UnsupportedError: something in it is neither a number, a text, None nor a sequence.
    """
    if tactic is None or isinstance(tactic, (bool, str)):
        return tactic
    if isinstance(tactic, (list, tuple)):
        return tuple(plain(part) for part in tactic)
    try:
        return int(tactic.__index__())
    except AttributeError:
        pass
    try:
        return tuple(plain(part) for part in tactic)
    except TypeError:
        raise UnsupportedError(f"A tactic holds {tactic!r}, which is no number, text or sequence.") from None
