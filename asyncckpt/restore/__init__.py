"""From a committed checkpoint back to live state: plan, read, verify, decode, place."""
