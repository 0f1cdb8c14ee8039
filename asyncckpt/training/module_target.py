"""Modules: parameters and buffers are read into where they are, then ``load_state_dict`` is called all the same.

In place works only where the saved name means the very tensor: not for modules whose own code (hooks, overridden
methods) may rename or change values while loading. What was read in place is handed to ``load_state_dict`` as the live
tensor itself, which torch recognises and does not copy. A module built on the meta device gets the tensors read.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from asyncckpt.manifest.tree import Node, Path, render
from asyncckpt.restore.nodes import entries, tag_of
from asyncckpt.training.problems import Problems
from asyncckpt.training.targets import is_dict, naming
from asyncckpt.training.wrappers import clean_name, wrapped_state


class ModuleTarget:
    """See ``targets.Target``. ``partial``: only some of the module's values were chosen with ``only=``."""

    def __init__(self, path: Path, module: nn.Module, node: Node, *, strict: bool, partial: bool) -> None:
        self.path, self._module, self._node = path, module, node
        self._strict, self._partial = strict, partial
        self._dropped: set[str] = set()
        with naming(path, "state_dict()"):
            self._template: Mapping[str, Any] = module.state_dict()
        self._own = {clean_name(module, name): name for name in self._template}
        self._live = _live_tensors(module) if _loads_plainly(module) else {}
        self._hooked = any(child._load_state_dict_pre_hooks for child in module.modules())  # noqa: SLF001

    def check(self, problems: Problems) -> None:
        """Compare names and shapes. Names are not compared if the module's own hooks may change them."""
        if not is_dict(self._node):
            problems.mismatched[render(self.path)] = "no state of a module was saved here"
            self._dropped.update(self._own)
            return
        saved: dict[Any, Node] = dict(entries(self._node, self.path))
        if not self._hooked:
            self._compare_names(saved, problems)
        for name in saved.keys() & self._own.keys():
            why = _difference(saved[name], self._template[self._own[name]])
            if why and not self._hooked:
                problems.mismatched[self._spell(name)] = why
                self._dropped.add(name)

    def _compare_names(self, saved: Mapping[Any, Node], problems: Problems) -> None:
        if not self._partial:
            problems.missing += [self._spell(name) for name in self._own if name not in saved]
        unexpected = [name for name in saved if name not in self._own]
        problems.unexpected += [self._spell(name) for name in unexpected]
        self._dropped.update(unexpected)

    def _spell(self, name: str) -> str:
        return render((*self.path, name))

    def destinations(self) -> Mapping[Path, torch.Tensor]:
        """See ``targets.Target``."""
        found = {}
        for clean, own in self._own.items():
            live = self._live.get(own)
            if live is not None and clean not in self._dropped and _is_alias(self._template[own], live):
                found[(*self.path, clean)] = live
        return found

    def device_of(self, path: Path) -> torch.device | None:
        """Where the module has that tensor; None for the meta device: wherever map_location says."""
        name = self._own.get(path[len(self.path)]) if len(path) == len(self.path) + 1 else None  # type: ignore[call-overload]
        value = self._template.get(name) if name is not None else None
        device = value.device if isinstance(value, torch.Tensor) else torch.device("cpu")
        return None if device.type == "meta" else device

    def load(self, value: Any) -> None:
        """See ``targets.Target``."""
        if not isinstance(value, dict):
            return  # it did not fit, and strict=False
        for name in self._dropped & value.keys():
            del value[name]
        state = wrapped_state(self._module, self._own, value)
        built_on_meta = any(isinstance(v, torch.Tensor) and v.device.type == "meta" for v in self._template.values())
        with naming(self.path, "load_state_dict()"):
            if built_on_meta:
                _adopt(self._module, state, self._template)
            strict = self._strict and not self._partial
            extra: dict[str, Any] = {"assign": True} if built_on_meta else {}
            self._module.load_state_dict(state, strict=strict, **extra)


def _loads_plainly(module: nn.Module) -> bool:
    """Whether no code but torch's own decides what a saved value is loaded into."""
    return all(
        _is_torchs(type(child).load_state_dict)
        and _is_torchs(type(child)._load_from_state_dict)  # noqa: SLF001 - the method that modules override
        and not child._load_state_dict_pre_hooks  # noqa: SLF001
        for child in module.modules()
    )


def _is_torchs(method: Any) -> bool:
    return str(getattr(method, "__module__", "")).partition(".")[0] == "torch"


def _live_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _is_alias(value: object, live: torch.Tensor) -> bool:
    """Whether what ``state_dict()`` gave is the live tensor's memory, as it is."""
    return (
        isinstance(value, torch.Tensor)
        and not is_lazy(live)
        and value.device.type != "meta"
        and type(value) in {torch.Tensor, nn.Parameter}
        and value.data_ptr() == live.data_ptr()
        and value.shape == live.shape
        and value.stride() == live.stride()
    )


def _difference(node: Node, value: object) -> str | None:
    """Why a saved value cannot be loaded where ``value`` is; None if it can."""
    tensor = isinstance(value, torch.Tensor)
    if tensor != (tag_of(node) in {"tensor", "quantized"} or str(tag_of(node)).startswith("sparse")):
        return f"{'no tensor' if tensor else 'a tensor'} saved, {'a tensor' if tensor else 'none'} here"
    if not isinstance(value, torch.Tensor) or tag_of(node) != "tensor" or is_lazy(value):
        return None
    shape = node[2] if len(node) > 2 else None  # noqa: PLR2004 - tag, dtype, shape
    return None if shape == list(value.shape) else f"shape {shape} saved, {list(value.shape)} here"


def _adopt(module: nn.Module, state: Any, template: Mapping[str, Any]) -> None:
    """Prepare tensors that a module built on meta will take over: its dtypes, and one object for tied parameters."""
    owners: dict[int, nn.Parameter] = {}
    live = _live_tensors(module)
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or not isinstance(template.get(name), torch.Tensor):
            continue
        state[name] = value.to(template[name].dtype)
        target = live.get(name)
        if isinstance(target, nn.Parameter) and target is not value:
            adopted = nn.Parameter(state[name].detach(), requires_grad=target.requires_grad)
            state[name] = owners.setdefault(id(target), adopted)
