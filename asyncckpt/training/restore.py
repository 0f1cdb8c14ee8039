"""Restoring a checkpoint into a running program's objects.

1. The index is read, and the saved tree compared with the objects. What does not fit is raised here; nothing has
   changed yet.
2. Bytes are read, verified and placed, straight into live tensors where they fit.
3. Every object's ``load_state_dict`` is called: modules first, then all others in the state's order. Random states
   last.

Only the I/O of 1 and 2 happens in another thread; every call to the caller's objects in the caller's. If damage is
found in 2, the live tensors are partly written: restore an older checkpoint over them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from asyncckpt.encode.base import Codec
from asyncckpt.errors import FormatError, RestoreError
from asyncckpt.manifest.format import Manifest, TensorLeaf
from asyncckpt.manifest.tree import Node, Path, render
from asyncckpt.restore.build import Fill
from asyncckpt.restore.load import OPTIMIZERS, RNG, STATE, Reader
from asyncckpt.restore.locations import Locate, MapLocation, is_generator_state, locator
from asyncckpt.restore.nodes import find
from asyncckpt.restore.select import Selection, prune, selected
from asyncckpt.store.base import Store
from asyncckpt.threads import run_blocking
from asyncckpt.training.module_target import ModuleTarget
from asyncckpt.training.optimizers import is_torch_optimizer, parameter_names, read_record
from asyncckpt.training.problems import Problems
from asyncckpt.training.rng import restore_rng
from asyncckpt.training.stateful import is_generator, objects
from asyncckpt.training.targets import GeneratorTarget, OptimizerTarget, PlainTarget, Target, plain

_CPU: Final = torch.device("cpu")
_NOTHING: Final = object()


def restore_state(
    state: Mapping[Any, Any] | None,
    store: Store,
    folder: str,
    manifest: Manifest,
    *,
    strict: bool = True,
    only: str | Sequence[str] | None = None,
    map_location: MapLocation = None,
    codecs: Mapping[str, Codec],
    allow_pickle: bool = False,
    rng: bool = True,
) -> dict[Any, Any]:
    """Load one checkpoint into ``state`` and give back what has no object there.

    Blocks. Call it in the thread that owns the objects.

    Raises:
        StateMismatchError: it does not fit; nothing was changed.
        IntegrityError, FormatError: damaged; if found while reading data, live tensors are partly written.
        RestoreError: an object's ``load_state_dict`` raised, or a pickle is not allowed.
    """
    reader = Reader(store, folder, manifest, codecs=codecs, allow_pickle=allow_pickle)
    run_blocking(reader.open)
    selection = selected(only)
    tree = prune(reader.part(STATE), selection)
    targets = _targets(state, tree, reader, strict, selection)
    fills = [reader.prepare(tree, destinations=_destinations(targets), locate=_locate(targets, locator(map_location)))]
    if rng:
        fills.append(reader.prepare(reader.part(RNG), destinations={}, locate=locator(None)))
    run_blocking(lambda: _read(reader, fills))
    values = fills[0].value()
    if not isinstance(values, dict):
        raise FormatError(f"{folder}: the state is not a dict", defect="bad payload")
    for target in sorted(targets, key=lambda target: not isinstance(target, ModuleTarget)):
        target.load(_at(values, target.path))
    if rng:
        restore_rng(fills[1].value())
    return _rest(values, (), {target.path for target in targets})  # type: ignore[no-any-return]


def _destinations(targets: Sequence[Target]) -> dict[Path, torch.Tensor]:
    found = {path: tensor for target in targets for path, tensor in target.destinations().items()}
    for device in {tensor.device for tensor in found.values()} - {_CPU}:
        torch.accelerator.synchronize(device)  # work that is queued must not write over what is read
    return found


async def _read(reader: Reader, fills: Sequence[Fill]) -> None:
    for fill in fills:
        await reader.fill(fill)


# ---- which objects, and do they fit --------------------------------------------------------------------------------


def _targets(state: Any, tree: Node, reader: Reader, strict: bool, selection: Selection) -> list[Target]:
    """The chosen objects that have a saved state, checked."""
    found = objects(state) if state is not None else []
    records = plain(reader.part(OPTIMIZERS), (OPTIMIZERS,)) or {}
    if not isinstance(records, dict):
        raise FormatError("the payload's optimizers are no dict", defect="bad payload")
    names = parameter_names(found)
    problems, targets = Problems(), list[Target]()
    for path, value in found:
        if not _is_loadable(value) or not (selection(path) or selection.reaches(path)):
            continue
        there, node = find(tree, path)
        if there:
            targets.append(_target(path, value, node, records.get(render(path)), names, strict, selection))
        elif selection(path):
            problems.missing.append(render(path))
    for target in targets:
        target.check(problems)
    problems.settle(strict=strict)
    return targets


def _is_loadable(value: Any) -> bool:
    return is_generator(value) or callable(getattr(value, "load_state_dict", None))


def _target(
    path: Path, value: Any, node: Node, record: Any, names: Mapping[int, str], strict: bool, selection: Selection
) -> Target:
    partial = not selection(path)
    if isinstance(value, torch.nn.Module):
        return ModuleTarget(path, value, node, strict=strict, partial=partial)
    if partial:
        raise RestoreError(f"only= can choose {render(path)} as a whole, but not parts of it")
    if is_generator(value):
        return GeneratorTarget(path, value)
    if is_torch_optimizer(value):
        return OptimizerTarget(path, value, node, read_record(record, path), names)
    return PlainTarget(path, value)


def _locate(targets: Sequence[Target], default: Locate) -> Locate:
    """An object's tensors go where it needs them, all others where map_location says."""
    if not targets:
        return default
    by_path = {target.path: target for target in targets}

    def locate(path: Path, leaf: TensorLeaf) -> torch.device:
        owner = next((by_path[path[:i]] for i in range(len(path) + 1) if path[:i] in by_path), None)
        device = None if owner is None or is_generator_state(leaf) else owner.device_of(path)
        return default(path, leaf) if device is None else device

    return locate


# ---- the values that were read -------------------------------------------------------------------------------------


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _rest(value: Any, path: Path, loaded: set[Path]) -> Any:
    """What is left when the loaded values are taken out. A list that loses some of its entries keeps None for them."""
    if path in loaded:
        return _NOTHING
    if not any(done[: len(path)] == path for done in loaded):
        return value
    if isinstance(value, dict):
        below = {key: _rest(child, (*path, key), loaded) for key, child in value.items()}
        kept = {key: child for key, child in below.items() if child is not _NOTHING}
        return kept if kept or not path else _NOTHING
    entries = [_rest(child, (*path, i), loaded) for i, child in enumerate(value)]
    if all(entry is _NOTHING for entry in entries):
        return _NOTHING
    return type(value)(None if entry is _NOTHING else entry for entry in entries)
