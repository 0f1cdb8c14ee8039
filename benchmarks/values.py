"""Does a checkpoint hold the values of the moment of the call? Checked by changing the state and reading back.

*documented*: the next update comes at once, with whatever care the contestant asks for (lock, awaited staging, hook).
*careless*: every tensor is written to at once, with no care at all.
"""

from typing import Any

import torch

from benchmarks.measure import forget_pages, measured
from benchmarks.peers.base import flat


def check_values(loop: Any, *, thorough: bool) -> dict[str, Any]:
    """Seconds to read back, and for a thorough check what became of the values: "kept", "TORN ..." or an error."""
    loop.live.forward_backward()
    result = _documented(loop)
    if thorough:
        result["careless"] = _careless(loop)
    return result


def _documented(loop: Any) -> dict[str, Any]:
    expected = _now(loop)
    loop.save()
    loop.update()
    loop.peer.finish()
    forget_pages(loop.peer.root)
    with measured() as spent:
        loaded = loop.peer.load(loop.saves)
    return {"load": spent.wall, "load_cpu": spent.cpu, "documented": _verdict(expected, loaded)}


def _careless(loop: Any) -> str:
    expected = _now(loop)
    try:
        loop.save()
        with torch.no_grad():
            torch._foreach_add_([t for t in loop.live.tensors() if t.is_floating_point()], 1.0)
        loop.peer.finish()
        return _verdict(expected, loop.peer.load(loop.saves))
    except Exception as error:
        return f"refused: {type(error).__name__}"


def _now(loop: Any) -> dict[str, torch.Tensor]:
    return {key: leaf.clone() for key, leaf in flat(loop.live.plain()).items() if isinstance(leaf, torch.Tensor)}


def _verdict(expected: dict[str, torch.Tensor], loaded: Any) -> str:
    found = flat(loaded)
    missing = [key for key in expected if key not in found]
    if missing:
        return f"MISSING {len(missing)} of {len(expected)}"
    torn = sum(not torch.equal(found[key], value) for key, value in expected.items())
    return f"TORN {torn} of {len(expected)}" if torn else "kept"
