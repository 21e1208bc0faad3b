"""Owner 0x02: queues with leases, retries and dead letters."""
