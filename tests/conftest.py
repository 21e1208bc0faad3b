"""What every test relies on, wherever the suite was started from."""

import os
import signal

# Hundreds of servers are started: each would begin threads for linear algebra, which look for work
# for a while before they sleep.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A shell lets what it runs in the background ignore interrupts, and Python keeps it so: programs
# that tests interrupt would never hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
