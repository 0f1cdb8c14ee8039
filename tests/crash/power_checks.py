"""Whether what a power loss has left keeps every promise that was made before it. No torch.

Two kinds of promises: those of the store, call by call (store/base.py), and those of the library, save by save.
"""

import copy
import itertools
from dataclasses import dataclass, field

from crash_model import FOREIGN, Ledger, Run, check, check_tidy
from power_loss import paths_of, states
from recording import Note

from asyncckpt.store.local import LocalStore
from asyncckpt.store.lock import LOCK_NAME
from asyncckpt.testing import MemoryStore


class Witness:
    """A local store whose every call leaves a note of what it was told and what it answered."""

    def __init__(self, inner, note):
        self._inner, self._note = inner, note

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def put(self, key, parts):
        return await self._keep(key, parts, self._inner.put)

    async def put_new(self, key, data):
        async def parts():
            yield data

        async def call(key, watched):
            async for part in watched:
                await self._inner.put_new(key, part)

        return await self._keep(key, parts(), call)

    async def delete(self, keys):
        self._note("drops", *keys)
        await self._inner.delete(keys)
        self._note("dropped", *keys)
        for folder in {key.rpartition("/")[0] for key in keys}:
            if not await self._inner.list(folder):
                self._note("dropped", folder)

    async def _keep(self, key, parts, call):
        content = bytearray()

        async def watched():
            async for part in parts:
                content.extend(part)
                yield part

        self._note("puts", key, content)
        try:
            answer = await call(key, watched())
        except BaseException:
            self._note("put back", key)
            raise
        self._note("has put", key)
        return answer


@dataclass
class Contract:
    """What the store's answers allow to be on the disk.

    Attributes:
        allowed: key -> contents that may be under it; None stands for none.
        before: key -> what was allowed before the call that runs.
        gone: folders that were removed.
    """

    allowed: dict
    before: dict = field(default_factory=dict)
    gone: set = field(default_factory=set)

    @classmethod
    def of(cls, paths):
        """Everything durable. Nothing is promised of temporary files before they are deleted."""
        return cls({key: [data] for key, data in paths.items() if data is not None and not key.endswith(".tmp")})

    def note(self, word, *keys):
        """One call, or one answer."""
        if word == "puts":
            key, content = keys
            self.before[key] = self.allowed.get(key, [None])
            self.allowed[key] = [*self.before[key], content]
            self.gone.discard(key.rpartition("/")[0])
        elif word == "has put":
            self.allowed[keys[0]] = self.allowed[keys[0]][-1:]
        elif word == "put back":
            self.allowed[keys[0]] = self.before.pop(keys[0])
        elif word == "drops":
            for key in keys:
                if not key.endswith(".tmp"):
                    self.allowed[key] = [*self.allowed.get(key, []), None]
        elif word == "dropped":
            for key in keys:
                self.allowed[key] = [None]
                self.gone.add(key)

    def check(self, paths):
        """No name holds what was never promised or is past; nothing promised is missing."""
        for key, allowed in self.allowed.items():
            found = paths.get(key)
            assert any(found == content for content in allowed), f"{key} is not what the store has answered"
        for path, data in paths.items():
            if data is None:
                assert path not in self.gone, f"{path} is back"
            else:
                assert path in self.allowed or path.endswith(".tmp") or path == LOCK_NAME, f"{path} has appeared"


@dataclass
class Record:
    """What was recorded of one scenario.

    Attributes:
        base: the disk at the beginning.
        events: what happened.
        root: of the store, below the disk's top folder.
        ledger: what had been tried and promised at the beginning.
        foreign: files that are nobody's business.
    """

    base: object
    events: list
    root: str
    ledger: Ledger
    foreign: dict = field(default_factory=lambda: FOREIGN)


def below(tree, root):
    """The paths below the root."""
    paths, prefix = paths_of(tree), root + "/"
    return {path.removeprefix(prefix): data for path, data in paths.items() if path.startswith(prefix)}


def memory_of(paths):
    """A store with these objects."""
    store = MemoryStore()
    for key, data in paths.items():
        if data is not None:
            store.damage(key, data)
    return store


class BrokenError(AssertionError):
    """A promise is broken: after which event, by which state."""

    def __init__(self, at, event, paths, reason):
        listing = {path: None if data is None else len(data) for path, data in paths.items()}
        super().__init__(f"after event {at} ({event!r:.200}) a power loss may leave {listing}: {reason}")
        self.at = at


async def check_states(record):
    """Every state keeps every promise; gives (states, different trees with the ledger of their last moment).

    Raises:
        BrokenError: at the first that does not.
    """
    ledger, contract, done = copy.deepcopy(record.ledger), None, 0
    last, count = {}, 0
    for at, same in itertools.groupby(states(record.base, record.events), key=lambda state: state[0]):
        trees = [tree for _, tree in same]
        if contract is None:
            contract = Contract.of(below(trees[0], record.root))
        for event in record.events[done:at]:
            if isinstance(event, Note):
                (ledger.note if event.words[0] in Ledger.WORDS else contract.note)(*event.words)
        done, kept = at, copy.deepcopy(ledger)
        for tree in trees:
            paths = below(tree, record.root)
            try:
                contract.check(paths)
                await check(memory_of(paths), ledger, foreign=record.foreign)
            except Exception as error:
                event = record.events[at - 1] if at else None
                raise BrokenError(at, event, paths, error) from error
            last[tree] = kept
        count += len(trees)
    return count, last


def materialise(tree, folder):
    """Put a tree on a real disk."""
    folder.mkdir()
    for path, data in paths_of(tree).items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


async def recover(record, tree, ledger, encoders, folder):
    """A new process on what is left, on a real disk: it sweeps, saves, retires; then there are checkpoints only."""
    materialise(tree, folder)
    store, ledger, foreign = LocalStore(folder / record.root), copy.deepcopy(ledger), record.foreign
    run = Run(store, encoders, ledger.note)
    with store.writer_lock():
        await run.sweep()
        await check(store, ledger, foreign=foreign)
        await check_tidy(store)
        await run.save(30, 1)
        await run.retire(30)
        await check(store, ledger, foreign=foreign)
        await check_tidy(store)
