"""What a training run's objects need beyond tensors: random states, stateful objects, optimizers, wrappers."""
