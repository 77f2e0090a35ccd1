"""What a training step costs on a GPU that is not there: counted operations and bytes, and the time they predict."""
