"""The documents of a checkpoint: the tree of the state, the index of a pack, the manifest, the catalog. No torch."""
