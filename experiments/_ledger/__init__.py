"""The ledger: every printed cell of the papers, with the runs that stand beside it or the reason why there is none."""
