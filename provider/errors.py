"""Every exception this package raises on purpose.

DarkbloomError
├── ConfigError          a flag, a variable or a file says something that cannot be
├── ModelError           a checkpoint that cannot be found, read or served
│   ├── ModelNotFound
│   └── ModelUnsupported
├── WorkerError          a worker process that could not be started or has ended
└── RequestFailed        one request that ends in a typed error; carries the Failure sent to the client
"""

from provider.api.wire import Failure


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


class WorkerError(DarkbloomError):
    pass


class RequestFailed(DarkbloomError):
    """One request's typed end; nothing else is affected by it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
