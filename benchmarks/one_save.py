"""``python -m benchmarks.one_save NAME ROOT``: one small save by one contestant, to be watched from outside."""

import sys
import warnings
from pathlib import Path

from benchmarks.peers import contestant
from benchmarks.workloads import build


def main() -> None:
    warnings.simplefilter("ignore")
    name, root = sys.argv[1], Path(sys.argv[2])
    peer = contestant(name)(root, build("huge", 4, root))
    peer.save(1)
    peer.finish()
    peer.close()


if __name__ == "__main__":
    main()
