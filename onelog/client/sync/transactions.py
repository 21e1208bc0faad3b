"""``onelog/client/transactions.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from typing import Self

from onelog.client.blocking import Facade
from onelog.client.transactions import TxnBranch
from onelog.client.values import Key, TxnResult, Value


class Txn(Facade):
    """A transaction that is being put together; ``commit`` carries it out, once."""

    @property
    def then(self) -> TxnBranch:
        """What is done if all conditions hold."""
        found: TxnBranch = self._core.then
        return found

    @property
    def otherwise(self) -> TxnBranch:
        """What is done if one of them does not."""
        found: TxnBranch = self._core.otherwise
        return found

    def when(
        self,
        key: Key,
        *,
        exists: bool | None = None,
        version: int | None = None,
        value: Value | None = None,
        comparison: str = "==",
    ) -> Self:
        """Add a condition on a key: that it exists or not, or how version or value compare."""
        found: Self = self._same(
            self._core.when(key, exists=exists, version=version, value=value, comparison=comparison)
        )
        return found

    def commit(self) -> TxnResult:
        """Carry it out and return what was done."""
        found: TxnResult = self._thread.run(self._core.commit())
        return found
