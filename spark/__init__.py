"""The Spark data source. Empty so far."""
