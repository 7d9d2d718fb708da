"""Learning at test time: the rule, the network and its gradient, the dual form over chunks, implicit features."""
