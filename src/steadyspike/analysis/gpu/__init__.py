"""What a training step costs on a GPU that is not available: counted operations and bytes, and predicted times."""
