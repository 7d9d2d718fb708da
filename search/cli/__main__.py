"""`python -m recallmap.search.cli`: the command line without its console script."""

from recallmap.search.cli import main

main()
