"""A program that is killed: run as ``crash_child.py SCENARIO FOLDER``. No torch.

For k = 1, 2, ... it forks a child that runs the scenario on a real folder of its own, ``FOLDER/k/root``, and SIGKILLs
itself as the k-th operation begins, until a child ends by itself. Promises go to ``FOLDER/k/diary`` as they are made.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from crash_model import SCENARIOS, Run

from asyncckpt.store.local import LocalStore
from asyncckpt.testing import FaultyStore
from asyncckpt.threads import PlainExecutor


async def story(scenario, folder, k):
    """The scenario, up to operation k of its second part."""
    diary = os.open(folder / "diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(*words):
        os.write(diary, (" ".join(map(str, words)) + "\n").encode())

    async def kill(operation):
        if operation.number == k:
            os.kill(os.getpid(), signal.SIGKILL)

    base = LocalStore(folder / "root")
    encoders = PlainExecutor(1, "encoder")
    beginning, action = SCENARIOS[scenario]
    await beginning(Run(base, encoders, note))
    await action(Run(FaultyStore(base, slow=kill), encoders, note))
    encoders.shutdown()


def main(scenario, folder):
    """Fork and be killed until the story comes to its end."""
    assert "torch" not in sys.modules
    k, status = 0, signal.SIGKILL
    while status == signal.SIGKILL:
        k += 1
        home = Path(folder) / str(k)
        home.mkdir(parents=True)
        child = os.fork()
        if child == 0:
            asyncio.run(story(scenario, home, k))
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert status == 0, status
    assert "torch" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
