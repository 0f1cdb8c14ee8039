"""Names of a module's values without the prefixes of wrappers.

``DistributedDataParallel`` and ``DataParallel`` put ``module.`` before every name, ``torch.compile`` puts
``_orig_mod.``, in any nesting and at any depth. Which parts of a name are such prefixes is found by walking the real
modules; a user's own submodule called ``module`` keeps its name.
"""

import sys
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from torch import nn

_PARALLEL: Final = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def wrapped_child(module: nn.Module) -> str | None:
    """The name under which a wrapper holds the module it wraps; None if this is no wrapper."""
    kind: Any = type(module)
    return _held_as(kind)


@cache
def _held_as(kind: Any) -> str | None:
    if issubclass(kind, _PARALLEL):
        return "module"
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # torch.compile imports it; nobody else should pay for it
    return "_orig_mod" if dynamo is not None and issubclass(kind, dynamo.OptimizedModule) else None


def clean_name(module: nn.Module, name: str) -> str:
    """A name of ``module.state_dict()``, or a module's name, as it would be without any wrapper."""
    kept = []
    parts = name.split(".")
    current: nn.Module | None = module
    for part in parts:
        if current is None or wrapped_child(current) != part:
            kept.append(part)
        current = None if current is None else current._modules.get(part)  # noqa: SLF001 - names of modules, exactly
    return ".".join(kept)


def has_wrappers(module: nn.Module) -> bool:
    """Whether any name would change."""
    return any(wrapped_child(child) is not None for child in module.modules())


def clean_state(module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """What ``module.state_dict()`` gave, by clean names, with its ``_metadata``."""
    if not has_wrappers(module):
        return state
    cleaned = OrderedDict((clean_name(module, name), value) for name, value in state.items())
    metadata = getattr(state, "_metadata", None)
    if isinstance(metadata, Mapping):
        # The wrapped module comes after its wrapper and takes its place.
        _attach(cleaned, OrderedDict((clean_name(module, name), value) for name, value in metadata.items()))
    return cleaned


def wrapped_state(module: nn.Module, names: Mapping[str, str], state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state by clean names, by the names that ``module`` itself uses.

    Args:
        module: the target.
        names: clean name -> the target's own; names that are not in it stay as they are.
        state: by clean names.
    """
    if not has_wrappers(module):
        return state
    own = OrderedDict((names.get(name, name), value) for name, value in state.items())
    metadata = getattr(state, "_metadata", None)
    if isinstance(metadata, Mapping):
        all_names = (name for name, _ in module.named_modules(remove_duplicate=False))
        cleaned = ((name, clean_name(module, name)) for name in all_names)
        _attach(own, OrderedDict((name, metadata[clean]) for name, clean in cleaned if clean in metadata))
    return own


def _attach(state: OrderedDict[str, Any], metadata: OrderedDict[str, Any]) -> None:
    state._metadata = metadata  # type: ignore[attr-defined]  # noqa: SLF001 - torch's own name
