"""The models: mixers, blocks, stacks and backbones, in torch. This pillar knows no task."""
