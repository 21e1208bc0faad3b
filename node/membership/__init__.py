"""Who belongs to the cluster: founding, joining, the peers' port, even leaderships."""
