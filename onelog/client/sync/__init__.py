"""The blocking client, written by ``scripts.generate_sync_client``; see there."""
