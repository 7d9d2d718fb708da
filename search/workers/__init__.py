"""Worker processes that serve one process of ours, over a pair of sockets each."""
