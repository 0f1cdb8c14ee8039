"""Stores and contracts for tests, ours and yours. Shipped; nothing in the library imports it."""
