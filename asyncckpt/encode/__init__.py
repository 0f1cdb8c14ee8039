"""Bytes of a snapshot to stored frames and back: float planes, compression, checksums. No torch, no files."""
