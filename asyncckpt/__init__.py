"""asyncckpt writes PyTorch training checkpoints in the background."""
