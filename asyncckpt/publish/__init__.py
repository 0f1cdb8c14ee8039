"""From a snapshot to a committed checkpoint, and the removal of old ones. No torch."""
