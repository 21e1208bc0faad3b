"""The blocking client, written by ``onelog.client.sync_source``; see there."""
