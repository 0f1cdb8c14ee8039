"""Where checkpoints are kept. One commit protocol for all of them; see base.py for what a store guarantees."""
