"""Every exception this package raises on purpose.

DarkbloomError
├── ConfigError          a flag, a variable or a file says something that cannot be
├── ModelError           a checkpoint that cannot be found, read or served
│   ├── ModelNotFound
│   ├── ModelUnsupported
│   ├── SelfTestFailed   it loads, and computes nonsense on this machine
│   └── ExactUnavailable exact mode is on, and cannot be guaranteed for it here
├── HeadInvalid          a prediction head that cannot be used; the model is served without it
├── GrammarError         a grammar that cannot be used; the message says why
├── SchemaRefused        a JSON schema that no answer can be held to
├── WorkerError          a worker process that could not be started or has ended
└── RequestFailed        one request that ends in a typed error; carries the Failure sent to the client
"""

from pathlib import Path

from provider.api.wire import Failure
from provider.mtp.policy import Reason


class DarkbloomError(Exception):
    """Base of all errors whose message is written for the person who sees it."""


class ConfigError(DarkbloomError):
    """Names the key and the accepted form."""


class ModelError(DarkbloomError):
    """Names the checkpoint and what to do."""


class ModelNotFound(ModelError):
    pass


class ModelUnsupported(ModelError):
    pass


class SelfTestFailed(ModelError):
    pass


class ExactUnavailable(ModelError):
    """Names the reason, and the setting that would work. `cause` is of provider.exact.policy.Code; `remedy`, that
    setting as a flag."""

    code = "exact_unavailable"

    def __init__(self, message: str, cause: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.remedy = remedy


class HeadInvalid(DarkbloomError):
    """Never fails its model, which then decodes plainly; `reason` is what the world is told."""

    def __init__(self, reason: Reason, detail: str, path: Path) -> None:
        super().__init__(f"{path}: {detail}".encode(errors="backslashreplace").decode())
        self.reason = reason
        self.detail = detail
        self.path = path


class GrammarError(DarkbloomError):
    """Says why, without the grammar."""


class SchemaRefused(DarkbloomError):
    """`place`: of the part that is wrong, as in a request's body."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


class WorkerError(DarkbloomError):
    pass


class RequestFailed(DarkbloomError):
    """One request's typed end; nothing else is affected by it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
