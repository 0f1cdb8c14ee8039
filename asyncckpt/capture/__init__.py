"""From live state to a snapshot in host memory, in the training thread."""
