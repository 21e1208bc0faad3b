"""What every test relies on, wherever the suite was started from."""

import signal

# A shell lets what it runs in the background ignore interrupts, and Python keeps it so: programs
# that tests interrupt would never hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
