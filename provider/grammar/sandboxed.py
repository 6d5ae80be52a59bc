"""The process in which grammars are tried: one after the other, until its input ends. See provider.grammar.sandbox."""

import resource
import sys
import threading
from typing import BinaryIO

from provider.errors import GrammarError
from provider.grammar.checking import check

STACK_BYTES = 4 * 2**20
HEADER_BYTES = 4


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    while header := source.read(HEADER_BYTES):
        grammar = source.read(int.from_bytes(header, "big")).decode()
        said = _said_of(grammar).encode()
        sink.write(len(said).to_bytes(HEADER_BYTES, "big") + said)
        sink.flush()


def _said_of(grammar: str) -> str:
    try:
        check(grammar)
    except GrammarError as error:
        return str(error)
    return ""


def main() -> None:
    limit_bytes = int(sys.argv[1])
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ValueError, OSError):
        pass  # not every system has such limits; the deadline and the bounds on work are left
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve, args=(sys.stdin.buffer, sys.stdout.buffer))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
