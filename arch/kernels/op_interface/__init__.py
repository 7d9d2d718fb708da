"""The interface between an op and its implementations: checks of inputs, custom ops for PyTorch, recomputation in backward."""
