"""The whole model: embed, stack, norm, head.

B batch, T time, D model width, V vocabulary
"""
