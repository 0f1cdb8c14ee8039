"""Optimizers: whose parameters a state belongs to, and torch's casts undone.

torch numbers an optimizer's parameters by their order and, when loading, believes the order. So ``save()`` writes down
the name of every parameter (found by looking for it in the modules of the state), its shape and dtype, and ``restore``
puts states to parameters by name; without names, by order, comparing shapes.

``Optimizer.load_state_dict`` casts floating-point states to the parameter's dtype. That cuts fp32 moments of bf16
parameters to bf16. They are put back, unless the parameter's own dtype has changed since, or the optimizer is fused
(its kernels need the parameter's dtype). See docs/restore.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from asyncckpt.errors import FormatError
from asyncckpt.manifest.tree import Path, render
from asyncckpt.training.wrappers import clean_name, has_wrappers


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of one group, in order, as they stand in the checkpoint.

    Attributes:
        names: key path in the state, such as ``model.layer.weight``; None for one that is in no module of the state.
        shapes: element counts.
        dtypes: torch's names without the prefix.
    """

    names: list[str | None]
    shapes: list[list[int]]
    dtypes: list[str]


def is_torch_optimizer(value: object) -> bool:
    """Whether this is an optimizer that keeps its state as torch's do. Others are objects like any other."""
    own = torch.optim.Optimizer
    return isinstance(value, own) and type(value).load_state_dict is own.load_state_dict


def parameter_names(found: Iterable[tuple[Path, Any]]) -> dict[int, str]:
    """Id of a parameter -> its key path, for the parameters of all modules among objects."""
    names: dict[int, str] = {}
    for path, module in found:
        if isinstance(module, nn.Module):
            wrapped, prefix = has_wrappers(module), render((*path, ""))
            for name, parameter in _parameters(module):
                clean = clean_name(module, name) if wrapped else name
                names.setdefault(id(parameter), prefix + clean)
    return names


def _parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """As ``named_parameters(remove_duplicate=False)``, in a fraction of its time."""
    for prefix, part in module.named_modules():
        for name, parameter in part._parameters.items():  # noqa: SLF001 - the attribute is documented by its users
            if parameter is not None:
                yield f"{prefix}.{name}" if prefix else name, parameter


def records(found: Sequence[tuple[Path, Any]]) -> dict[str, list[dict[str, Any]]]:
    """For every optimizer among objects: path -> its groups, as plain values for the checkpoint."""
    optimizers = [(path, value) for path, value in found if is_torch_optimizer(value)]
    names = parameter_names(found) if optimizers else {}
    return {render(path): [msgspec.structs.asdict(group) for group in groups_of(o, names)] for path, o in optimizers}


def groups_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> list[Group]:
    """The groups of a live optimizer."""
    return [_group(group["params"], names) for group in optimizer.param_groups]


def _group(parameters: Sequence[torch.Tensor], names: Mapping[int, str]) -> Group:
    return Group(
        names=[names.get(id(parameter)) for parameter in parameters],
        shapes=[[] if is_lazy(parameter) else list(parameter.shape) for parameter in parameters],
        dtypes=[str(parameter.dtype).removeprefix("torch.") for parameter in parameters],
    )


def read_record(record: Any, path: Path) -> list[Group] | None:
    """The groups that a checkpoint noted for an optimizer; None if it noted none."""
    if record is None:
        return None
    try:
        return msgspec.convert(record, list[Group])
    except msgspec.ValidationError as error:
        raise FormatError(f"the record of {render(path)} is malformed", defect="malformed optimizer record") from error


# ---- which saved state belongs to which parameter ------------------------------------------------------------------


def positions(saved: Group, here: Group) -> list[int | None]:
    """For each parameter here, the position of its saved state in the group; None if there is none."""
    if _named(saved) and _named(here):
        place = {name: i for i, name in enumerate(saved.names) if name}
        nameless = iter([i for i, name in enumerate(saved.names) if not name])
        return [place.get(name) if name else next(nameless, None) for name in here.names]
    return [i if i < len(saved.names) else None for i in range(len(here.names))]


def unclaimed(saved: Group, order: Sequence[int | None]) -> list[str]:
    """Names (or positions) of the saved parameters that none here takes."""
    return [saved.names[i] or f"[{i}]" for i in range(len(saved.names)) if i not in set(order)]


def _named(group: Group) -> bool:
    """Whether names can tell parameters apart; those without one then go by their order among themselves."""
    names = [name for name in group.names if name]
    return bool(names) and len(set(names)) == len(names)


def reordered(state: Mapping[str, Any], orders: Sequence[Sequence[int | None]]) -> dict[str, Any]:
    """A saved state dict with each group's parameters in the order they have here.

    A parameter without a saved state gets an id that no state has. States of parameters that are not here go.
    """
    groups = [dict(group) for group in state["param_groups"]]
    fresh = 1 + max((i for group in groups for i in group["params"]), default=-1)
    for group, order in zip(groups, orders, strict=True):
        for key in {"params", "param_names"} & group.keys():
            group[key] = [group[key][i] if i is not None else None for i in order]
        group["params"] = [fresh + k if i is None else i for k, i in enumerate(group["params"])]
        fresh += len(order)
    return {**state, "state": _kept(state, groups), "param_groups": groups}


def _kept(state: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
    before = {i for group in state["param_groups"] for i in group["params"]}
    after = {i for group in groups for i in group["params"]}
    return {key: value for key, value in state["state"].items() if key in after or key not in before}


# ---- loading -------------------------------------------------------------------------------------------------------


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], saved: Sequence[Group] | None) -> None:
    """``optimizer.load_state_dict``, then the saved dtypes put back where torch cast.

    Args:
        optimizer: to load into.
        state: in the order of its parameters. Its tensors become the optimizer's own.
        saved: the groups as noted when saving, likewise in order; None if nothing was noted.
    """
    optimizer.load_state_dict(dict(state))
    for g, (group, noted) in enumerate(zip(optimizer.param_groups, state["param_groups"], strict=True)):
        if group.get("fused"):
            continue
        for k, (parameter, i) in enumerate(zip(group["params"], noted["params"], strict=True)):
            if i in state["state"] and _dtype_is(parameter, None if saved is None else saved[g].dtypes[k]):
                _uncast(optimizer.state[parameter], state["state"][i])


def _dtype_is(parameter: torch.Tensor, name: str | None) -> bool:
    return name is None or str(parameter.dtype) == f"torch.{name}"


def _uncast(current: dict[Any, Any], loaded: Mapping[Any, Any]) -> None:
    """Give one parameter's state its saved dtypes. ``step`` is torch's business: it knows what its kernels need."""
    for key in current.keys() & loaded.keys() - {"step"}:
        current[key] = _as_saved(current[key], loaded[key])


def _as_saved(current: Any, loaded: Any) -> Any:
    if isinstance(current, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return current if current.dtype == loaded.dtype else loaded.to(current.device)
    if isinstance(current, dict):
        return {key: _as_saved(value, loaded[key]) for key, value in current.items()}
    if type(current) in {list, tuple}:
        return type(current)(map(_as_saved, current, loaded))
    return current
