"""`python -m recallmap`: the command line without its console script."""

from recallmap.search.cli import main

if __name__ == "__main__":
    main()
