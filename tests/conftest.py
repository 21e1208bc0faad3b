"""What every test relies on, wherever the suite was started from."""

import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

from hypothesis import HealthCheck, settings

# Hundreds of servers are started: each would begin threads for linear algebra, which look for work
# for a while before they sleep.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A shell lets what it runs in the background ignore interrupts, and Python keeps it so: programs
# that tests interrupt would never hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test may depend on how fast the machine is: neither an example nor its making has a deadline.
settings.register_profile("onelog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("onelog")

# Folders that onelog has links to. The root of the repository is on the path, for tests and bench:
# imported by its bare name, a module would exist twice, and one of them would be patched.
LINKED = frozenset(("cluster", "node", "projections", "snapshot", "spark", "ual"))


class RefuseBareNames:
    """Fails the import of such a folder by its bare name, however the name was put together."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Find nothing; refuse what is ours."""
        if name in LINKED:
            raise ImportError(f"import onelog.{name}, not {name}")


sys.meta_path.insert(0, RefuseBareNames())
