"""What can go wrong outside a request.

CoordinatorError
├── BadConfiguration   start-up stops, naming the key and the form it takes
├── PostgresFailed     the embedded Postgres cannot be started, adopted or stopped
└── StoreDown          the database does not answer; the caller decides what that means
    └── StoreAway      nobody takes connections there, and waiting may help
"""


class CoordinatorError(Exception):
    """Its text is for the operator: what happened, and what to do."""


class BadConfiguration(CoordinatorError):
    pass


class PostgresFailed(CoordinatorError):
    pass


class StoreDown(CoordinatorError):
    pass


class StoreAway(StoreDown):
    pass
