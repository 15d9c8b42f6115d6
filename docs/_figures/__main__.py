"""Draw figures of the pages from stored results, of docs/results or of a ledger: `make figures`.

A name of a figure as an argument draws that one alone.
"""

import sys

from docs._figures.drawn import main

if __name__ == "__main__":
    main(sys.argv[1:])
