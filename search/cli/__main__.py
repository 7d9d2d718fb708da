"""The command line without its console script: `python -m recallmap.search.cli`."""

from recallmap.search.cli import main

main()
