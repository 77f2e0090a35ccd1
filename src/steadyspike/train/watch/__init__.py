"""What an epoch is measured by: scores, firing of the layers, gradient norms."""
